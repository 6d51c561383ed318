//! How programs read model files.

pub mod helper;
mod map;
mod pread;
mod python;
pub mod turns;

use std::collections::HashMap;
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

pub use map::Held;
pub use pread::Pool;
pub use python::{Loader, Python};

use crate::data::execution_order;
use crate::error::{BenchError, Doing, Result};

/// Virtual environments with the packages of most loaders, and with those that bring torch.
pub const ENVIRONMENTS: [&str; 2] = [".venv", ".venv-bench"];

/// A way to load a whole model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reader {
    /// Eight threads that read pieces of up to 2 MiB at the tensors' own offsets, through one descriptor, in the order
    /// of the forward pass: comfy-aimdo.
    Pread,
    /// The same, and each piece is dropped from the page cache at once, as ComfyUI does by default.
    PreadAndDrop,
    /// A private mapping of the whole file that one thread touches in order: safetensors, and torch behind it.
    PrivateMap,
    /// A loader of a Python package.
    Python(Loader),
}

/// The readers, with what they keep between loads.
pub struct Readers {
    /// Made when it is needed: a process that only holds a model takes no buffers for it.
    pool: Option<Pool>,
    pythons: Vec<Python>,
    layouts: HashMap<PathBuf, Vec<Range<u64>>>,
}

/// A load that was timed.
#[derive(Clone, Copy, Debug)]
pub struct Loaded {
    pub time: Duration,
    /// Of the model: what the reader had to bring.
    pub bytes: u64,
}

impl Readers {
    /// `pythons` are asked in this order who has a loader.
    pub fn new(pythons: Vec<Python>) -> Self {
        Self { pool: None, pythons, layouts: HashMap::new() }
    }

    /// With the environments above `program`.
    pub fn beside(program: &Path) -> Self {
        Self::new(ENVIRONMENTS.iter().map(|name| Python::in_environment(name, program)).collect())
    }

    pub fn interpreters(&self) -> Vec<PathBuf> {
        self.pythons.iter().map(|python| python.interpreter().to_owned()).collect()
    }

    /// Why a reader cannot be used here, or with which packages it is.
    pub fn has(&mut self, reader: Reader) -> std::result::Result<String, String> {
        let Reader::Python(loader) = reader else { return Ok(String::new()) };
        let mut reasons = Vec::new();
        for python in &mut self.pythons {
            match python.has(loader) {
                Ok(words) => return Ok(words),
                Err(reason) => reasons.push(reason),
            }
        }
        Err(reasons.join("; "))
    }

    /// Loads the model at `path`, whose tensors lie at `tensors`.
    pub fn load(&mut self, reader: Reader, path: &Path, tensors: &[Range<u64>]) -> Result<Loaded> {
        let pool = match reader {
            Reader::Pread | Reader::PreadAndDrop => Some(self.pool.get_or_insert_default()),
            Reader::PrivateMap | Reader::Python(_) => None,
        };
        let start = Instant::now();
        let bytes = match (reader, pool) {
            (Reader::Pread | Reader::PreadAndDrop, Some(pool)) => {
                pool.load(path, tensors, reader == Reader::PreadAndDrop)?
            }
            // It times itself, without the way to its process and back.
            (Reader::Python(loader), _) => return self.python(loader)?.load(loader, path),
            _ => map::load(path)?,
        };
        Ok(Loaded { time: start.elapsed(), bytes })
    }

    /// The same, with the tensors as they lie in `layout`, a file with the same content. It is read the first time only.
    pub fn load_as(&mut self, reader: Reader, path: &Path, layout: &Path) -> Result<Loaded> {
        let tensors = match (reader, self.layouts.get(layout)) {
            (Reader::PrivateMap | Reader::Python(_), _) => Vec::new(),
            (_, Some(known)) => known.clone(),
            (_, None) => {
                let tensors = execution_order(layout)?;
                self.layouts.insert(layout.to_owned(), tensors.clone());
                tensors
            }
        };
        self.load(reader, path, &tensors)
    }

    fn python(&mut self, loader: Loader) -> Result<&mut Python> {
        let mut reasons = Vec::new();
        let place =
            self.pythons.iter_mut().position(|python| python.has(loader).map_err(|why| reasons.push(why)).is_ok());
        match place {
            Some(place) => Ok(&mut self.pythons[place]),
            None => Err(BenchError::Unfit(reasons.join("; "))),
        }
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
        let mut readers = Readers::new(Vec::new());
        for reader in [Reader::Pread, Reader::PreadAndDrop, Reader::PrivateMap] {
            assert_eq!(readers.load(reader, &path, &tensors).unwrap().bytes, 5 << 20, "{reader:?}");
        }
        assert!(readers.load(Reader::Python(Loader::Hash), &path, &tensors).is_err());
    }
}
