//! Directories. Nobody opens them: the kernel asks for the entries after a position, and each answer stands for itself. So
//! listings survive the worker, and a walk over folders that the kernel knows asks for nothing.

use std::ffi::OsStr;
use std::fs::File;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rustix::fs::{FileType, OFlags, RawDir, SeekFrom, Stat};
use rustix::io::Errno;

use super::{Caller, Fs};
use crate::attr::{Attr, Entry, SourceKey, Ttl};
use crate::error::FsError;
use crate::invalidate::Cause;
use crate::nodes::{Name, Node, ROOT};
use crate::snapshots::{Listed, Snapshot};
use crate::source::{has_access_list, has_lasting_positions, reopen};
use crate::walk_ahead::look_ahead;
use crate::watch;

/// How often, and after which time, a directory is looked for again that is not where it was: it is being moved.
const LOOKS: u32 = 20;
const MOVING: Duration = Duration::from_millis(5);

/// Bytes of entries that are read from the source at a time.
const BATCH: usize = 8 << 10;

/// What is remembered of a directory for who has it open: it may have gone, or be where nobody finds it.
#[derive(Debug, Default)]
pub struct DirectoryState(Mutex<Option<Box<Remembered>>>);

#[derive(Debug, Default)]
struct Remembered {
    /// Its attributes as the kernel was told of them last.
    attr: Option<Attr>,
    /// The directory whose listing in its place began last.
    successor: Option<SourceKey>,
}

impl DirectoryState {
    pub fn attr(&self) -> Option<Attr> {
        self.0.lock().as_ref()?.attr
    }

    pub fn told(&self, attr: Attr) {
        self.0.lock().get_or_insert_default().attr = Some(attr);
    }

    /// It was removed by way of the mount.
    pub fn removed(&self) {
        if let Some(attr) = self.0.lock().as_mut().and_then(|remembered| remembered.attr.as_mut()) {
            attr.links = 0;
        }
    }

    fn successor(&self) -> Option<SourceKey> {
        self.0.lock().as_ref()?.successor
    }

    fn succeeded_by(&self, key: SourceKey) {
        self.0.lock().get_or_insert_default().successor = Some(key);
    }
}

/// One entry.
#[derive(Clone, Copy, Debug)]
pub struct DirectoryEntry<'a> {
    pub name: &'a OsStr,
    pub kind: FileType,
    /// The source's number.
    inode: u64,
    /// The position after it.
    pub next: u64,
}

impl DirectoryEntry<'_> {
    /// `.` and `..`: never looked up.
    pub fn is_dots(&self) -> bool {
        self.name == "." || self.name == ".."
    }
}

/// A directory that is being listed.
#[derive(Clone, Copy, Debug)]
pub struct Listing<'a> {
    node: &'a Node,
    file: BorrowedFd<'a>,
    /// They are the entries of what has taken its place.
    of_successor: bool,
}

/// A directory that was opened to read its entries, or what has taken its place.
struct ToList {
    node: Arc<Node>,
    file: File,
    of_successor: bool,
}

