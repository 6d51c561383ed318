//! Our words for attributes into the FUSE library's.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fuser::{FileAttr, INodeNo, TimeOrNow};
use rustix::fs::{FileType, Timespec};
use weightfs::ids::Timestamp;

use crate::attr::Attr;

pub fn attr(attr: &Attr) -> FileAttr {
    FileAttr {
        ino: INodeNo(attr.inode),
        size: attr.size,
        blocks: attr.blocks,
        atime: time(attr.accessed),
        mtime: time(attr.modified),
        ctime: time(attr.changed),
        crtime: UNIX_EPOCH,
        kind: kind(attr.kind),
        perm: attr.permissions,
        nlink: attr.links,
        uid: attr.owner,
        gid: attr.group,
        rdev: encoded(attr.device),
        blksize: attr.block_size,
        flags: 0,
    }
}

pub fn kind(kind: FileType) -> fuser::FileType {
    match kind {
        FileType::Directory => fuser::FileType::Directory,
        FileType::Symlink => fuser::FileType::Symlink,
        FileType::Fifo => fuser::FileType::NamedPipe,
        FileType::Socket => fuser::FileType::Socket,
        FileType::CharacterDevice => fuser::FileType::CharDevice,
        FileType::BlockDevice => fuser::FileType::BlockDevice,
        FileType::RegularFile | FileType::Unknown => fuser::FileType::RegularFile,
    }
}

/// A device number as the kernel's protocol has it (32 bits: minor low, major, minor high) to ours.
pub fn device(encoded: u32) -> u64 {
    let minor = encoded & 0xff | (encoded >> 12) & 0xfff00;
    rustix::fs::makedev((encoded >> 8) & 0xfff, minor)
}

fn encoded(device: u64) -> u32 {
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    minor & 0xff | (major << 8) | (minor & !0xff) << 12
}

fn time(time: Timestamp) -> SystemTime {
    let nanoseconds = Duration::from_nanos(u64::from(time.nanoseconds));
    match u64::try_from(time.seconds) {
        Ok(seconds) => UNIX_EPOCH + Duration::from_secs(seconds) + nanoseconds,
        Err(_) => UNIX_EPOCH - Duration::from_secs(time.seconds.unsigned_abs()) + nanoseconds,
    }
}

/// A time to set.
pub fn timespec(time: TimeOrNow) -> Timespec {
    match time {
        TimeOrNow::Now => Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_NOW },
        TimeOrNow::SpecificTime(time) => since_epoch(time),
    }
}

fn since_epoch(time: SystemTime) -> Timespec {
    match time.duration_since(UNIX_EPOCH) {
        Ok(after) => Timespec { tv_sec: after.as_secs() as i64, tv_nsec: i64::from(after.subsec_nanos()) },
        Err(before) => {
            let before = before.duration();
            let nanoseconds = i64::from(before.subsec_nanos());
            let borrow = i64::from(nanoseconds > 0);
            Timespec { tv_sec: -(before.as_secs() as i64) - borrow, tv_nsec: borrow * 1_000_000_000 - nanoseconds }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_numbers_survive_the_protocol() {
        for (major, minor) in [(1, 3), (8, 300), (253, 0xfffff), (0xfff, 255)] {
            let number = rustix::fs::makedev(major, minor);
            assert_eq!(device(encoded(number)), number);
        }
    }

    #[test]
    fn times_before_the_epoch_stay_what_they_are() {
        let at = time(Timestamp { seconds: -2, nanoseconds: 500_000_000 });
        assert_eq!(UNIX_EPOCH.duration_since(at).unwrap(), Duration::from_millis(1500));
    }
}
