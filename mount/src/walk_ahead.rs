//! Walks over the tree: which directories come next, so that they are read before anyone asks for them.
//!
//! Programs that look for models read one directory after the other and look at every entry, and each of these waits for
//! the source. What is read ahead is answered to nobody: it leaves names and attributes in the kernel's caches.

use std::collections::{HashMap, HashSet, VecDeque};
use std::ffi::{OsStr, OsString};
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::fs::{AtFlags, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

/// How many directories are read ahead at a time.
const AHEAD: usize = 4;

/// Directories whose subdirectories are remembered, and how many of each.
const LISTED: usize = 16;
const SUBDIRECTORIES: usize = 100_000;

/// Of one directory no more entries are looked at.
const ENTRIES: usize = 10_000;

/// Where the first entries take less than this each, all is in the kernel's caches already.
const CACHED: Duration = Duration::from_micros(4);
const TRIED: u32 = 8;

#[derive(Debug, Default)]
pub struct WalkAhead {
    listed: Mutex<VecDeque<Listed>>,
    at_work: AtomicUsize,
}

/// The subdirectories of a directory, in the order in which it lists them.
#[derive(Debug)]
struct Listed {
    directory: u64,
    names: Vec<OsString>,
    places: HashMap<OsString, usize>,
    /// The places in the order of the names, and where each is in it.
    sorted: Vec<usize>,
    ranks: Vec<usize>,
    /// The place of the subdirectory that was read last.
    last: Option<usize>,
    /// Those that were read, or read ahead.
    known: HashSet<usize>,
}

impl Listed {
    fn new(directory: u64, names: Vec<OsString>) -> Self {
        let mut sorted: Vec<usize> = (0..names.len()).collect();
        sorted.sort_by(|a, b| names[*a].cmp(&names[*b]));
        let mut ranks = vec![0; names.len()];
        sorted.iter().enumerate().for_each(|(rank, place)| ranks[*place] = rank);
        let places = names.iter().cloned().zip(0..).collect();
        Self { directory, names, places, sorted, ranks, last: None, known: HashSet::new() }
    }

    fn read(&mut self, name: &OsStr) -> Vec<OsString> {
        let Some(place) = self.places.get(name).copied() else { return Vec::new() };
        let last = self.last.replace(place);
        self.known.insert(place);
        let rank = self.ranks[place];
        let next: Vec<usize> = if last.map_or(0, |last| last + 1) == place {
            (place + 1..self.names.len()).take(AHEAD).collect()
        } else if last.map_or(0, |last| self.ranks[last] + 1) == rank {
            self.sorted[rank + 1..].iter().copied().take(AHEAD).collect()
        } else {
            Vec::new()
        };
        next.into_iter().filter(|place| self.known.insert(*place)).map(|place| self.names[place].clone()).collect()
    }
}

impl WalkAhead {
    /// A directory was listed, with these subdirectories.
    pub fn listed(&self, directory: u64, subdirectories: Vec<OsString>) {
        if !(2..=SUBDIRECTORIES).contains(&subdirectories.len()) {
            return;
        }
        let new = Listed::new(directory, subdirectories);
        let mut listed = self.listed.lock();
        listed.retain(|known| known.directory != directory);
        listed.truncate(LISTED - 1);
        listed.push_front(new);
    }

    /// The subdirectory `name` of `directory` was listed. Names of those to read ahead now: that follow it, in the order
    /// in which they were read so far.
    pub fn read(&self, directory: u64, name: &OsStr) -> Vec<OsString> {
        let mut listed = self.listed.lock();
        listed.iter_mut().find(|known| known.directory == directory).map_or_else(Vec::new, |known| known.read(name))
    }

    /// A place among those who read ahead. None where there are enough.
    pub fn begin(&self) -> Option<AtWork<'_>> {
        let place = AtWork(self);
        (self.at_work.fetch_add(1, Ordering::AcqRel) < AHEAD).then_some(place)
    }
}

pub struct AtWork<'a>(&'a WalkAhead);

