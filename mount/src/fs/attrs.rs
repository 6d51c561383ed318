//! Attributes, extended attributes and the figures of the file system.

use std::ffi::OsStr;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

use rustix::fs::{AtFlags, FileType, Gid, Mode, OFlags, StatVfs, Timespec, Timestamps, Uid, XattrFlags};
use rustix::io::Errno;
use weightfs::control::CONTROL_XATTR;
use weightfs::ids::{SourceIdentity, Timestamp};

use super::{Caller, Fs};
use crate::attr::Attr;
use crate::bounce::Purpose;
use crate::error::FsError;
use crate::nodes::{Node, RESIDENT_BIT};
use crate::source::{proc_path, reopen};

/// How much of the arena holds a file, on every regular file: "RESIDENT/SIZE" in bytes.
const RESIDENT_XATTR: &str = "user.weightfs.resident";
/// What tells one content of a regular file from another, also after a restart. For comparisons only.
const GENERATION_XATTR: &str = "user.weightfs.generation";
/// Names of ours: answered by the daemon, never stored.
const OUR_XATTRS: &[u8] = b"user.weightfs.";

/// What is to change.
#[derive(Clone, Copy, Debug, Default)]
pub struct Change {
    pub mode: Option<u32>,
    pub owner: Option<u32>,
    pub group: Option<u32>,
    pub size: Option<u64>,
    /// `Timespec`s as utimensat takes them, UTIME_NOW included.
    pub accessed: Option<Timespec>,
    pub modified: Option<Timespec>,
}

impl Fs {
    pub fn setattr(
        &self,
        id: u64,
        handle: Option<u64>,
        change: &Change,
        caller: &Caller,
    ) -> Result<(Attr, Duration), FsError> {
        let purpose = if change.size.is_some() { Purpose::Write } else { Purpose::Unknown };
        self.last_of(id, caller, purpose, self.set(id, handle, change, caller))
    }

