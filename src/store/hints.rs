//! What clients know of the future: queues, marks of use, what is in VRAM, priorities, and a limit for now.
//!
//! Each has an owner, whose next word replaces its last, and an end: a client that dies is believed no longer than it
//! asked to be. Files that are spoken of stay known to the store until then.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use super::ahead::Ahead;
use super::{Generation, Opened, Store};
use crate::ids::{ExtentIndex, FileId};
use crate::pattern::Pattern;
use crate::residency::{Priority, Scope, Upcoming};
use crate::units::{ByteSize, extents_of};

/// The longest queue of one owner: beyond it nobody knows what comes.
pub const LONGEST_QUEUE: usize = 1024;

/// One load that is known to come.
#[derive(Clone, Debug)]
pub struct QueueEntry {
    pub file: Arc<Opened>,
    pub part: Part,
}

/// What of a file will be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    Whole,
    /// The tensors whose names match.
    Tensors(Pattern),
    /// Bytes of the file.
    Bytes(Vec<Range<u64>>),
}

/// What somebody said of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hint {
    pub owner: String,
    pub what: HintKind,
    /// How long it is still believed.
    pub left: Duration,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HintKind {
    /// It will be loaded: so many loads of the same owner come before it.
    Queued {
        place: usize,
    },
    InUse,
    /// This device holds all of it.
    InVram {
        device: String,
    },
    Priority(Priority),
}

/// A limit that cannot be kept.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{} are pinned: unpin some, or allow at least that much ({} were asked for)",
    ByteSize(*.pinned),
    ByteSize(*.asked)
)]
pub struct BelowPins {
    pub asked: u64,
    pub pinned: u64,
}

#[derive(Debug)]
struct Said<T> {
    what: T,
    /// On the store's clock.
    until: Duration,
}

type Files = Vec<Arc<Opened>>;
type Rated = (Arc<Opened>, Priority);

#[derive(Default)]
pub(super) struct Hints {
    said: Mutex<AllSaid>,
    pub(super) ahead: Ahead,
}

#[derive(Default)]
struct AllSaid {
    /// The policy's numbers of owners.
    numbers: BTreeMap<String, u64>,
    queues: BTreeMap<String, Said<Vec<QueueEntry>>>,
    in_use: BTreeMap<String, Said<Files>>,
    /// By owner and device.
    vram: BTreeMap<(String, String), Said<Files>>,
    /// By owner and file.
    priorities: BTreeMap<(String, FileId), Said<Rated>>,
    limit: Option<Said<u64>>,
}

impl Store {
    /// The loads that `owner` knows will come, in this order. They are read ahead in that order, as far as what is
    /// needed sooner leaves room, and what is needed last is evicted first. Beyond [`LONGEST_QUEUE`] nothing is looked
    /// at; an empty list takes back what was said. Reads the headers of files of which tensors are named.
    pub fn hint_queue(self: &Arc<Self>, owner: &str, mut entries: Vec<QueueEntry>, ttl: Duration) {
        entries.truncate(LONGEST_QUEUE);
        let upcoming: Vec<_> = entries.iter().map(|entry| self.upcoming(entry)).collect();
        let mut said = self.hints.said.lock();
        let next = said.numbers.len() as u64;
        let number = *said.numbers.entry(owner.to_owned()).or_insert(next);
        entries.iter().for_each(|entry| self.register(&entry.file.generation));
        self.residency.lock().set_queue(number, upcoming);
        let until = self.now() + ttl;
        let replaced = match entries.is_empty() {
            true => said.queues.remove(owner),
            false => said.queues.insert(owner.to_owned(), Said { what: entries, until }),
        };
        drop(said);
        // Files that nobody else has open are closed by this, for which no lock is held.
        drop(replaced);
        self.hints.ahead.encourage();
        self.read_queue_ahead();
    }

    /// `owner` uses these files now: they are evicted only where nothing else is left. Replaces its last word.
    pub fn mark_in_use(&self, owner: &str, files: Vec<Arc<Opened>>, ttl: Duration) {
        let mut said = self.hints.said.lock();
        let until = self.now() + ttl;
        let mut affected = ids(&files);
        let replaced = match files.is_empty() {
            true => said.in_use.remove(owner),
            false => said.in_use.insert(owner.to_owned(), Said { what: files, until }),
        };
        affected.extend(replaced.iter().flat_map(|before| ids(&before.what)));
        self.apply_in_use(&said, &affected);
        drop(said);
        drop(replaced);
    }

