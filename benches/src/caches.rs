//! The kernel's caches: emptied for a cold sample, and looked at to know that a sample was cold or warm.

use std::fs::File;
use std::path::Path;

use rustix::fs::Advice;
use weightfs::sys::cachestat;

use crate::error::{BenchError, Doing, Result};

const DROP_CACHES: &str = "/proc/sys/vm/drop_caches";

/// Page cache, dentries and inodes.
const EVERYTHING: &str = "3";

/// Writes back what is dirty and drops all that can be dropped, of every file system.
pub fn drop_all() -> Result<()> {
    rustix::fs::sync();
    std::fs::write(DROP_CACHES, EVERYTHING).map_err(|error| {
        BenchError::Unfit(format!("cold reads need the kernel's caches dropped, which only root may do ({error})"))
    })
}

/// Drops what the page cache holds of a file that nobody has mapped.
pub fn drop_file(path: &Path) -> Result<()> {
    let file = File::open(path).doing(|| format!("open {}", path.display()))?;
    rustix::fs::fadvise(&file, 0, None, Advice::DontNeed).doing(|| format!("drop {}", path.display()))
}

/// Whether the page cache holds the whole file. None where the kernel does not tell (before Linux 6.5).
pub fn holds(path: &Path) -> Result<Option<bool>> {
    let file = File::open(path).doing(|| format!("open {}", path.display()))?;
    let size = file.metadata().doing(|| format!("look at {}", path.display()))?.len();
    Ok(cachestat::all_cached(&file, 0, size))
}