    fn set(&self, id: u64, handle: Option<u64>, change: &Change, caller: &Caller) -> Result<(Attr, Duration), FsError> {
        let node = self.node(id)?;
        if change.size.is_some() && id & RESIDENT_BIT != 0 && caller.thread != 0 {
            // This number stands for the content as it was. Who comes by a descriptor of it has no other.
            if self.bounced.second_try(caller.thread, id).is_none() {
                return Err(FsError::Stale);
            }
        }
        let (located, _) = self.locate_for(id, &node, caller)?;
        if let Some(size) = change.size {
            self.truncate(&node, located.as_fd(), handle, size)?;
        }
        let sets_modified = change.modified.is_some_and(|time| time.tv_nsec != rustix::fs::UTIME_OMIT);
        self.keeping(located.as_fd(), sets_modified, || {
            if change.owner.is_some() || change.group.is_some() {
                let (owner, group) = (change.owner.map(Uid::from_raw), change.group.map(Gid::from_raw));
                rustix::fs::chownat(&located, "", owner, group, AtFlags::EMPTY_PATH)?;
            }
            // After the owner: a change of owner takes set-id bits away that are asked for here.
            if let Some(mode) = change.mode {
                rustix::fs::chmod(proc_path(located.as_fd()), Mode::from_raw_mode(mode & 0o7777))?;
            }
            if change.accessed.is_some() || change.modified.is_some() {
                let omit = Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_OMIT };
                let times = Timestamps {
                    last_access: change.accessed.unwrap_or(omit),
                    last_modification: change.modified.unwrap_or(omit),
                };
                rustix::fs::utimensat(&located, "", &times, AtFlags::EMPTY_PATH)?;
            }
            Ok(())
        })?;
        self.getattr(id, caller)
    }

    fn truncate(&self, node: &Node, located: BorrowedFd<'_>, handle: Option<u64>, size: u64) -> Result<(), FsError> {
        self.store.invalidate(node.key.device, node.key.inode);
        let open = handle.map(|handle| self.handles.file(handle)).transpose()?.filter(|file| file.writable);
        match open {
            Some(file) => rustix::fs::ftruncate(file.source.file(), size)?,
            // Not O_NONBLOCK: for who holds writers off it is a moment, and else the error would be the client's.
            None => rustix::fs::ftruncate(reopen(located, OFlags::WRONLY)?, size)?,
        }
        // Whoever opened it in between saw content that was still being changed.
        self.store.invalidate(node.key.device, node.key.inode);
        self.written(node);
        Ok(())
    }

    pub fn access(&self, id: u64, caller: &Caller) -> Result<(), FsError> {
        // The kernel checks permissions itself; what is left to say is whether the file is there.
        self.locate_for(id, &*self.node(id)?, caller).map(drop)
    }

    pub fn statfs(&self) -> Result<StatVfs, FsError> {
        Ok(rustix::fs::fstatvfs(&*self.root)?)
    }

    /// The value of an extended attribute.
    pub fn getxattr(&self, id: u64, name: &OsStr, caller: &Caller) -> Result<Vec<u8>, FsError> {
        let node = self.node(id)?;
        if name == CONTROL_XATTR {
            return Ok(self.options.control_socket.as_os_str().as_bytes().to_vec());
        }
        let (located, stat) = self.locate_for(id, &node, caller)?;
        if name == RESIDENT_XATTR && node.kind.is_file() {
            let generation = self.store.find(&crate::attr::identity(&stat));
            let resident = generation.map_or(0, |generation| generation.resident_bytes());
            return Ok(format!("{}/{}", resident.min(stat.st_size as u64), stat.st_size).into_bytes());
        }
        if name == GENERATION_XATTR && node.kind.is_file() {
            // Who has an old content open is told of that.
            let snapshot = self.residents.get(id).and_then(|resident| resident.snapshot(self.has_passthrough()));
            let identity = snapshot.unwrap_or_else(|| crate::attr::identity(&stat));
            return Ok(generation_name(&identity).into_bytes());
        }
        if is_ours(name) {
            return Err(Errno::NODATA.into());
        }
        let path = xattr_path(&node, located.as_fd())?;
        let mut value = vec![0; rustix::fs::getxattr_query(&path, name)?];
        let length = rustix::fs::getxattr(&path, name, &mut value[..])?;
        value.truncate(length);
        Ok(value)
    }

    /// The names of all extended attributes, each followed by a zero byte. Those that only the daemon answers are not
    /// among them, so that copying a file with its attributes leaves them behind.
    pub fn listxattr(&self, id: u64, caller: &Caller) -> Result<Vec<u8>, FsError> {
        let node = self.node(id)?;
        let (located, _) = self.locate_for(id, &node, caller)?;
        if node.kind.is_symlink() {
            return Ok(Vec::new());
        }
        let path = proc_path(located.as_fd());
        let mut names = vec![0; rustix::fs::listxattr_query(&path)?];
        let length = rustix::fs::listxattr(&path, &mut names[..])?;
        names.truncate(length);
        Ok(names)
    }

    pub fn setxattr(&self, id: u64, name: &OsStr, value: &[u8], flags: u32, caller: &Caller) -> Result<(), FsError> {
        if is_ours(name) {
            return Err(Errno::PERM.into());
        }
        let node = self.node(id)?;
        let (located, _) = self.locate_for(id, &node, caller)?;
        let path = xattr_path(&node, located.as_fd())?;
        let flags = XattrFlags::from_bits_retain(flags);
        let set = self.keeping(located.as_fd(), false, || Ok(rustix::fs::setxattr(&path, name, value, flags)?));
        match set {
            // An earlier worker has made it.
            Err(FsError::Source(Errno::EXIST)) if caller.resent && self.getxattr(id, name, caller)? == value => Ok(()),
            set => set,
        }
    }

    pub fn removexattr(&self, id: u64, name: &OsStr, caller: &Caller) -> Result<(), FsError> {
        if is_ours(name) {
            return Err(Errno::PERM.into());
        }
        let node = self.node(id)?;
        let (located, _) = self.locate_for(id, &node, caller)?;
        let path = xattr_path(&node, located.as_fd())?;
        match self.keeping(located.as_fd(), false, || Ok(rustix::fs::removexattr(&path, name)?)) {
            // An earlier worker has removed it.
            Err(FsError::Source(Errno::NODATA)) if caller.resent => Ok(()),
            removed => removed,
        }
    }
}

fn generation_name(identity: &SourceIdentity) -> String {
    let SourceIdentity { device, inode, size, modified, changed } = identity;
    let time = |time: &Timestamp| format!("{}.{:09}", time.seconds, time.nanoseconds);
    format!("{device:x}:{inode:x}:{size}:{}:{}", time(modified), time(changed))
}

fn is_ours(name: &OsStr) -> bool {
    name.as_bytes().starts_with(OUR_XATTRS)
}

/// Attributes of links cannot be reached by descriptor, and user attributes of links do not exist.
fn xattr_path(node: &Node, fd: BorrowedFd<'_>) -> Result<std::path::PathBuf, FsError> {
    if node.kind == FileType::Symlink { Err(Errno::NOTSUP.into()) } else { Ok(proc_path(fd)) }
}
