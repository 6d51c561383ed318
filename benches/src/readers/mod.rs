//! How programs read model files.

mod map;
mod pread;
mod python;
pub mod turns;

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

use serde::Serialize;

pub use pread::Pool;
pub use python::Python;

use crate::error::{Doing, Result};

/// A way to load a whole model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Reader {
    /// Eight threads that read pieces of up to 2 MiB at the tensors' own offsets, through one descriptor, in the order
    /// of the forward pass: comfy-aimdo.
    Pread,
    /// The same, and each piece is dropped from the page cache at once, as ComfyUI does by default.
    PreadAndDrop,
    /// A private mapping of the whole file that one thread touches in order: safetensors, and torch behind it.
    PrivateMap,
    /// The safetensors package for Python with numpy.
    Safetensors,
}

/// The readers, with what they keep between loads.
pub struct Readers {
    pool: Pool,
    /// Why there is none, where there is none.
    pub python: std::result::Result<Python, String>,
}

/// A load that was timed.
#[derive(Clone, Copy, Debug)]
pub struct Loaded {
    pub time: Duration,
    /// Of the model: what the reader had to bring.
    pub bytes: u64,
}

impl Readers {
    pub fn new(python: std::result::Result<Python, String>) -> Self {
        Self { pool: Pool::new(), python }
    }

    /// Loads the model at `path`, whose tensors lie at `tensors`.
    pub fn load(&mut self, reader: Reader, path: &Path, tensors: &[Range<u64>]) -> Result<Loaded> {
        let start = Instant::now();
        let bytes = match reader {
            Reader::Pread => self.pool.load(path, tensors, false)?,
            Reader::PreadAndDrop => self.pool.load(path, tensors, true)?,
            Reader::PrivateMap => map::load(path)?,
            // It times itself, without the way to its process and back.
            Reader::Safetensors => return python::load(&mut self.python, path),
        };
        Ok(Loaded { time: start.elapsed(), bytes })
    }
}

/// Opens a file and reads some bytes of it. Gives the time that took.
pub fn first_bytes(path: &Path, offset: u64, buffer: &mut [u8]) -> Result<Duration> {
    let start = Instant::now();
    let file = File::open(path).doing(|| format!("open {}", path.display()))?;
    file.read_exact_at(buffer, offset).doing(|| format!("read {}", path.display()))?;
    Ok(start.elapsed())
}

/// A sum over all bytes and their places: two files that have the same are the same for all that can go wrong here.
pub fn digest(path: &Path) -> Result<u64> {
    let what = || format!("read {}", path.display());
    let file = File::open(path).doing(what)?;
    let mut buffer = vec![0; 2 << 20];
    let (mut offset, mut sum) = (0, 0u64);
    loop {
        let length = file.read_at(&mut buffer, offset).doing(what)?;
        if length == 0 {
            return Ok(sum);
        }
        for (index, byte) in buffer[..length].iter().enumerate() {
            let place = (offset + index as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
            sum = sum.wrapping_add(place.wrapping_mul(u64::from(*byte)));
        }
        offset += length as u64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_sees_bytes_that_changed_places() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("f");
        let of = |bytes: &[u8]| {
            std::fs::write(&path, bytes).unwrap();
            digest(&path).unwrap()
        };
        assert_eq!(of(b"abcd"), of(b"abcd"));
        assert_ne!(of(b"abcd"), of(b"abdc"));
        assert_ne!(of(b"abcd"), of(b"abc"));
    }

    #[test]
    fn each_reader_brings_the_whole_model() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("m");
        std::fs::write(&path, vec![1; 5 << 20]).unwrap();
        // The header is what lies before the first tensor.
        let tensors = [3 << 20..5 << 20, 100..3 << 20];
        let mut readers = Readers::new(Err("not wanted".to_owned()));
        for reader in [Reader::Pread, Reader::PreadAndDrop, Reader::PrivateMap] {
            assert_eq!(readers.load(reader, &path, &tensors).unwrap().bytes, 5 << 20, "{reader:?}");
        }
        assert!(readers.load(Reader::Safetensors, &path, &tensors).is_err());
    }
}
