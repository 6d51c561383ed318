//! A private mapping, touched in order or here and there.

use std::fs::File;
use std::path::Path;
use std::time::{Duration, Instant};

use weightfs::sys::mapping::PrivateMapping;

use crate::error::{Doing, Result};

/// Gives the bytes touched.
pub fn load(path: &Path) -> Result<u64> {
    Ok(Held::of(path)?.touch())
}

/// A mapping of a whole file.
pub struct Held {
    mapping: PrivateMapping,
    size: u64,
}

impl Held {
    pub fn of(path: &Path) -> Result<Self> {
        let what = || format!("map {}", path.display());
        let file = File::open(path).doing(what)?;
        let size = file.metadata().doing(what)?.len();
        // Loaders close the descriptor as soon as they have the mapping.
        Ok(Self { mapping: PrivateMapping::of(&file).doing(what)?, size })
    }

    /// Touches all of it. Gives the bytes.
    pub fn touch(&self) -> u64 {
        std::hint::black_box(self.mapping.touch_in_order());
        self.size
    }

    /// The time of a touch of the word at `offset`.
    pub fn fault(&self, offset: u64) -> Duration {
        let start = Instant::now();
        std::hint::black_box(self.mapping.touch_at(offset as usize));
        start.elapsed()
    }
}