    /// Of these files `device` holds all that is read of them, for `owner`: they leave RAM first, and are as any others
    /// once they are no longer named. Replaces its last word on this device.
    pub fn hint_vram(self: &Arc<Self>, owner: &str, device: &str, files: Vec<Arc<Opened>>, ttl: Duration) {
        let mut said = self.hints.said.lock();
        let until = self.now() + ttl;
        let key = (owner.to_owned(), device.to_owned());
        let mut affected = ids(&files);
        let replaced = match files.is_empty() {
            true => said.vram.remove(&key),
            false => said.vram.insert(key, Said { what: files, until }),
        };
        affected.extend(replaced.iter().flat_map(|before| ids(&before.what)));
        self.apply_vram(&said, &affected);
        drop(said);
        drop(replaced);
        self.hints.ahead.encourage();
        self.read_queue_ahead();
    }

    /// How much a file matters to `owner`, for so long; of several owners the highest counts. `Normal` takes it back.
    pub fn set_priority(&self, owner: &str, file: Arc<Opened>, priority: Priority, ttl: Duration) {
        let mut said = self.hints.said.lock();
        let id = file.generation.file_id();
        let key = (owner.to_owned(), id);
        let until = self.now() + ttl;
        self.register(&file.generation);
        let replaced = match priority {
            Priority::Normal => said.priorities.remove(&key),
            _ => said.priorities.insert(key, Said { what: (file, priority), until }),
        };
        self.apply_priority(&said, id);
        drop(said);
        drop(replaced);
    }

    /// Keeps the arena under `bytes` for so long, whatever else would allow; None lifts that.
    ///
    /// # Errors
    /// Where more is pinned.
    pub fn set_limit(self: &Arc<Self>, bytes: Option<u64>, ttl: Duration) -> Result<(), BelowPins> {
        let pinned = self.residency.lock().pinned_bytes();
        if let Some(asked) = bytes.filter(|asked| *asked < pinned) {
            return Err(BelowPins { asked, pinned });
        }
        self.hints.said.lock().limit = bytes.map(|what| Said { what, until: self.now() + ttl });
        self.apply_limit(bytes);
        Ok(())
    }

    /// The limit that [`Store::set_limit`] has set, and how long it still holds.
    pub fn limit(&self) -> Option<(u64, Duration)> {
        let now = self.now();
        self.hints.said.lock().limit.as_ref().map(|limit| (limit.what, limit.until.saturating_sub(now)))
    }

    /// How many files are marked as in use, are queued, and are said to be in the memory of a GPU.
    pub fn hint_counts(&self) -> (usize, usize, usize) {
        let said = self.hints.said.lock();
        let files = |lists: &mut dyn Iterator<Item = usize>| lists.sum();
        (
            files(&mut said.in_use.values().map(|said| said.what.len())),
            files(&mut said.queues.values().map(|said| said.what.len())),
            files(&mut said.vram.values().map(|said| said.what.len())),
        )
    }

    /// What clients have said of a generation.
    pub fn hints_on(&self, generation: &Generation) -> Vec<Hint> {
        let (now, id) = (self.now(), generation.file_id());
        let said = self.hints.said.lock();
        let of_it = |opened: &Arc<Opened>| opened.generation.file_id() == id;
        let hint = |owner: &String, until: Duration, what| Hint {
            owner: owner.clone(),
            what,
            left: until.saturating_sub(now),
        };
        let queued = said.queues.iter().filter_map(|(owner, queue)| {
            let place = queue.what.iter().position(|entry| of_it(&entry.file))?;
            Some(hint(owner, queue.until, HintKind::Queued { place }))
        });
        let in_use = said.in_use.iter().filter(|(_, said)| said.what.iter().any(of_it));
        let in_use = in_use.map(|(owner, said)| hint(owner, said.until, HintKind::InUse));
        let vram = said.vram.iter().filter(|(_, said)| said.what.iter().any(of_it));
        let vram =
            vram.map(|((owner, device), said)| hint(owner, said.until, HintKind::InVram { device: device.clone() }));
        let priorities = said.priorities.iter().filter(|((_, file), _)| *file == id);
        let priorities = priorities.map(|((owner, _), said)| hint(owner, said.until, HintKind::Priority(said.what.1)));
        queued.chain(in_use).chain(vram).chain(priorities).collect()
    }

