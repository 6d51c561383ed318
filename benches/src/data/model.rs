//! Model files as they are: written by the `safetensors` crate, with the tensors of a transformer.

use std::borrow::Cow;
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::Path;

use safetensors::tensor::{Dtype, Metadata, View};

use crate::error::{BenchError, Doing, Result};

/// Half precision: two bytes. Not bfloat16, of which numpy knows nothing.
const BYTES_OF_F16: usize = 2;

/// Widths of a layer, one of which makes a file of at least so many blocks.
const WIDTHS: [usize; 5] = [2048, 1024, 512, 256, 128];
const BLOCKS: u64 = 8;

/// The tensors of one block, in the order of the forward pass, as multiples of the width.
const PARTS: [(&str, &[usize]); 9] = [
    ("norm1.weight", &[1]),
    ("attn.q.weight", &[1, 1]),
    ("attn.k.weight", &[1, 1]),
    ("attn.v.weight", &[1, 1]),
    ("attn.proj.weight", &[1, 1]),
    ("attn.proj.bias", &[1]),
    ("norm2.weight", &[1]),
    ("mlp.up.weight", &[4, 1]),
    ("mlp.down.weight", &[1, 4]),
];

/// A tensor whose bytes are made when they are asked for, so that a model of any size takes little memory to write.
struct Weights {
    shape: Vec<usize>,
    seed: u64,
}

impl View for Weights {
    fn dtype(&self) -> Dtype {
        Dtype::F16
    }

    fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn data(&self) -> Cow<'_, [u8]> {
        let mut state = self.seed;
        let mut bytes = Vec::with_capacity(self.data_len());
        while bytes.len() < self.data_len() {
            bytes.extend_from_slice(&next(&mut state).to_le_bytes());
        }
        bytes.truncate(self.data_len());
        Cow::Owned(bytes)
    }

    fn data_len(&self) -> usize {
        self.shape.iter().product::<usize>() * BYTES_OF_F16
    }
}

/// SplitMix64: bytes that no layer below can compress or share.
pub(super) fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mixed = (*state ^ (*state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

/// Writes a model of about `size` bytes.
pub fn write(path: &Path, size: u64, seed: u64) -> Result<()> {
    let width = WIDTHS.into_iter().find(|width| block_bytes(*width) * BLOCKS <= size).unwrap_or(WIDTHS[4]);
    let blocks = (size / block_bytes(width)).max(1);
    let mut tensors = Vec::new();
    for block in 0..blocks {
        for (part, multiples) in PARTS {
            let shape = multiples.iter().map(|multiple| multiple * width).collect();
            let seed = seed << 32 | tensors.len() as u64;
            tensors.push((format!("blocks.{block}.{part}"), Weights { shape, seed }));
        }
    }
    safetensors::serialize_to_file(tensors, None, path)
        .map_err(|error| BenchError::Unfit(format!("cannot write {}: {error}", path.display())))?;
    // The crate lets nobody else read what it writes.
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o644))
        .doing(|| format!("let others read {}", path.display()))
}

fn block_bytes(width: usize) -> u64 {
    let elements = |multiples: &[usize]| multiples.iter().map(|multiple| multiple * width).product::<usize>();
    PARTS.iter().map(|(_, multiples)| (elements(multiples) * BYTES_OF_F16) as u64).sum()
}

/// Where the tensors of a model lie in its file, in bytes, in the order in which a forward pass wants them: block 2
/// before block 10. The file has them by name, block 10 before block 2.
pub fn execution_order(path: &Path) -> Result<Vec<Range<u64>>> {
    let what = || format!("read the header of {}", path.display());
    let file = File::open(path).doing(what)?;
    let mut length = [0; 8];
    file.read_exact_at(&mut length, 0).doing(what)?;
    let mut header = vec![0; u64::from_le_bytes(length) as usize];
    file.read_exact_at(&mut header, 8).doing(what)?;
    let metadata: Metadata = serde_json::from_slice(&header).doing(what)?;
    let start = 8 + header.len() as u64;
    let mut tensors: Vec<(u64, usize, Range<u64>)> = metadata
        .tensors()
        .into_iter()
        .map(|(name, info)| {
            let (block, part) = place_of(&name);
            (block, part, start + info.data_offsets.0 as u64..start + info.data_offsets.1 as u64)
        })
        .collect();
    tensors.sort_by_key(|(block, part, _)| (*block, *part));
    Ok(tensors.into_iter().map(|(_, _, range)| range).collect())
}

/// The block and the place in it. Names that are not ours come last.
fn place_of(name: &str) -> (u64, usize) {
    let mut words = name.splitn(3, '.').skip(1);
    let block = words.next().and_then(|word| word.parse().ok()).unwrap_or(u64::MAX);
    let part = words.next().and_then(|word| PARTS.iter().position(|(part, _)| *part == word)).unwrap_or(PARTS.len());
    (block, part)
}

#[cfg(test)]
mod tests {
    use super::*;
    use safetensors::SafeTensors;

    #[test]
    fn tensors_come_in_the_order_of_the_blocks_and_cover_the_data() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("m.safetensors");
        // Twelve blocks of the smallest width, so that their names sort otherwise than their numbers.
        write(&path, 12 * block_bytes(128), 1).unwrap();
        let order = execution_order(&path).unwrap();
        assert_eq!(order.len(), 12 * PARTS.len());
        let mut sorted = order.clone();
        sorted.sort_by_key(|range| range.start);
        assert_ne!(order, sorted);
        assert!(sorted.windows(2).all(|pair| pair[0].end == pair[1].start));
        assert_eq!(sorted.last().unwrap().end, std::fs::metadata(&path).unwrap().len());
        let bytes = std::fs::read(&path).unwrap();
        let model = SafeTensors::deserialize(&bytes).unwrap();
        let second = model.tensor("blocks.2.norm1.weight").unwrap();
        let range = &order[2 * PARTS.len()];
        assert_eq!(second.data(), &bytes[range.start as usize..range.end as usize]);
    }
}
