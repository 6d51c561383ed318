//! Names to nodes, and what is known of them.

use std::ffi::OsStr;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use rustix::fs::{AtFlags, FileType, Stat};
use rustix::io::Errno;

use super::{Caller, Fs};
use crate::attr::{Attr, Entry, SourceKey, Ttl, identity};
use crate::error::FsError;
use crate::nodes::{AtHand, Node, Origin, RESIDENT_BIT, ROOT};
use crate::source::{birth_at, is_plain, stat_at};

/// How often a name is looked up again for who was sent back, while what it leads to changes.
const LOOKS: usize = 8;

impl Fs {
    pub fn lookup(&self, parent: u64, name: &OsStr, caller: &Caller) -> Result<Entry, FsError> {
        self.bounced.walks(caller.thread);
        match self.look_up(parent, name, caller) {
            Err(FsError::Stale) => self.once(parent, caller, Err(FsError::Stale)),
            found => found,
        }
    }

    fn look_up(&self, parent: u64, name: &OsStr, caller: &Caller) -> Result<Entry, FsError> {
        if !is_plain(name) {
            return Err(Errno::INVAL.into());
        }
        let node = self.node(parent)?;
        let (directory, _) = self.locate(&node)?;
        // Watched before it is looked at, so that no change falls in between.
        if let Some(watcher) = &self.watcher {
            watcher.watch(node.id, directory.as_fd());
        }
        let look = || match self.bounced.may_write(caller.thread) {
            true => self.plain_entry(&node, directory.as_fd(), name),
            false => self.entry(&node, directory.as_fd(), name),
        };
        if !self.bounced.looks_again(caller.thread) {
            return look();
        }
        let mut entry = look()?;
        let mut at_hand = self.at_hand(directory.as_fd(), name, &entry);
        for _ in 0..LOOKS {
            if at_hand.is_some() || !entry.attr.kind.is_file() {
                break;
            }
            // Replaced meanwhile.
            self.forget(entry.node, 1);
            entry = look()?;
            at_hand = self.at_hand(directory.as_fd(), name, &entry);
        }
        self.bounced.looked_up(caller.thread, entry.node, parent, name, at_hand);
        Ok(entry)
    }

    /// Keeps the file that was found under `name` at hand. None where the name leads to another by now.
    fn at_hand(&self, directory: BorrowedFd<'_>, name: &OsStr, found: &Entry) -> Option<AtHand> {
        let node = self.node(found.node).ok().filter(|node| node.kind.is_file())?;
        let fd = crate::source::open_at(directory, name).ok()?;
        let is_it = SourceKey::of(&rustix::fs::fstat(&fd).ok()?) == node.key;
        if is_it { AtHand::new(node, fd).ok() } else { None }
    }

    /// The entry `name` of a directory, counted as one more lookup, under the number that fits its next open.
    pub(super) fn entry(&self, parent: &Node, directory: BorrowedFd<'_>, name: &OsStr) -> Result<Entry, FsError> {
        let found = self.look(parent, directory, name)?;
        match self.found_resident(parent, name, &found)? {
            Some(entry) => Ok(entry),
            None => self.found(parent, name, found),
        }
    }

    /// As [`Fs::entry`], always under the file's own number. Where there is a resident one the kernel is to look again.
    pub(super) fn plain_entry(&self, parent: &Node, directory: BorrowedFd<'_>, name: &OsStr) -> Result<Entry, FsError> {
        let mut found = self.look(parent, directory, name)?;
        let is_file = FileType::from_raw_mode(found.stat.st_mode).is_file();
        if is_file && self.store.find(&identity(&found.stat)).is_some_and(|generation| self.is_numbered(&generation)) {
            found.ttl = Ttl::NONE;
        }
        self.found(parent, name, found)
    }

    fn look(&self, parent: &Node, directory: BorrowedFd<'_>, name: &OsStr) -> Result<Found, FsError> {
        let stat = stat_at(directory, name)?;
        if FileType::from_raw_mode(stat.st_mode).is_symlink()
            && let Some(follow) = &self.follow
            && let Some((origin, stat)) = follow.outside(directory, name, &stat)
        {
            // Nobody watches what lies outside.
            let ttl = Ttl { entry: super::UNWATCHED, attr: super::UNWATCHED };
            return Ok(Found { stat, origin: Some(origin), ttl, generation: 0 });
        }
        let is_directory = FileType::from_raw_mode(stat.st_mode).is_dir();
        let generation = if is_directory { generation_of(directory, name, &stat) } else { 0 };
        Ok(Found { stat, origin: None, ttl: self.ttl(parent, &stat), generation })
    }

