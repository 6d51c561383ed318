//! The folder under the mount. Every path is resolved beneath it by the kernel, without following a link.

use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Mode, OFlags, ResolveFlags, Stat, StatxFlags};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use weightfs::ids::Timestamp;

use crate::attr::SourceKey;

/// A directory that was opened before anything was mounted over it.
#[derive(Debug)]
pub struct SourceRoot {
    root: OwnedFd,
    facts: Facts,
}

/// What is known of a root since it was opened, and may be asked for without waiting for the source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Facts {
    device: u64,
    inode: u64,
    owner: u32,
    local: bool,
}

/// Local file systems, on which every change is made by this kernel: ext, XFS, Btrfs, F2FS, tmpfs, ZFS, bcachefs.
const LOCAL: [rustix::fs::FsWord; 7] =
    [0xEF53, 0x5846_5342, 0x9123_683E, 0xF2F5_2010, 0x0102_1994, 0x2FC1_2FC1, 0xCA45_1A4E];

impl SourceRoot {
    /// # Errors
    /// Where `path` is no directory that we may enter.
    pub fn open(path: &Path) -> Result<Self, Errno> {
        let root = rustix::fs::open(path, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        Self::of(root)
    }

    /// As [`SourceRoot::open`], for an absolute path that has no links in it: one that has by now is refused.
    pub fn open_plain(path: &Path) -> Result<Self, Errno> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::openat2(rustix::fs::CWD, path, flags, Mode::empty(), ResolveFlags::NO_SYMLINKS)?;
        Self::of(root)
    }

    fn of(root: OwnedFd) -> Result<Self, Errno> {
        let stat = rustix::fs::fstat(&root)?;
        let SourceKey { device, inode } = SourceKey::of(&stat);
        let local = is_local(root.as_fd());
        Ok(Self { root, facts: Facts { device, inode, owner: stat.st_uid, local } })
    }

    /// A directory that another process has opened. Does not wait for the source.
    pub fn known(root: OwnedFd, facts: Facts) -> Self {
        Self { root, facts }
    }

    pub fn facts(&self) -> Facts {
        self.facts
    }

    pub fn key(&self) -> SourceKey {
        SourceKey { device: self.facts.device, inode: self.facts.inode }
    }

    /// The user whose directory it was when it was opened.
    pub fn owner(&self) -> u32 {
        self.facts.owner
    }

    /// Whether its file system tells of every change.
    pub fn is_local(&self) -> bool {
        self.facts.local
    }

    /// Opens what lies at `path` beneath the root (the root itself for an empty path).
    ///
    /// No link is followed on the way, and nothing outside can be reached even if directories move meanwhile. A link at
    /// the end is opened itself with `O_PATH`, and is ELOOP otherwise.
    pub fn open_beneath(&self, path: &Path, flags: OFlags, mode: Mode) -> Result<OwnedFd, Errno> {
        let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS | ResolveFlags::NO_SYMLINKS;
        // EAGAIN: a rename somewhere in the system kept the kernel from proving that the path stayed beneath.
        for _ in 0..64 {
            match rustix::fs::openat2(&self.root, path, flags | OFlags::CLOEXEC | OFlags::NOFOLLOW, mode, resolve) {
                Err(Errno::AGAIN | Errno::INTR) => std::thread::yield_now(),
                result => return result,
            }
        }
        Err(Errno::AGAIN)
    }

    /// A descriptor that names the file without opening it.
    pub fn locate(&self, path: &Path) -> Result<OwnedFd, Errno> {
        self.open_beneath(path, OFlags::PATH, Mode::empty())
    }
}

impl From<SourceRoot> for OwnedFd {
    fn from(root: SourceRoot) -> Self {
        root.root
    }
}

impl AsFd for SourceRoot {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.root.as_fd()
    }
}

/// Whether every change of what lies there is made by this kernel, which tells of it.
pub fn is_local(fd: BorrowedFd<'_>) -> bool {
    rustix::fs::fstatfs(fd).is_ok_and(|statfs| LOCAL.contains(&statfs.f_type))
}

/// `name` in `directory`, a link not followed.
pub fn stat_at(directory: impl AsFd, name: &OsStr) -> Result<Stat, Errno> {
    rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW)
}

/// The number of what a name leads to, and when it was made. None where the source does not know.
pub fn birth_at(directory: impl AsFd, name: &OsStr, flags: AtFlags) -> Option<(u64, Timestamp)> {
    let found = rustix::fs::statx(directory, name, flags, StatxFlags::BTIME | StatxFlags::INO).ok()?;
    let born = Timestamp { seconds: found.stx_btime.tv_sec, nanoseconds: found.stx_btime.tv_nsec };
    (found.stx_mask & StatxFlags::BTIME.bits() != 0).then_some((found.stx_ino, born))
}

/// When an open file was made.
pub fn birth(file: BorrowedFd<'_>) -> Option<Timestamp> {
    birth_at(file, OsStr::new(""), AtFlags::EMPTY_PATH).map(|(_, at)| at)
}

/// The path by which this process reaches an open descriptor, for calls that take only paths.
pub fn proc_path(fd: BorrowedFd<'_>) -> PathBuf {
    use std::os::fd::AsRawFd;
    PathBuf::from(format!("/proc/self/fd/{}", fd.as_raw_fd()))
}

/// Opens for reading or writing what an `O_PATH` descriptor names.
pub fn reopen(fd: BorrowedFd<'_>, flags: OFlags) -> Result<File, Errno> {
    rustix::fs::open(proc_path(fd), flags | OFlags::CLOEXEC, Mode::empty()).map(File::from)
}

/// A name that a directory entry can have.
pub fn is_plain(name: &OsStr) -> bool {
    let bytes = name.as_bytes();
    !bytes.is_empty() && bytes != b"." && bytes != b".." && !bytes.contains(&b'/')
}

/// A descriptor that names `name` in `directory`, itself and not what a link points to.
pub fn open_at(directory: BorrowedFd<'_>, name: &OsStr) -> Result<OwnedFd, Errno> {
    rustix::fs::openat(directory, name, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())
}
