//! How far the kernel reads ahead in files of a disk: a setting of the machine that mappings depend on, natively.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use crate::error::{BenchError, Doing, Result};
use crate::machine;

/// What the kernel gives a disk that nobody has tuned (VM_READAHEAD_PAGES), in KiB.
pub const KERNELS_DEFAULT: u64 = 128;

/// The setting that was changed, and what it was.
static CHANGED: Mutex<Option<(PathBuf, String)>> = Mutex::new(None);

/// While it lives, the disk below some folder reads ahead so far.
#[derive(Debug)]
pub struct ReadAhead(());

impl ReadAhead {
    /// Of the disk below `folder`, in KiB, from here on.
    pub fn set(folder: &Path, kib: u64) -> Result<Self> {
        restore()?;
        let path = machine::read_ahead_setting(folder)
            .ok_or_else(|| BenchError::Unfit(format!("the disk below {} has no readahead", folder.display())))?;
        let before = fs::read_to_string(&path).doing(|| format!("read {}", path.display()))?;
        let mut changed = changed();
        fs::write(&path, kib.to_string()).doing(|| format!("write {}", path.display()))?;
        *changed = Some((path, before));
        Ok(Self(()))
    }
}

impl Drop for ReadAhead {
    fn drop(&mut self) {
        if let Err(error) = restore() {
            eprintln!("{error}");
        }
    }
}

/// Leaves the machine as it was found.
pub fn restore() -> Result<()> {
    match changed().take() {
        Some((path, before)) => fs::write(&path, before.trim()).doing(|| format!("write {}", path.display())),
        None => Ok(()),
    }
}

fn changed() -> std::sync::MutexGuard<'static, Option<(PathBuf, String)>> {
    // What is in it is whole at any time.
    CHANGED.lock().unwrap_or_else(PoisonError::into_inner)
}
