//! Watches the directories that the kernel knows, so that it may believe what it was told until something changes.
//!
//! Changes that are made on this machine behind the mount arrive through inotify, and the entries and attributes they
//! concern are made to expire. Network and stacked file systems change without telling: their directories are not
//! watched and what is said of them lives for less than a second. Expiry takes locks of the kernel that a request may be
//! holding, so it runs on a thread of its own.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

use parking_lot::RwLock;
use rustix::event::{EventfdFlags, PollFd, PollFlags};
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};

use crate::source::{SourceRoot, is_local, proc_path};

/// More than a few thousand folders of models nobody has; what lies beyond is believed for less than a second.
const MOST_WATCHES: usize = 16 << 10;

/// Something changed behind or through the mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// A name in a directory: what it leads to, or what is known of that.
    Entry { directory: u64, name: OsString },
    /// The directory itself.
    Directory(u64),
    /// Some changes were lost: anything may have changed.
    Everything,
}

#[derive(Debug)]
struct Table {
    by_watch: HashMap<i32, u64>,
    by_directory: HashMap<u64, i32>,
    full: bool,
}

#[derive(Debug)]
struct Shared {
    inotify: OwnedFd,
    stop: OwnedFd,
    table: RwLock<Table>,
}

/// The watched directories, by node number.
#[derive(Clone, Debug)]
pub struct Watcher {
    shared: Arc<Shared>,
}

/// Reports changes until the watcher is stopped.
#[derive(Debug)]
pub struct Changes {
    shared: Arc<Shared>,
}

impl Watcher {
    /// None where the file system of `root` changes without telling, or inotify is not to be had.
    pub fn new(root: &SourceRoot) -> Option<(Watcher, Changes)> {
        if !root.is_local() {
            return None;
        }
        let inotify = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).ok()?;
        let stop = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).ok()?;
        let table = RwLock::new(Table { by_watch: HashMap::new(), by_directory: HashMap::new(), full: false });
        let shared = Arc::new(Shared { inotify, stop, table });
        Some((Watcher { shared: Arc::clone(&shared) }, Changes { shared }))
    }

    /// Whether changes in this directory will be told.
    pub fn watches(&self, directory: u64) -> bool {
        self.shared.table.read().by_directory.contains_key(&directory)
    }

    /// Begins to watch a directory, if it can be.
    pub fn watch(&self, directory: u64, fd: BorrowedFd<'_>) {
        // Asked before the table is locked: a file system that is not local may not answer.
        if self.watches(directory) || !is_local(fd) {
            return;
        }
        let mut table = self.shared.table.write();
        if table.full || table.by_directory.contains_key(&directory) {
            return;
        }
        let flags = WatchFlags::CREATE
            | WatchFlags::DELETE
            | WatchFlags::MOVED_FROM
            | WatchFlags::MOVED_TO
            | WatchFlags::MODIFY
            | WatchFlags::ATTRIB
            | WatchFlags::CLOSE_WRITE
            | WatchFlags::DELETE_SELF
            | WatchFlags::MOVE_SELF
            | WatchFlags::ONLYDIR;
        match inotify::add_watch(&self.shared.inotify, proc_path(fd), flags) {
            Ok(watch) => {
                table.by_watch.insert(watch, directory);
                table.by_directory.insert(directory, watch);
                table.full = table.by_directory.len() >= MOST_WATCHES;
            }
            // Gone already, or not ours to read: believed for less than a second.
            Err(error) if !matches!(error, rustix::io::Errno::NOSPC | rustix::io::Errno::NOMEM) => {
                tracing::debug!(%error, "a directory cannot be watched");
            }
            Err(error) => {
                table.full = true;
                tracing::info!(%error, "no more directories can be watched; raise fs.inotify.max_user_watches");
            }
        }
    }

    /// The directory is gone.
    pub fn forget(&self, directory: u64) {
        let mut table = self.shared.table.write();
        if let Some(watch) = table.by_directory.remove(&directory) {
            table.by_watch.remove(&watch);
            // It may have gone with the directory already.
            let _ = inotify::remove_watch(&self.shared.inotify, watch);
        }
    }

    /// Ends [`Changes::run`].
    pub fn stop(&self) {
        // An eventfd that is written once takes it.
        let _ = rustix::io::write(&self.shared.stop, &1u64.to_ne_bytes());
    }
}

impl Changes {
    /// Calls `changed` for every change, on this thread, until the watcher is stopped.
    pub fn run(&self, mut changed: impl FnMut(Change)) {
        let mut buffer = [std::mem::MaybeUninit::uninit(); 16 << 10];
        let mut reader = inotify::Reader::new(&self.shared.inotify, &mut buffer);
        loop {
            match reader.next() {
                Ok(event) => self.report(&event, &mut changed),
                Err(rustix::io::Errno::INTR) => {}
                Err(rustix::io::Errno::AGAIN) => {
                    let (inotify, stop) = (self.shared.inotify.as_fd(), self.shared.stop.as_fd());
                    let mut wanted = [
                        PollFd::from_borrowed_fd(inotify, PollFlags::IN),
                        PollFd::from_borrowed_fd(stop, PollFlags::IN),
                    ];
                    // Interrupted or not: both are looked at again.
                    let _ = rustix::event::poll(&mut wanted, None);
                    if !wanted[1].revents().is_empty() {
                        return;
                    }
                }
                Err(error) => {
                    tracing::error!(%error, "changes behind the mount are no longer told");
                    self.forget_all();
                    return changed(Change::Everything);
                }
            }
        }
    }

    fn report(&self, event: &inotify::Event<'_>, changed: &mut impl FnMut(Change)) {
        let kind = event.events();
        if kind.contains(ReadFlags::QUEUE_OVERFLOW) {
            return changed(Change::Everything);
        }
        let Some(directory) = self.shared.table.read().by_watch.get(&event.wd()).copied() else { return };
        if kind.contains(ReadFlags::IGNORED) {
            let mut table = self.shared.table.write();
            table.by_watch.remove(&event.wd());
            table.by_directory.remove(&directory);
            return;
        }
        match event.file_name() {
            Some(name) => {
                let name = OsStr::from_bytes(name.to_bytes()).to_owned();
                changed(Change::Entry { directory, name });
                let renames = ReadFlags::CREATE | ReadFlags::DELETE | ReadFlags::MOVED_FROM | ReadFlags::MOVED_TO;
                if kind.intersects(renames) {
                    changed(Change::Directory(directory));
                }
            }
            None => changed(Change::Directory(directory)),
        }
    }

    fn forget_all(&self) {
        let mut table = self.shared.table.write();
        table.by_watch.clear();
        table.by_directory.clear();
        table.full = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_told_with_their_directory_and_name() {
        let folder = tempfile::tempdir().unwrap();
        let open = || std::fs::File::open(folder.path()).unwrap();
        let root = SourceRoot::open(folder.path()).unwrap();
        let Some((watcher, changes)) = Watcher::new(&root) else {
            eprintln!("SKIPPED: the temporary folder is on a file system that does not tell of changes");
            return;
        };
        watcher.watch(42, open().as_fd());
        assert!(watcher.watches(42) && !watcher.watches(43));
        std::fs::write(folder.path().join("new"), "x").unwrap();
        let mut seen = Vec::new();
        let stopper = watcher.clone();
        changes.run(|change| {
            seen.push(change);
            if seen.len() == 2 {
                stopper.stop();
            }
        });
        assert_eq!(seen[0], Change::Entry { directory: 42, name: "new".into() });
        assert_eq!(seen[1], Change::Directory(42));
        watcher.forget(42);
        assert!(!watcher.watches(42));
    }
}