impl Drop for AtWork<'_> {
    fn drop(&mut self) {
        self.0.at_work.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Reads the directory `name` of `parent` and looks at its entries. Leaves no trace in its times, crosses into no other
/// file system, and stops where all is known to the kernel already.
pub fn look_ahead(parent: BorrowedFd<'_>, name: &OsStr) -> Result<(), Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::NOATIME | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
    let directory = rustix::fs::openat2(parent, name, flags, Mode::empty(), resolve)?;
    let mut entries = rustix::fs::Dir::read_from(&directory)?.take(ENTRIES);
    let look = |entry: Result<rustix::fs::DirEntry, Errno>| {
        // What has gone meanwhile, or cannot be looked at, is for who asks for it.
        let _ = rustix::fs::statat(&directory, entry?.file_name(), AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT);
        Ok(())
    };
    // The first has them all listed.
    entries.next().map_or(Ok(()), look)?;
    let started = Instant::now();
    entries.by_ref().take(TRIED as usize).try_for_each(look)?;
    if started.elapsed() < CACHED * TRIED {
        return Ok(());
    }
    entries.try_for_each(look)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(names: &[&str]) -> Vec<OsString> {
        names.iter().map(OsString::from).collect()
    }

    #[test]
    fn what_follows_is_read_ahead_once() {
        let ahead = WalkAhead::default();
        ahead.listed(1, names(&["d", "b", "f", "a", "e", "c"]));
        assert_eq!(ahead.read(1, OsStr::new("d")), names(&["b", "f", "a", "e"]));
        assert_eq!(ahead.read(1, OsStr::new("b")), names(&["c"]));
        assert_eq!(ahead.read(1, OsStr::new("f")), names(&[]));
        assert_eq!(ahead.read(2, OsStr::new("a")), names(&[]));
        // Listed again: from the start.
        ahead.listed(1, names(&["a", "b"]));
        assert_eq!(ahead.read(1, OsStr::new("a")), names(&["b"]));
    }

    #[test]
    fn walks_in_the_order_of_names_are_known_too() {
        let ahead = WalkAhead::default();
        ahead.listed(1, names(&["d", "b", "f", "a", "e", "c"]));
        assert_eq!(ahead.read(1, OsStr::new("a")), names(&["b", "c", "d", "e"]));
        assert_eq!(ahead.read(1, OsStr::new("b")), names(&["f"]));
    }

    #[test]
    fn who_reads_here_and_there_reads_alone() {
        let ahead = WalkAhead::default();
        ahead.listed(1, names(&["d", "b", "f", "a", "e", "c"]));
        for name in ["f", "d", "c", "a"] {
            assert_eq!(ahead.read(1, OsStr::new(name)), names(&[]), "{name}");
        }
        assert_eq!(ahead.read(1, OsStr::new("no such")), names(&[]));
    }

    #[test]
    fn only_so_many_directories_are_remembered() {
        let ahead = WalkAhead::default();
        (0..=LISTED as u64).for_each(|directory| ahead.listed(directory, names(&["a", "b"])));
        assert_eq!(ahead.read(0, OsStr::new("a")), names(&[]));
        assert_eq!(ahead.read(1, OsStr::new("a")), names(&["b"]));
        let taken: Vec<_> = std::iter::from_fn(|| ahead.begin()).collect();
        assert_eq!(taken.len(), AHEAD);
        drop(taken);
        assert!(ahead.begin().is_some());
    }

    #[test]
    fn looking_ahead_changes_nothing_and_follows_nothing() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("models")).unwrap();
        std::fs::write(folder.path().join("models/a"), "a").unwrap();
        std::os::unix::fs::symlink("models", folder.path().join("link")).unwrap();
        let parent = std::fs::File::open(folder.path()).unwrap();
        let look = |name: &str| look_ahead(std::os::fd::AsFd::as_fd(&parent), OsStr::new(name));
        assert_eq!(look("models"), Ok(()));
        assert!(look("link").is_err() && look("../").is_err() && look("models/a").is_err());
        assert_eq!(look("none"), Err(Errno::NOENT));
    }
}
