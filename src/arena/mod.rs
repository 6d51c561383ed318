//! The arena: pinned RAM with one file per generation.
//!
//! Best is a tmpfs that is attached nowhere, with 2 MiB pages, `noswap` and a hard size: it needs CAP_SYS_ADMIN and
//! Linux 6.4. Else the files live in /dev/shm without a name, and are locked in memory as far as RLIMIT_MEMLOCK goes.
//! Files have no names in either: they vanish with the last process that holds them.

mod file;

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::{Mode, OFlags};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags};

pub use file::ArenaFile;

use crate::ids::GenerationId;

/// Where the pages come from, and so what they can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum Pages {
    /// A detached tmpfs: 2 MiB pages that are never swapped.
    Detached { huge: bool, never_swapped: bool },
    /// Files without a name in /dev/shm, locked up to a limit.
    Shared,
}

#[derive(Debug, thiserror::Error)]
pub enum ArenaError {
    #[error(
        "no memory for the arena: neither a tmpfs of our own ({detached}) nor /dev/shm ({shared}) can be used; mount a tmpfs on /dev/shm, or run as root"
    )]
    NoMemory { detached: io::Error, shared: io::Error },
    #[error("cannot make the arena file of {generation}: {source}")]
    File { generation: GenerationId, source: io::Error },
}

/// The directory of the arena files.
#[derive(Debug)]
pub struct Arena {
    directory: OwnedFd,
    pages: Pages,
    lock: Arc<file::LockBudget>,
}

impl Arena {
    /// An arena that can hold `size` bytes.
    ///
    /// # Errors
    /// Where there is no memory file system that we may use.
    pub fn create(size: u64) -> Result<Self, ArenaError> {
        let (directory, pages) = directory(size)?;
        Ok(Self::within(directory, pages))
    }

    /// An arena in a directory that [`directory`] has made.
    pub fn within(directory: OwnedFd, pages: Pages) -> Self {
        let limit = if pages == Pages::Shared { file::lock_limit() } else { 0 };
        Self { directory, pages, lock: Arc::new(file::LockBudget::new(limit)) }
    }

    /// What the arena is made of.
    pub fn pages(&self) -> Pages {
        self.pages
    }

    /// How many bytes may be locked in memory where the pages could otherwise be swapped.
    pub fn lock_limit(&self) -> u64 {
        self.lock.limit()
    }

    /// Makes the file of a generation of `size` bytes (not zero). Its pages come when they are touched.
    pub fn file(&self, generation: GenerationId, size: u64) -> Result<ArenaFile, ArenaError> {
        let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let mode = Mode::RUSR | Mode::WUSR;
        rustix::fs::openat(&self.directory, ".", flags | OFlags::TMPFILE, mode)
            .map_err(io::Error::from)
            .and_then(|fd| ArenaFile::new(File::from(fd), size, Arc::clone(&self.lock)))
            .map_err(|source| ArenaError::File { generation, source })
    }

    /// The file of a generation of `size` bytes that an earlier process made in this arena and filled in part.
    pub fn adopt(&self, file: OwnedFd, size: u64) -> io::Result<ArenaFile> {
        ArenaFile::adopt(File::from(file), size, Arc::clone(&self.lock))
    }

    /// Bytes of RAM in use, also by files that only clients hold; unknown (`None`) where the directory is shared with
    /// others.
    pub fn used_bytes(&self) -> io::Result<Option<u64>> {
        match self.pages {
            Pages::Shared => Ok(None),
            Pages::Detached { .. } => {
                let stat = rustix::fs::fstatfs(self.directory.as_fd())?;
                Ok(Some((stat.f_blocks - stat.f_bfree) * stat.f_bsize as u64))
            }
        }
    }
}

/// A directory for an arena that can hold `size` bytes, to be kept for as long as its files are to live.
///
/// # Errors
/// Where there is no memory file system that we may use.
pub fn directory(size: u64) -> Result<(OwnedFd, Pages), ArenaError> {
    detached(size)
        .or_else(|detached| Ok((shared().map_err(|shared| ArenaError::NoMemory { detached, shared })?, Pages::Shared)))
}

fn detached(size: u64) -> io::Result<(OwnedFd, Pages)> {
    let attempts = [(true, true), (true, false), (false, true), (false, false)];
    let mut last = io::Error::from(io::ErrorKind::Unsupported);
    for (huge, never_swapped) in attempts {
        match tmpfs(size, huge, never_swapped) {
            Ok(directory) => return Ok((directory, Pages::Detached { huge, never_swapped })),
            Err(error) => last = error,
        }
    }
    Err(last)
}

fn tmpfs(size: u64, huge: bool, never_swapped: bool) -> io::Result<OwnedFd> {
    let context = rustix::mount::fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    rustix::mount::fsconfig_set_string(&context, "size", size.to_string())?;
    rustix::mount::fsconfig_set_string(&context, "mode", "0700")?;
    if huge {
        rustix::mount::fsconfig_set_string(&context, "huge", "always")?;
    }
    if never_swapped {
        rustix::mount::fsconfig_set_flag(&context, "noswap")?;
    }
    rustix::mount::fsconfig_create(&context)?;
    let attributes =
        MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    Ok(rustix::mount::fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, attributes)?)
}

fn shared() -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(rustix::fs::open("/dev/shm", flags, Mode::empty())?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::EXTENT_SIZE;
    use std::os::unix::fs::FileExt;

    fn sizes(arena: &Arena) {
        let size = 2 * EXTENT_SIZE + 5;
        let file = arena.file(GenerationId(7), size).unwrap();
        assert_eq!(file.as_file().metadata().unwrap().len(), size);
        let mapping = file.mapping();
        mapping.target(0..3).copy_from_slice(b"abc");
        mapping.target(2 * EXTENT_SIZE as usize..2 * EXTENT_SIZE as usize + 5).copy_from_slice(b"tail.");
        let used = arena.used_bytes().unwrap();
        file.punch(&(0..1)).unwrap();
        assert_eq!(mapping.bytes(2 * EXTENT_SIZE as usize..size as usize), b"tail.");
        if let Some(used) = used {
            // The kernel takes no more than it needs beyond the end of a file.
            assert!((EXTENT_SIZE..=2 * EXTENT_SIZE).contains(&used));
            assert_eq!(arena.used_bytes().unwrap(), Some(used - EXTENT_SIZE));
        }
        // Looking at a hole through the mapping would bring a page again; a read does not.
        let mut read = [1; 3];
        file.as_file().read_exact_at(&mut read, 0).unwrap();
        assert_eq!(&read, b"\0\0\0");
        drop(file);
        assert_eq!(arena.used_bytes().unwrap(), used.map(|used| used - EXTENT_SIZE));
        drop(mapping);
        assert_eq!(arena.used_bytes().unwrap().unwrap_or(0), 0);
    }

    #[test]
    fn a_detached_arena_frees_what_is_punched_and_dropped() {
        match detached(64 << 20) {
            Ok((directory, pages)) => {
                sizes(&Arena { directory, pages, lock: Arc::new(file::LockBudget::new(0)) });
            }
            Err(error) => eprintln!("SKIPPED: a tmpfs of our own needs root: {error}"),
        }
    }

    #[test]
    fn a_shared_arena_holds_files_without_names() {
        let lock = Arc::new(file::LockBudget::new(4 << 20));
        sizes(&Arena { directory: shared().unwrap(), pages: Pages::Shared, lock });
    }
}
