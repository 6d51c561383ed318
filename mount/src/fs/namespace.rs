//! What changes names: made, linked, moved and taken away at once in the source.

use std::ffi::OsStr;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rustix::fs::{AtFlags, FileType, RenameFlags};
use rustix::io::Errno;
use weightfs::failpoint;
use weightfs::journal::FileKey;

use super::{Caller, Fs, NewMode};
use crate::attr::{Entry, SourceKey};
use crate::error::FsError;
use crate::source::{is_plain, proc_path, stat_at};

impl Fs {
    pub fn mknod(
        &self,
        parent: u64,
        name: &OsStr,
        mode: NewMode,
        device: u64,
        caller: &Caller,
    ) -> Result<Entry, FsError> {
        let kind = FileType::from_raw_mode(mode.mode);
        self.make(parent, name, caller, |directory| {
            rustix::fs::mknodat(directory, name, kind, mode.within(directory), device)
        })
    }

    /// Makes something that is not opened with it, and gives it to the caller.
    fn make(
        &self,
        parent: u64,
        name: &OsStr,
        caller: &Caller,
        make: impl FnOnce(BorrowedFd<'_>) -> Result<(), Errno>,
    ) -> Result<Entry, FsError> {
        plain(name)?;
        let parent = self.node(parent)?;
        let (directory, _) = self.locate(&parent)?;
        let before = [key_at(directory.as_fd(), name), None];
        let since = if self.made_before(caller, before) {
            // By an earlier worker, a moment ago.
            SystemTime::now().checked_sub(RESTART).unwrap_or(SystemTime::UNIX_EPOCH)
        } else {
            let since = SystemTime::now();
            self.step(caller, before, || Ok(make(directory.as_fd())?))?;
            since
        };
        failpoint::pass("create.made");
        self.give_by_name(directory.as_fd(), name, caller, since)?;
        self.entry(&parent, directory.as_fd(), name)
    }

    pub fn mkdir(&self, parent: u64, name: &OsStr, mode: NewMode, caller: &Caller) -> Result<Entry, FsError> {
        self.make(parent, name, caller, |directory| rustix::fs::mkdirat(directory, name, mode.within(directory)))
    }

    pub fn symlink(&self, parent: u64, name: &OsStr, target: &Path, caller: &Caller) -> Result<Entry, FsError> {
        self.make(parent, name, caller, |directory| rustix::fs::symlinkat(target, directory, name))
    }

    pub fn readlink(&self, id: u64) -> Result<PathBuf, FsError> {
        let (located, _) = self.locate(&*self.node(id)?)?;
        let target = rustix::fs::readlinkat(&located, "", Vec::new())?;
        Ok(PathBuf::from(OsStr::from_bytes(target.as_bytes())))
    }

    pub fn link(&self, id: u64, parent: u64, name: &OsStr, caller: &Caller) -> Result<Entry, FsError> {
        let node = self.node(id)?;
        let parent = self.node(parent)?;
        let (file, _) = self.locate(&node)?;
        let (directory, _) = self.locate(&parent)?;
        let name = plain(name)?;
        let before = [key_at(directory.as_fd(), name), None];
        if !self.made_before(caller, before) {
            let link = || {
                // By its descriptor: its name may lead elsewhere by now.
                let path = proc_path(file.as_fd());
                Ok(rustix::fs::linkat(rustix::fs::CWD, path, &directory, name, AtFlags::SYMLINK_FOLLOW)?)
            };
            self.step(caller, before, || self.keeping(file.as_fd(), false, link))?;
        }
        self.entry(&parent, directory.as_fd(), name)
    }

    pub fn unlink(&self, parent: u64, name: &OsStr, caller: &Caller) -> Result<(), FsError> {
        let parent = self.node(parent)?;
        let (directory, _) = self.locate(&parent)?;
        if let Some(outcome) = self.taken_before(caller, key_at(directory.as_fd(), name)) {
            return outcome;
        }
        let stat = stat_at(&directory, plain(name)?)?;
        let key = SourceKey::of(&stat);
        let named = crate::source::open_at(directory.as_fd(), name)?;
        self.step(caller, [Some(pair(key)), None], || {
            self.keeping(named.as_fd(), false, || Ok(rustix::fs::unlinkat(&directory, name, AtFlags::empty())?))
        })?;
        failpoint::pass("unlink.carried-out");
        if let Ok(node) = self.nodes.get(self.nodes.id_of(key)) {
            node.remove_name(parent.id, name);
            if stat.st_nlink == 1 && node.kept().is_none() {
                self.store.invalidate(key.device, key.inode);
            }
        }
        Ok(())
    }

    pub fn rmdir(&self, parent: u64, name: &OsStr, caller: &Caller) -> Result<(), FsError> {
        let directory = self.directory(parent)?;
        if let Some(outcome) = self.taken_before(caller, key_at(directory.as_fd(), name)) {
            return outcome;
        }
        let key = stat_at(&directory, plain(name)?).map(|stat| SourceKey::of(&stat))?;
        self.step(caller, [Some(pair(key)), None], || Ok(rustix::fs::unlinkat(&directory, name, AtFlags::REMOVEDIR)?))?;
        let id = self.nodes.id_of(key);
        if let Ok(node) = self.nodes.get(id) {
            node.remove_name(self.node(parent)?.id, name);
        }
        if let Some(watcher) = &self.watcher {
            watcher.forget(id);
        }
        Ok(())
    }

    pub fn rename(
        &self,
        parent: u64,
        name: &OsStr,
        new_parent: u64,
        new_name: &OsStr,
        flags: RenameFlags,
        caller: &Caller,
    ) -> Result<(), FsError> {
        let (from, to) = (self.node(parent)?, self.node(new_parent)?);
        let (from_directory, _) = self.locate(&from)?;
        let (to_directory, _) = self.locate(&to)?;
        let (name, new_name) = (plain(name)?, plain(new_name)?);
        let now = [key_at(from_directory.as_fd(), name), key_at(to_directory.as_fd(), new_name)];
        if let Some((outcome, moved)) = self.moved_before(caller, now, flags.contains(RenameFlags::EXCHANGE)) {
            if let Some(node) = moved.and_then(|key| self.nodes.get(self.nodes.id_of(key)).ok()) {
                node.remove_name(from.id, name);
                node.add_name(to.id, new_name);
            }
            return outcome;
        }
        let moved = stat_at(&from_directory, name)?;
        let replaced = stat_at(&to_directory, new_name).ok();
        let rename = || Ok(rustix::fs::renameat_with(&from_directory, name, &to_directory, new_name, flags)?);
        let moved_file = crate::source::open_at(from_directory.as_fd(), name)?;
        let before = [Some(pair(SourceKey::of(&moved))), now[1]];
        self.step(caller, before, || match crate::source::open_at(to_directory.as_fd(), new_name) {
            Ok(other) => self.keeping(other.as_fd(), false, || self.keeping(moved_file.as_fd(), false, rename)),
            Err(_) => self.keeping(moved_file.as_fd(), false, rename),
        })?;
        let exchanged = flags.contains(RenameFlags::EXCHANGE);
        if let Ok(node) = self.nodes.get(self.nodes.id_of(SourceKey::of(&moved))) {
            node.remove_name(from.id, name);
            node.add_name(to.id, new_name);
        }
        if let Some(replaced) = replaced
            && SourceKey::of(&replaced) != SourceKey::of(&moved)
        {
            let key = SourceKey::of(&replaced);
            let node = self.nodes.get(self.nodes.id_of(key)).ok();
            if let Some(node) = &node {
                node.remove_name(to.id, new_name);
                if exchanged {
                    node.add_name(from.id, name);
                }
            }
            let is_open = node.is_some_and(|node| node.kept().is_some());
            if !exchanged && replaced.st_nlink == 1 && !is_open {
                self.store.invalidate(key.device, key.inode);
            }
        }
        Ok(())
    }
}

/// Longer than it takes to replace a worker.
const RESTART: Duration = Duration::from_secs(60);

fn pair(key: SourceKey) -> FileKey {
    (key.device, key.inode)
}

/// What a name leads to, if anything.
pub(super) fn key_at(directory: BorrowedFd<'_>, name: &OsStr) -> Option<FileKey> {
    stat_at(directory, name).ok().map(|stat| pair(SourceKey::of(&stat)))
}

fn plain(name: &OsStr) -> Result<&OsStr, FsError> {
    if is_plain(name) { Ok(name) } else { Err(Errno::INVAL.into()) }
}
