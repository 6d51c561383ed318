//! A private mapping, touched in order.

use std::fs::File;
use std::path::Path;

use weightfs::sys::mapping::PrivateMapping;

use crate::error::{Doing, Result};

/// Gives the bytes touched.
pub fn load(path: &Path) -> Result<u64> {
    let what = || format!("map {}", path.display());
    let file = File::open(path).doing(what)?;
    let size = file.metadata().doing(what)?.len();
    let mapping = PrivateMapping::of(&file).doing(what)?;
    // Loaders close the descriptor as soon as they have the mapping.
    drop(file);
    std::hint::black_box(mapping.touch_in_order());
    Ok(size)
}
