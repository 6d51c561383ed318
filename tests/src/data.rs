//! Test data that can be checked at any offset without keeping it: bytes are a function of a seed and their position.

use std::collections::HashMap;
use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use safetensors::{Dtype, tensor::TensorView};

/// Sizes at which something may be off by one: pages, extents, and nothing at all.
pub const EDGE_SIZES: [u64; 8] = [
    0,
    1,
    4095,
    4096,
    4097,
    weightfs::units::EXTENT_SIZE - 1,
    weightfs::units::EXTENT_SIZE,
    weightfs::units::EXTENT_SIZE + 1,
];

/// A small generator of random numbers (splitmix64, Steele et al. 2014): seeded, so that a failure can be repeated.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(seed)
    }

    /// The seed in `WEIGHTFS_SEED`, else one from the clock; printed, so that a failure shows it.
    pub fn from_environment() -> Random {
        let clock = || std::time::UNIX_EPOCH.elapsed().map_or(1, |time| time.as_nanos() as u64);
        let seed = std::env::var("WEIGHTFS_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or_else(clock);
        println!("WEIGHTFS_SEED={seed} repeats this run");
        Random(seed)
    }

    pub fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// In `0..end`; `end` must not be 0.
    pub fn below(&mut self, end: u64) -> u64 {
        self.number() % end
    }

    pub fn chance(&mut self, one_in: u64) -> bool {
        self.below(one_in) == 0
    }

    pub fn pick<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        &of[self.below(of.len() as u64) as usize]
    }

    /// Independent of this one from here on.
    pub fn fork(&mut self) -> Random {
        Random(self.number())
    }
}

pub(crate) fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// The bytes that belong at `offset..offset + into.len()` of the content with this seed.
pub fn fill(seed: u64, offset: u64, into: &mut [u8]) {
    let mut position = offset;
    let mut rest = into;
    while !rest.is_empty() {
        let word = mix(seed ^ mix(position / 8)).to_le_bytes();
        let skip = (position % 8) as usize;
        let take = rest.len().min(8 - skip);
        let (now, later) = rest.split_at_mut(take);
        now.copy_from_slice(&word[skip..skip + take]);
        rest = later;
        position += take as u64;
    }
}

/// `len` bytes of the content with this seed, from `offset`.
pub fn bytes(seed: u64, offset: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    fill(seed, offset, &mut bytes);
    bytes
}

/// Where `found` first differs from the content with this seed, as a message.
///
/// # Errors
/// The first wrong byte: its offset, what it is and what it should be.
pub fn check(seed: u64, offset: u64, found: &[u8]) -> Result<(), String> {
    same_bytes(&bytes(seed, offset, found.len()), found, offset)
}

/// The length of `bytes`, and a sum of them in which places count.
pub fn digest(bytes: &[u8]) -> String {
    let step = |sum: u64, byte: &u8| (sum ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3);
    format!("{} {:016x}", bytes.len(), bytes.iter().fold(0xcbf2_9ce4_8422_2325, step))
}

/// Compares without printing megabytes.
///
/// # Errors
/// The lengths or the first wrong byte.
pub fn same_bytes(expected: &[u8], found: &[u8], offset: u64) -> Result<(), String> {
    if expected == found {
        return Ok(());
    }
    if expected.len() != found.len() {
        return Err(format!("{} bytes instead of {} at {offset}", found.len(), expected.len()));
    }
    let at = expected.iter().zip(found).position(|(a, b)| a != b).expect("they differ");
    let wrong = expected.iter().zip(found).filter(|(a, b)| a != b).count();
    Err(format!(
        "byte {} is {:#04x} instead of {:#04x}; {wrong} bytes are wrong",
        offset + at as u64,
        found[at],
        expected[at]
    ))
}

/// Writes a plain file with the content of this seed.
pub fn write_file(path: &Path, seed: u64, size: u64) {
    let mut file = File::create(path).expect("create a test file");
    let mut offset = 0;
    while offset < size {
        let chunk = bytes(seed, offset, (size - offset).min(8 << 20) as usize);
        file.write_all(&chunk).expect("write a test file");
        offset += chunk.len() as u64;
    }
}