    /// Forgets what was said for a time that is over, and reads on what is queued.
    pub(super) fn look_at_hints(self: &Arc<Self>) {
        let now = self.now();
        let mut said = self.hints.said.lock();
        let queues = take_over(&mut said.queues, now);
        for (owner, _) in &queues {
            if let Some(number) = said.numbers.get(owner) {
                self.residency.lock().set_queue(*number, Vec::new());
            }
        }
        let in_use = take_over(&mut said.in_use, now);
        let affected = in_use.iter().flat_map(|(_, said)| ids(&said.what)).collect();
        self.apply_in_use(&said, &affected);
        let vram = take_over(&mut said.vram, now);
        let affected = vram.iter().flat_map(|(_, said)| ids(&said.what)).collect();
        self.apply_vram(&said, &affected);
        let priorities = take_over(&mut said.priorities, now);
        priorities.iter().for_each(|((_, id), _)| self.apply_priority(&said, *id));
        let limit = said.limit.take_if(|limit| limit.until <= now);
        let is_waited_for = !said.queues.is_empty();
        drop(said);
        drop((queues, in_use, vram, priorities));
        if limit.is_some() {
            self.apply_limit(None);
        }
        if is_waited_for {
            self.read_queue_ahead();
        }
    }

    /// Forgets everything: files that were spoken of are let go.
    pub(super) fn forget_hints(&self) {
        let said = std::mem::take(&mut *self.hints.said.lock());
        drop(said);
    }

    /// What is queued and still current.
    pub(super) fn queued_generations(&self) -> BTreeMap<FileId, Arc<Generation>> {
        let said = self.hints.said.lock();
        let generations = said.queues.values().flat_map(|queue| &queue.what).map(|entry| &entry.file.generation);
        generations.filter(|generation| !generation.is_dead()).map(|g| (g.file_id(), Arc::clone(g))).collect()
    }

    fn upcoming(self: &Arc<Self>, entry: &QueueEntry) -> Upcoming {
        let generation = &entry.file.generation;
        let extents = |ranges: Vec<Range<ExtentIndex>>| Scope::Extents(ranges.into_iter().collect());
        let scope = match &entry.part {
            Part::Whole => Scope::Whole,
            Part::Tensors(pattern) => extents(self.extents_named(generation, pattern)),
            Part::Bytes(ranges) => extents(ranges.iter().map(|range| within(range, generation.size)).collect()),
        };
        Upcoming { file: generation.file_id(), scope }
    }

    fn apply_in_use(&self, said: &AllSaid, affected: &BTreeSet<FileId>) {
        for id in affected {
            let marks = said.in_use.values().filter(|mark| ids(&mark.what).contains(id));
            let until = marks.map(|mark| mark.until).max().unwrap_or_default();
            self.know(said, *id);
            self.residency.lock().in_use(*id, until);
        }
    }

    fn apply_vram(&self, said: &AllSaid, affected: &BTreeSet<FileId>) {
        for id in affected {
            let in_vram = said.vram.values().any(|said| ids(&said.what).contains(id));
            self.know(said, *id);
            self.residency.lock().in_vram(*id, in_vram);
        }
    }

    fn apply_priority(&self, said: &AllSaid, id: FileId) {
        let of_it = said.priorities.iter().filter(|((_, file), _)| *file == id);
        let priority = of_it.map(|(_, said)| said.what.1).max().unwrap_or_default();
        self.residency.lock().set_priority(id, priority);
    }

    /// Makes a file known to the policy that it is to be told something of.
    fn know(&self, said: &AllSaid, id: FileId) {
        let named = said.in_use.values().chain(said.vram.values()).flat_map(|said| &said.what);
        if let Some(opened) = named.into_iter().find(|opened| opened.generation.file_id() == id) {
            self.register(&opened.generation);
        }
    }
}

/// Takes out what was said for a time that is over.
fn take_over<K: Ord, T>(said: &mut BTreeMap<K, Said<T>>, now: Duration) -> Vec<(K, Said<T>)> {
    let (over, lasting): (Vec<_>, Vec<_>) = std::mem::take(said).into_iter().partition(|(_, said)| said.until <= now);
    said.extend(lasting);
    over
}

fn ids(files: &[Arc<Opened>]) -> BTreeSet<FileId> {
    files.iter().map(|opened| opened.generation.file_id()).collect()
}

fn within(range: &Range<u64>, size: u64) -> Range<ExtentIndex> {
    let clipped = range.start.min(size)..range.end.min(size);
    if clipped.is_empty() { 0..0 } else { extents_of(&clipped) }
}
