//! Listings of directories whose positions mean nothing once they are opened anew: network and stacked file systems count
//! entries, as they are in what they have read. Such a directory is read whole when it is listed from its start, and what
//! was read is kept until the listing has come to its end.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use parking_lot::Mutex;
use rustix::fs::FileType;

/// Listings under way at the same time, and how long one may pause. Who comes later goes on at the same place in a new
/// look at the directory.
const MOST: usize = 64;
const PAUSE: Duration = Duration::from_secs(60);

/// A position is the number of the listing, and below it how many entries come before.
const INDEX_BITS: u32 = 32;
/// Positions are not negative for programs.
const NUMBERS: u64 = 0x7fff_ffff;

/// An entry as the source lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    pub name: OsString,
    pub kind: FileType,
    /// The source's number.
    pub inode: u64,
}

/// A listing under way.
#[derive(Clone, Debug)]
pub struct Snapshot {
    number: u64,
    entries: Arc<Vec<Listed>>,
    /// How many entries come before.
    from: usize,
}

impl Snapshot {
    /// What is left of it, each with the position after it.
    pub fn rest(&self) -> impl Iterator<Item = (&Listed, u64)> {
        let first = self.number << INDEX_BITS;
        self.entries.iter().zip(first + 1..).skip(self.from)
    }
}

#[derive(Debug)]
struct Kept {
    directory: u64,
    used: Instant,
    snapshot: Snapshot,
}

#[derive(Debug)]
pub struct Snapshots {
    kept: Mutex<VecDeque<Kept>>,
    next: Mutex<u64>,
}

impl Default for Snapshots {
    fn default() -> Self {
        // Positions of an earlier worker's listings are not taken for those of others.
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_millis() as u64;
        Self { kept: Mutex::default(), next: Mutex::new(now) }
    }
}

impl Snapshots {
    /// The listing that `position` is one of, if it is still known. Over once nothing is left of it.
    pub fn at(&self, directory: u64, position: u64) -> Option<Snapshot> {
        let mut kept = self.kept.lock();
        let is_it = |kept: &Kept| kept.directory == directory && kept.snapshot.number == position >> INDEX_BITS;
        let place = kept.iter().position(is_it)?;
        let mut found = kept.remove(place)?;
        found.snapshot.from = index(position);
        let snapshot = found.snapshot.clone();
        if snapshot.from < snapshot.entries.len() {
            found.used = Instant::now();
            kept.push_back(found);
        }
        Some(snapshot)
    }

    /// A listing that begins now, or goes on at `position` of one that is not known any more.
    pub fn take(&self, directory: u64, position: u64, entries: Vec<Listed>) -> Snapshot {
        let number = {
            let mut next = self.next.lock();
            *next = *next % NUMBERS + 1;
            *next
        };
        let snapshot = Snapshot { number, entries: Arc::new(entries), from: index(position) };
        let mut kept = self.kept.lock();
        if kept.len() >= MOST {
            kept.pop_front();
        }
        kept.push_back(Kept { directory, used: Instant::now(), snapshot: snapshot.clone() });
        snapshot
    }

    /// Lets go of listings that nobody goes on with.
    pub fn tidy(&self) {
        self.kept.lock().retain(|kept| kept.used.elapsed() < PAUSE);
    }
}

fn index(position: u64) -> usize {
    (position & ((1 << INDEX_BITS) - 1)) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entries(names: &[&str]) -> Vec<Listed> {
        let listed = |name: &&str| Listed { name: name.into(), kind: FileType::RegularFile, inode: 1 };
        names.iter().map(listed).collect()
    }

    fn rest(snapshot: &Snapshot) -> Vec<&str> {
        snapshot.rest().map(|(entry, _)| entry.name.to_str().unwrap()).collect()
    }

    #[test]
    fn each_listing_goes_on_in_what_it_began_with() {
        let snapshots = Snapshots::default();
        let first = snapshots.take(1, 0, entries(&["a", "b", "c"]));
        let second = snapshots.take(1, 0, entries(&["c"]));
        let position = first.rest().next().unwrap().1;
        assert!(position as i64 > 0);
        assert_eq!(rest(&snapshots.at(1, position).unwrap()), ["b", "c"]);
        assert_eq!(rest(&snapshots.at(1, position).unwrap()), ["b", "c"]);
        assert!(snapshots.at(2, position).is_none());
        let end = second.rest().last().unwrap().1;
        assert_eq!(rest(&snapshots.at(1, end).unwrap()), [""; 0]);
        assert!(snapshots.at(1, end).is_none());
    }

    #[test]
    fn a_listing_that_is_not_known_goes_on_at_the_same_place() {
        let snapshots = Snapshots::default();
        let position = snapshots.take(1, 0, entries(&["a", "b", "c"])).rest().nth(1).unwrap().1;
        for directory in 2..2 + MOST as u64 {
            snapshots.take(directory, 0, entries(&["x"]));
        }
        assert!(snapshots.at(1, position).is_none());
        let again = snapshots.take(1, position, entries(&["a", "b", "c", "d"]));
        assert_eq!(rest(&again), ["c", "d"]);
        assert_eq!(rest(&snapshots.take(1, position, entries(&["a"]))), [""; 0]);
    }

    #[test]
    fn who_pauses_for_long_is_not_waited_for() {
        let snapshots = Snapshots::default();
        let position = snapshots.take(1, 0, entries(&["a", "b"])).rest().next().unwrap().1;
        snapshots.tidy();
        assert!(snapshots.at(1, position).is_some());
        snapshots.kept.lock()[0].used -= PAUSE;
        snapshots.tidy();
        assert!(snapshots.at(1, position).is_none());
    }
}