impl Fs {
    /// Calls `each` for the entries of a directory after `position` (zero for the start), until it has enough and says
    /// so.
    pub fn list(
        self: &Arc<Self>,
        id: u64,
        position: u64,
        caller: &Caller,
        mut each: impl FnMut(&Listing<'_>, &DirectoryEntry<'_>) -> bool,
    ) -> Result<(), FsError> {
        let ToList { node, file, of_successor } = self.to_list(id, position == 0, caller)?;
        // Watched before it is read, so that no change falls in between.
        let is_told = !of_successor
            && self.watcher.as_ref().is_some_and(|watcher| {
                watcher.watch(node.id, file.as_fd());
                watcher.watches(node.id)
            });
        let listing = Listing { node: &node, file: file.as_fd(), of_successor };
        let (mut any, mut subdirectories) = (false, Vec::new());
        let mut full = |entry: &DirectoryEntry<'_>| {
            let full = each(&listing, entry);
            if !full {
                any = true;
                if entry.kind == FileType::Directory && !entry.is_dots() {
                    subdirectories.push(entry.name.to_owned());
                }
            }
            full
        };
        let counts_entries = node.key.device == self.root.key().device && !self.root.is_local();
        let result = if !counts_entries && has_lasting_positions(file.as_fd()) {
            read_on(&file, position, &mut full)
        } else {
            self.snapshot_of(&node, &file, position).map(|snapshot| {
                let _enough = snapshot.rest().any(|(listed, next)| {
                    let Listed { name, kind, inode } = listed;
                    full(&DirectoryEntry { name, kind: *kind, inode: *inode, next })
                });
            })
        };
        if !is_told {
            // The kernel keeps the entries until it is told of a change. The mount has ended if nobody hears this.
            let _ = self.expiries.send(Cause::Changed(watch::Change::Directory(node.id)));
        }
        self.walk_on(&node, position == 0, subdirectories);
        // What was read before an error is an answer, and the next one has the error.
        if any { Ok(()) } else { Ok(result?) }
    }

    /// A directory, opened to read its entries.
    fn to_list(&self, id: u64, from_start: bool, caller: &Caller) -> Result<ToList, FsError> {
        for look in 0..LOOKS {
            let node = self.node(id).ok().filter(|node| node.kind.is_dir()).ok_or(Errno::NOENT)?;
            let (opened, of_successor) = match self.locate(&node) {
                Ok((located, _)) => (Some(reopen(located.as_fd(), OFlags::RDONLY | OFlags::DIRECTORY)?), false),
                Err(FsError::Stale) => (self.successor(&node, from_start, caller), true),
                Err(error) => return Err(error),
            };
            if let Some(file) = opened {
                return Ok(ToList { node, file, of_successor });
            }
            if look + 1 < LOOKS {
                std::thread::sleep(MOVING);
            }
        }
        // Programs take "no such directory" for the end of a listing, and so it is if it was removed. One that was moved
        // to where nobody finds it must not look as if this were all.
        let is_there = self.watcher.as_ref().is_none_or(|watcher| watcher.watches(id));
        Err(if is_there { FsError::Stale } else { Errno::NOENT.into() })
    }

    /// What has taken the place of a directory of which the kernel has not been told that it is gone: who opened it is
    /// shown what it would have found a moment later. The kernel has looked at the rights of the other one, so this is
    /// only for who may list any.
    fn successor(&self, node: &Node, from_start: bool, caller: &Caller) -> Option<File> {
        self.nodes.paths(node).into_iter().find_map(|(base, path)| {
            let located = base.locate(&path).ok()?;
            let stat = rustix::fs::fstat(&located).ok()?;
            let key = SourceKey::of(&stat);
            let goes_on = if from_start {
                may_list_any(caller, &stat, located.as_fd())
            } else {
                node.directory.successor() == Some(key)
            };
            if !FileType::from_raw_mode(stat.st_mode).is_dir() || !goes_on {
                return None;
            }
            node.directory.succeeded_by(key);
            reopen(located.as_fd(), OFlags::RDONLY | OFlags::DIRECTORY).ok()
        })
    }

    fn snapshot_of(&self, node: &Node, file: &File, position: u64) -> Result<Snapshot, Errno> {
        let known = if position == 0 { None } else { self.snapshots.at(node.id, position) };
        if let Some(known) = known {
            return Ok(known);
        }
        let mut all = Vec::new();
        read_on(file, 0, &mut |entry| {
            all.push(Listed { name: entry.name.to_owned(), kind: entry.kind, inode: entry.inode });
            false
        })?;
        Ok(self.snapshots.take(node.id, position, all))
    }

    /// A directory was listed: those that are likely to be next are read ahead.
    fn walk_on(self: &Arc<Self>, directory: &Node, from_start: bool, subdirectories: Vec<std::ffi::OsString>) {
        self.walk_ahead.listed(directory.id, from_start, subdirectories);
        if !from_start {
            return;
        }
        let Some(Name { parent, name }) = directory.names().pop() else { return };
        for next in self.walk_ahead.read(parent, &name) {
            self.run_aside(parent, move |fs| {
                let Some(_place) = fs.walk_ahead.begin() else { return };
                let result = fs.directory(parent).map(|parent| look_ahead(parent.as_fd(), &next));
                tracing::trace!(parent, name = ?next, ?result, "read ahead of a walk");
            });
        }
    }

    /// The number that clients see of an entry.
    pub fn number_of(&self, listing: &Listing<'_>, entry: &DirectoryEntry<'_>) -> u64 {
        match entry.name.as_bytes() {
            b"." => listing.node.id,
            // The number matters to nobody; what lies above the root is nobody's business.
            b".." => ROOT,
            _ => self.nodes.id_of(SourceKey { device: listing.node.key.device, inode: entry.inode }),
        }
    }

    /// What is known of an entry, counted as a lookup unless it is `.` or `..`; None where it has gone meanwhile. Never
    /// under a resident number: the reply that carries it has one number for entry and node.
    pub fn entry_of(&self, listing: &Listing<'_>, entry: &DirectoryEntry<'_>) -> Result<Option<Entry>, FsError> {
        if entry.is_dots() {
            let stat = rustix::fs::fstat(listing.file)?;
            let node = self.number_of(listing, entry);
            return Ok(Some(Entry { node, generation: 0, attr: Attr::of(&stat, node), ttl: Ttl::NONE }));
        }
        match self.plain_entry(listing.node, listing.file, entry.name) {
            // For the kernel they lie in the directory that they do not lie in.
            Ok(entry) if listing.of_successor => Ok(Some(Entry { ttl: Ttl::NONE, ..entry })),
            Ok(entry) => Ok(Some(entry)),
            Err(FsError::Source(Errno::NOENT)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    pub fn fsyncdir(&self, id: u64, caller: &Caller) -> Result<(), FsError> {
        Ok(rustix::fs::fsync(self.to_list(id, false, caller)?.file)?)
    }
}

/// Calls `full` for what comes after `position` of a directory, until it says that it has enough.
fn read_on(file: &File, position: u64, full: &mut impl FnMut(&DirectoryEntry<'_>) -> bool) -> Result<(), Errno> {
    rustix::fs::seek(file, SeekFrom::Start(position))?;
    let mut buffer = [MaybeUninit::uninit(); BATCH];
    let mut entries = RawDir::new(file, &mut buffer);
    while let Some(entry) = entries.next() {
        let entry = entry?;
        let (name, next) = (OsStr::from_bytes(entry.file_name().to_bytes()), entry.next_entry_cookie());
        if full(&DirectoryEntry { name, kind: entry.file_type(), inode: entry.ino(), next }) {
            break;
        }
    }
    Ok(())
}

/// Whether `caller` may read the names in a directory, as far as that is known without its groups.
fn may_list_any(caller: &Caller, stat: &Stat, directory: BorrowedFd<'_>) -> bool {
    caller.uid == 0 || stat.st_mode & 0o444 == 0o444 && !has_access_list(directory)
}