    /// What a name leads to, links that are shown as what they point to included.
    pub(super) fn look_at(&self, directory: BorrowedFd<'_>, name: &OsStr) -> Result<Stat, FsError> {
        let stat = stat_at(directory, name)?;
        let is_link = FileType::from_raw_mode(stat.st_mode).is_symlink();
        let follow = self.follow.as_ref().filter(|_| is_link);
        Ok(follow.and_then(|follow| follow.outside(directory, name, &stat)).map_or(stat, |(_, target)| target))
    }

    fn found(&self, parent: &Node, name: &OsStr, found: Found) -> Result<Entry, FsError> {
        let Found { stat, origin, ttl, generation } = found;
        let kind = FileType::from_raw_mode(stat.st_mode);
        let node = self.nodes.found(SourceKey::of(&stat), kind, Some((parent.id, name)), origin)?;
        Ok(Entry { node: node.id, generation, attr: Attr::of(&stat, node.id), ttl })
    }

    /// The resident number of a file that is whole in the arena and that nobody is writing to.
    fn found_resident(&self, parent: &Node, name: &OsStr, found: &Found) -> Result<Option<Entry>, FsError> {
        let Found { stat, origin, ttl, .. } = found;
        let kind = FileType::from_raw_mode(stat.st_mode);
        if !kind.is_file() {
            return Ok(None);
        }
        let Some(generation) = self.store.find(&identity(stat)).filter(|generation| self.is_numbered(generation))
        else {
            return Ok(None);
        };
        // The file's own node stands behind every number of it, and is known as long as one of them is: the kernel, which
        // forgets the resident one, forgets it with that.
        let node = self.nodes.found(SourceKey::of(stat), kind, Some((parent.id, name)), origin.clone())?;
        let written = node.file.has_writers() || self.bounced.writes(node.key);
        let found = if written {
            Ok(None)
        } else {
            self.residents.found(&node.file, node.id, &generation, !self.has_passthrough()).map(Some)
        };
        if !matches!(found, Ok(Some(_))) {
            self.nodes.forget(node.id, 1);
        }
        let Some(id) = found? else { return Ok(None) };
        // The reply's number is the node's, so that the attributes must be asked for again: they have the file's own.
        let ttl = Ttl { attr: Duration::ZERO, ..*ttl };
        Ok(Some(Entry { node: id, generation: 0, attr: Attr::of(stat, id), ttl }))
    }

    pub fn forget(&self, id: u64, lookups: u64) {
        if id & RESIDENT_BIT == 0 {
            return self.nodes.forget(id, lookups);
        }
        if let Some(resident) = self.residents.get(id) {
            self.residents.forget(id, lookups);
            self.nodes.forget(resident.node, lookups);
        }
    }

    pub fn getattr(&self, id: u64, caller: &Caller) -> Result<(Attr, Duration), FsError> {
        let node = self.node(id)?;
        let (_, stat) = self.locate_for(id, &node, caller)?;
        let attr = Attr::of(&stat, node.id);
        if id & RESIDENT_BIT != 0 {
            // Who has an old content open sees its size and times, not those of what replaced it.
            let resident = self.residents.get(id).ok_or(FsError::Stale)?;
            if resident.generation.identity() != identity(&stat) {
                // The kernel drops what it keeps, and must not get the same again.
                self.store.doubt(node.key.device, node.key.inode);
            }
            let old = resident.snapshot(self.has_passthrough()).filter(|content| identity(&stat) != *content);
            return Ok((old.map_or(attr, |content| attr.as_of(&content)), Duration::ZERO));
        }
        Ok((attr, self.attr_ttl(&node, &stat)))
    }

    /// How long the kernel may believe a node's attributes.
    fn attr_ttl(&self, node: &Node, stat: &Stat) -> Duration {
        let parents: Vec<_> = node.names().iter().filter_map(|name| self.nodes.get(name.parent).ok()).collect();
        // The root has no name, and tells of its own changes.
        match parents.first() {
            Some(parent) => self.ttl(parent, stat).attr,
            None if node.id == ROOT => self.ttl(node, stat).attr,
            None => super::UNWATCHED,
        }
    }
}

/// A number made from when a directory was made. The source may give the inode number of a directory that was removed to
/// a new one before the kernel has let go of the old; without another generation it would take the new one for the old,
/// in which nothing can be made any more. Zero where the source does not know.
fn generation_of(directory: BorrowedFd<'_>, name: &OsStr, stat: &Stat) -> u32 {
    let found = birth_at(directory, name, AtFlags::SYMLINK_NOFOLLOW).filter(|(inode, _)| *inode == stat.st_ino);
    found.map_or(0, |(_, born)| (born.seconds as u32).wrapping_mul(0x9e37_79b1) ^ born.nanoseconds)
}

/// What a name leads to.
struct Found {
    stat: Stat,
    /// Where it is to be found again, if not by its name.
    origin: Option<Origin>,
    ttl: Ttl,
    generation: u32,
}