/// A model as people have them: a few large matrices, small vectors between them, an odd length here and there. The
/// content of the tensor with index `i` has the seed `seed + i`.
///
/// `megabytes` is the size of all tensors together, roughly.
pub fn write_safetensors(path: &Path, seed: u64, megabytes: u64) {
    let large = 3.max(megabytes / 24) as usize;
    let each = ((megabytes << 20) as usize / large / 2) & !63;
    let mut shapes: Vec<(String, usize)> = Vec::new();
    for block in 0..large {
        shapes.push((format!("blocks.{block}.attn.qkv.weight"), each));
        shapes.push((format!("blocks.{block}.mlp.bias"), 1 + block * 37 % 3000));
    }
    let contents: Vec<(String, Vec<u8>)> = shapes
        .into_iter()
        .enumerate()
        .map(|(index, (name, elements))| (name, bytes(seed + index as u64, 0, elements * 2)))
        .collect();
    let views: HashMap<&str, TensorView<'_>> = contents
        .iter()
        .map(|(name, data)| {
            let view = TensorView::new(Dtype::F16, vec![data.len() / 2], data).expect("the shape fits the data");
            (name.as_str(), view)
        })
        .collect();
    let metadata = HashMap::from([("format".to_owned(), "pt".to_owned())]);
    safetensors::serialize_to_file(views, Some(metadata), path).expect("write a safetensors file");
}

/// A safetensors header that says whatever `json` says, of a length that `claimed` may lie about, and a body.
pub fn write_hostile_safetensors(path: &Path, claimed: u64, json: &str, body_seed: u64, body: u64) {
    let mut file = File::create(path).expect("create a test file");
    file.write_all(&claimed.to_le_bytes()).expect("write");
    file.write_all(json.as_bytes()).expect("write");
    file.write_all(&bytes(body_seed, 0, body as usize)).expect("write");
}

/// A file of a bit more than 4 GiB that takes almost no space: islands of content around the places where 32 bits end.
pub struct SparseFile {
    pub path: PathBuf,
    pub size: u64,
    seed: u64,
}

const ISLAND: u64 = 1 << 20;

impl SparseFile {
    pub fn create(path: &Path, seed: u64) -> SparseFile {
        let size = (4 << 30) + (5 << 20) + 123;
        let file = File::create(path).expect("create a sparse file");
        file.set_len(size).expect("a file system that knows sparse files");
        let sparse = SparseFile { path: path.to_owned(), size, seed };
        for start in sparse.islands() {
            let len = ISLAND.min(size - start) as usize;
            file.write_all_at(&bytes(seed, start, len), start).expect("write an island");
        }
        sparse
    }

    fn islands(&self) -> [u64; 4] {
        [0, (2 << 30) - ISLAND / 2, (4 << 30) - ISLAND / 2, self.size - ISLAND / 2]
    }

    /// Offsets worth reading at.
    pub fn edges(&self) -> Vec<u64> {
        let mut edges = vec![0, 1 << 30, u64::from(u32::MAX), 1 << 32, self.size - 4097, self.size - 1];
        edges.extend(self.islands());
        edges
    }

    /// What belongs at `offset..offset + len`, short at the end of the file.
    pub fn expected(&self, offset: u64, len: usize) -> Vec<u8> {
        let len = (self.size.saturating_sub(offset)).min(len as u64) as usize;
        let mut expected = vec![0; len];
        for start in self.islands() {
            let (from, to) = (start.max(offset), (start + ISLAND).min(offset + len as u64));
            if from < to {
                fill(self.seed, from, &mut expected[(from - offset) as usize..(to - offset) as usize]);
            }
        }
        expected
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_does_not_depend_on_how_it_is_cut() {
        let whole = bytes(7, 0, 100);
        for cut in 0..100 {
            assert_eq!(bytes(7, cut as u64, 100 - cut), whole[cut..], "from {cut}");
        }
        assert!(check(7, 13, &whole[13..]).is_ok());
        assert!(check(7, 12, &whole[13..]).is_err());
        assert!(check(8, 13, &whole[13..]).is_err());
    }

    #[test]
    fn a_sparse_file_is_what_it_says() {
        let folder = crate::system::temporary_folder("data");
        let sparse = SparseFile::create(&folder.path().join("big"), 3);
        let file = File::open(&sparse.path).expect("open");
        for edge in sparse.edges() {
            let mut found = vec![0; 9000];
            let n = file.read_at(&mut found, edge).expect("read");
            assert_eq!(same_bytes(&sparse.expected(edge, 9000), &found[..n], edge), Ok(()));
        }
    }
}
