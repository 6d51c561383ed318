//! What the store says of single files, and what it tells as it happens.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use super::headers::read_header;
use super::{Generation, Store};
use crate::fill::Class;
use crate::format::{Format, TensorMap};
use crate::ids::{ExtentIndex, SourceIdentity};
use crate::machine::{Machine, Reading};
use crate::predict::OpenKind;
use crate::pressure::BudgetReason;
use crate::residency::{EvictReason, ExtentSet, Glance};
use crate::units::extent_bytes;

/// Something that happened, for whoever watches. Told on threads of the store, which must not be kept waiting.
#[derive(Clone, Debug)]
pub enum StoreEvent {
    /// All of a file is resident now.
    Filled(Arc<Generation>),
    /// Bytes of a file were freed, because somebody asked for it if there is no reason.
    Evicted { generation: Arc<Generation>, bytes: u64, reason: Option<EvictReason> },
    /// The budget is this many bytes now.
    Budget { bytes: u64, reason: BudgetReason },
}

pub type Witness = Box<dyn Fn(StoreEvent) + Send + Sync>;

/// What is known of one content of a file.
#[derive(Clone, Debug, Default)]
pub struct FileReport {
    pub resident: u64,
    /// Being read into the arena now.
    pub filling: u64,
    /// Programs have it open or mapped.
    pub held: bool,
    /// What the policy knows of it, if it does. Times are on the clock of [`Store::clock`].
    pub policy: Option<Glance>,
    pub format: Option<Format>,
    pub last_open: Option<OpenKind>,
}

/// A file that is being filled.
#[derive(Clone, Debug)]
pub struct FillReport {
    pub generation: Arc<Generation>,
    /// Bytes that are there, and bytes on their way.
    pub resident: u64,
    pub filling: u64,
    /// The most urgent one that waits for it.
    pub class: Class,
    /// Bytes per second of its device, lately.
    pub speed: Option<u64>,
}

impl Store {
    /// Who is told of what happens; the first call counts.
    pub fn watch(&self, witness: Witness) {
        // As with the listener: there is one of them.
        let _ = self.witness.set(witness);
    }

    pub(super) fn happened(&self, event: StoreEvent) {
        if let Some(witness) = self.witness.get() {
            witness(event);
        }
    }

    /// The current contents of all files that are open or have something in the arena.
    pub fn generations(&self) -> Vec<Arc<Generation>> {
        self.generations.lock().values().cloned().collect()
    }

    /// Bytes of former contents that clients hold, by device and inode of the file.
    pub fn client_held(&self) -> HashMap<(u64, u64), u64> {
        let mut held = HashMap::new();
        for generation in self.ended.lock().iter() {
            let identity = generation.identity();
            *held.entry((identity.device, identity.inode)).or_insert(0) += generation.resident_bytes();
        }
        held
    }

    /// What is known of this content of a file, of which nothing may have been opened so far.
    pub fn report(&self, identity: &SourceIdentity) -> FileReport {
        let generation = self.find(identity);
        let resting = || {
            let resting = self.resting.lock();
            resting
                .get(&(identity.device, identity.inode))
                .filter(|(known, _)| known == identity)
                .map(|(_, file)| *file)
        };
        let file = generation.as_ref().map(|generation| generation.file_id()).or_else(resting);
        let policy = file.and_then(|file| self.residency.lock().glance(file, self.now()));
        let map = generation.as_ref().and_then(|generation| generation.tensors.get().cloned());
        let map = map.or_else(|| self.headers.get(identity));
        FileReport {
            resident: generation.as_ref().map_or(0, |generation| generation.resident_bytes().min(identity.size)),
            filling: generation.as_ref().map_or(0, |generation| generation.filling_bytes()),
            held: generation.is_some_and(|generation| generation.is_held()) || policy.is_some_and(|known| known.held),
            policy,
            format: map.map(|map| map.format()),
            last_open: self.memory.last_kind(identity),
        }
    }

    /// Every file that is being filled now.
    pub fn fills(&self) -> Vec<FillReport> {
        let reports = self.generations().into_iter().filter_map(|generation| {
            let filling = generation.filling_bytes();
            let all = 0..generation.extents.count();
            let class = generation.waiters.wanted(&all).unwrap_or(Class::Prefetch);
            let (resident, speed) = (generation.resident_bytes(), self.speed(&generation));
            (filling > 0).then_some(FillReport { generation, resident, filling, class, speed })
        });
        reports.collect()
    }

    /// Where the tensors of a file lie. Reads its header where that is not known.
    pub fn tensor_map(&self, generation: &Generation) -> Arc<TensorMap> {
        match generation.tensors.get() {
            Some(map) => Arc::clone(map),
            None => self.headers.get_with(generation.identity(), || Arc::new(read_header(generation))),
        }
    }

    /// What of a generation is pinned.
    pub fn pinned(&self, generation: &Generation) -> ExtentSet {
        self.residency.lock().pinned(generation.file_id())
    }

    /// How the machine was when the budget was last fitted to it, or is now where nothing does that. None where it does
    /// not say.
    pub fn machine(&self) -> Option<Reading> {
        self.follower.reading().or_else(|| Machine::find().look().ok())
    }

    /// Bytes that are left free for everyone else.
    pub fn reserve(&self) -> u64 {
        self.config.reserve.unwrap_or(0)
    }

    /// How long this store has been running.
    pub fn uptime(&self) -> Duration {
        self.now()
    }
}

impl Generation {
    /// Bytes that are being read into the arena now.
    pub fn filling_bytes(&self) -> u64 {
        let filling = (0..self.extents.count()).filter(|extent| self.extents.is_filling(*extent));
        filling.map(|extent| length(&extent_bytes(extent, self.size))).sum()
    }

    /// How many of the bytes in `range` are in the arena.
    pub fn resident_within(&self, range: &Range<u64>) -> u64 {
        within(range, self.size, |extent| self.extents.is_present(extent))
    }
}

/// How many of the bytes in `range` lie in `extents`.
pub fn bytes_within(range: &Range<u64>, size: u64, extents: &ExtentSet) -> u64 {
    within(range, size, |extent| extents.contains(extent))
}

fn within(range: &Range<u64>, size: u64, counts: impl Fn(ExtentIndex) -> bool) -> u64 {
    let range = range.start..range.end.min(size);
    if range.start >= range.end {
        return 0;
    }
    let of = |extent| {
        let bytes = extent_bytes(extent, size);
        length(&(bytes.start.max(range.start)..bytes.end.min(range.end)))
    };
    crate::units::extents_of(&range).filter(|extent| counts(*extent)).map(of).sum()
}

fn length(range: &Range<u64>) -> u64 {
    range.end.saturating_sub(range.start)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::EXTENT_SIZE;

    #[test]
    fn bytes_are_counted_by_the_extents_that_hold_them() {
        let extents: ExtentSet = std::iter::once(1..3).collect();
        let size = 3 * EXTENT_SIZE + 10;
        let count = |range| bytes_within(&range, size, &extents);
        assert_eq!(count(0..size), 2 * EXTENT_SIZE);
        assert_eq!(count(EXTENT_SIZE - 5..EXTENT_SIZE + 5), 5);
        assert_eq!(count(3 * EXTENT_SIZE - 1..u64::MAX), 1);
        assert_eq!((count(7..7), count(size..size + 1)), (0, 0));
    }
}
