//! Attributes of a file as its source has them, under the number by which the mount knows it.

use std::time::Duration;

use rustix::fs::{FileType, Stat};
use weightfs::ids::{SourceIdentity, Timestamp};
use weightfs::store::SMALLEST_MODEL;

/// What `stat` says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attr {
    /// The inode number that clients see.
    pub inode: u64,
    pub size: u64,
    /// Units of 512 bytes.
    pub blocks: u64,
    pub accessed: Timestamp,
    pub modified: Timestamp,
    pub changed: Timestamp,
    pub kind: FileType,
    /// Permission bits, with set-id and sticky bits.
    pub permissions: u16,
    pub links: u32,
    pub owner: u32,
    pub group: u32,
    pub device: u64,
    pub block_size: u32,
}

/// The answer to a lookup.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    /// The node's number: `attr.inode`, or the number of a resident generation.
    pub node: u64,
    /// Tells a directory from an earlier one of the same number: see `fs::lookup`.
    pub generation: u32,
    pub attr: Attr,
    pub ttl: Ttl,
}

/// How long the kernel may believe what it was told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ttl {
    pub entry: Duration,
    pub attr: Duration,
}

impl Ttl {
    pub const NONE: Self = Self { entry: Duration::ZERO, attr: Duration::ZERO };
}

/// A file of the source, wherever it is reached from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SourceKey {
    pub device: u64,
    pub inode: u64,
}

impl SourceKey {
    pub fn of(stat: &Stat) -> Self {
        Self { device: stat.st_dev, inode: stat.st_ino }
    }
}

/// The identity of the content that `stat` describes.
pub fn identity(stat: &Stat) -> SourceIdentity {
    SourceIdentity {
        device: stat.st_dev,
        inode: stat.st_ino,
        size: stat.st_size as u64,
        modified: timestamp(stat.st_mtime, stat.st_mtime_nsec),
        changed: timestamp(stat.st_ctime, stat.st_ctime_nsec),
    }
}

impl Attr {
    pub fn of(stat: &Stat, inode: u64) -> Self {
        Self {
            inode,
            size: stat.st_size as u64,
            blocks: stat.st_blocks as u64,
            accessed: timestamp(stat.st_atime, stat.st_atime_nsec),
            modified: timestamp(stat.st_mtime, stat.st_mtime_nsec),
            changed: timestamp(stat.st_ctime, stat.st_ctime_nsec),
            kind: FileType::from_raw_mode(stat.st_mode),
            permissions: (stat.st_mode & 0o7777) as u16,
            links: stat.st_nlink as u32,
            owner: stat.st_uid,
            group: stat.st_gid,
            device: stat.st_rdev,
            block_size: preferred_request(stat),
        }
    }

    /// The same file with the size and times of an earlier content.
    pub fn as_of(self, identity: &SourceIdentity) -> Self {
        let (size, blocks) = (identity.size, identity.size.div_ceil(512));
        Self { size, blocks, modified: identity.modified, changed: identity.changed, ..self }
    }
}

/// What programs should read at a time. Many take this for the size of their buffers: for a streamed model each of these
/// is a request, and small ones are slow.
fn preferred_request(stat: &Stat) -> u32 {
    let own = stat.st_blksize as u32;
    let is_model = FileType::from_raw_mode(stat.st_mode).is_file() && stat.st_size as u64 >= SMALLEST_MODEL;
    if is_model { own.max(1 << 20) } else { own }
}

fn timestamp(seconds: i64, nanoseconds: impl TryInto<u32>) -> Timestamp {
    Timestamp { seconds, nanoseconds: nanoseconds.try_into().unwrap_or(0) }
}
