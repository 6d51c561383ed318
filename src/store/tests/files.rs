//! Model files whose every page says whose it is: of which file, which version of it, and where.

use std::fs::File;
use std::io::Write;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::fill::SourceFile;
use crate::ids::SourceIdentity;
use crate::store::{SETTLE, identity_of};

pub const PAGE: usize = 4096;

/// One page of a version of a file. The first one is the header of a safetensors file with tensors of 1 to 9 MiB.
pub fn page(file: u64, version: u64, number: u64, size: u64) -> [u8; PAGE] {
    let mut bytes = [0; PAGE];
    if number == 0 {
        header(file, version, size, &mut bytes);
        return bytes;
    }
    let seed = (file << 48 | version << 32 | number).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    for (index, word) in bytes.chunks_exact_mut(8).enumerate() {
        word.copy_from_slice(&(seed ^ (index as u64 + 1)).to_le_bytes());
    }
    bytes
}

fn header(file: u64, version: u64, size: u64, bytes: &mut [u8; PAGE]) {
    let data = size - PAGE as u64;
    let mut text = format!(r#"{{"__metadata__":{{"file":"{file}","version":"{version}"}}"#);
    let (mut start, mut number) = (0, 0);
    while start < data {
        let end = (start + (1 + (number * 5) % 9) * (1 << 20) + 12).min(data);
        text += &format!(r#","t{number}":{{"dtype":"U8","shape":[{}],"data_offsets":[{start},{end}]}}"#, end - start);
        (start, number) = (end, number + 1);
    }
    text.push('}');
    assert!(text.len() <= PAGE - 8, "the header does not fit");
    bytes[..8].copy_from_slice(&(PAGE as u64 - 8).to_le_bytes());
    bytes[8..].fill(b' ');
    bytes[8..8 + text.len()].copy_from_slice(text.as_bytes());
}

/// What the pages of `range` look like.
pub fn content(file: u64, version: u64, size: u64, range: &Range<u64>) -> Vec<u8> {
    let pages = range.start / PAGE as u64..range.end.div_ceil(PAGE as u64);
    let skipped = (range.start % PAGE as u64) as usize;
    let mut bytes: Vec<u8> = pages.flat_map(|number| page(file, version, number, size)).collect();
    bytes.truncate(skipped + (range.end - range.start) as usize);
    bytes.drain(..skipped);
    bytes
}

/// A folder on the disk that holds the working directory, gone with its owner.
pub struct Folder(tempfile::TempDir);

impl Folder {
    pub fn new() -> Self {
        Self(tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap())
    }

    /// A file of the first version, `size` bytes long.
    pub fn model(&self, number: u64, size: u64) -> Model {
        let path = self.0.path().join(format!("{number}.safetensors"));
        let model = Model { number, size, path };
        model.write(&model.path, 1);
        model
    }

    /// Waits until content that was written just now has settled.
    pub fn settle(&self) {
        std::thread::sleep(SETTLE + Duration::from_millis(50));
    }
}

/// A model file.
pub struct Model {
    pub number: u64,
    pub size: u64,
    pub path: PathBuf,
}

impl Model {
    /// A new file with the content of a version.
    pub fn write(&self, path: &PathBuf, version: u64) {
        let mut file = File::create(path).unwrap();
        file.write_all(&content(self.number, version, self.size, &(0..self.size))).unwrap();
        file.sync_all().unwrap();
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
    }

    /// Writes a version over what the file holds, a few pages at a time.
    pub fn overwrite(&self, version: u64) {
        let file = File::options().write(true).open(&self.path).unwrap();
        for start in (0..self.size).step_by(16 * PAGE) {
            let range = start..(start + 16 * PAGE as u64).min(self.size);
            file.write_all_at(&content(self.number, version, self.size, &range), start).unwrap();
        }
    }

    pub fn source(&self) -> Arc<SourceFile> {
        Arc::new(SourceFile::new(File::open(&self.path).unwrap()))
    }

    pub fn identity(&self) -> SourceIdentity {
        identity_of(File::open(&self.path).unwrap()).unwrap()
    }

    /// Whether `bytes` are those of the first version at `range`.
    pub fn check(&self, range: &Range<u64>, bytes: &[u8]) {
        assert!(bytes == content(self.number, 1, self.size, range), "wrong bytes in {range:?} of file {}", self.number);
    }
}
