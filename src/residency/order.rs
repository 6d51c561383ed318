//! The order of eviction: which part of which file goes before which.
//!
//! An index, brought up to date only for files that changed, so that a decision costs the victims it finds and not the
//! files that are known.

use std::collections::BTreeSet;

use super::blocks::Blocks;
use super::extents::ExtentSet;
use super::file::File;
use super::types::EvictReason;
use crate::ids::FileId;

/// What stands between a part of a file and its eviction, weakest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Standing {
    /// A GPU has it too.
    Double,
    /// The policy does not keep it.
    Loose,
    /// The policy keeps it.
    Kept,
    /// It is known to be needed; the nearest has the highest rank.
    Queued {
        rank: u64,
    },
    Pinned,
}

/// Sorts in the order of eviction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Key {
    /// Last, since it frees nothing now.
    pub held: bool,
    pub standing: Standing,
    class: u8,
    rank: u64,
    pub file: FileId,
}

#[derive(Default)]
pub(super) struct Order {
    keys: BTreeSet<Key>,
}

impl Order {
    /// In the order of eviction.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &Key> {
        self.keys.iter()
    }

    /// Brings the index up to date for one file. `kept` is what the policy keeps of it.
    pub fn update(&mut self, id: FileId, file: &mut File, kept: Blocks) {
        self.remove(file);
        let evictable = file.evictable();
        if evictable.is_empty() {
            return;
        }
        let stamp = file.last_use.map_or(0, |last| last.stamp);
        let key = |standing, class, rank| Key { held: file.held, standing, class, rank, file: id };
        let mut keys = Vec::with_capacity(2);
        if file.in_vram {
            keys.push(key(Standing::Double, file.class(), stamp));
        } else {
            for (place, part) in &file.queued {
                if !evictable.intersection(part).is_empty() {
                    keys.push(key(Standing::Queued { rank: rank_of(*place) }, 0, 0));
                }
            }
            let guessed = file.unqueued(&evictable);
            let spread = file.layout.spread(kept);
            if !guessed.difference(&spread).is_empty() {
                keys.push(key(Standing::Loose, file.class(), stamp));
            }
            if !guessed.intersection(&spread).is_empty() {
                // What is kept is in use, most likely in a loop, where the last used comes again last.
                keys.push(key(Standing::Kept, file.class(), !stamp));
            }
        }
        self.keys.extend(keys.iter().copied());
        file.keys = keys;
    }

    pub fn remove(&mut self, file: &mut File) {
        for key in file.keys.drain(..) {
            self.keys.remove(&key);
        }
    }
}

/// The nearer in the queue, the higher.
pub(super) fn rank_of(place: u64) -> u64 {
    !place
}

impl Key {
    /// The extents of the file that this key stands for.
    pub fn part(&self, file: &File, kept: Blocks) -> ExtentSet {
        let evictable = file.evictable();
        match self.standing {
            Standing::Loose => file.unqueued(&evictable).difference(&file.layout.spread(kept)),
            Standing::Kept => file.unqueued(&evictable).intersection(&file.layout.spread(kept)),
            Standing::Queued { rank } => {
                let part = file.queued.iter().find(|(place, _)| rank_of(*place) == rank);
                part.map_or_else(ExtentSet::new, |(_, part)| evictable.intersection(part))
            }
            Standing::Double | Standing::Pinned => evictable,
        }
    }

    pub fn reason(&self, file: &File) -> EvictReason {
        if self.held {
            return EvictReason::HeldByClient;
        }
        match self.standing {
            Standing::Double => EvictReason::InVram,
            Standing::Loose if file.last_use.is_none() => EvictReason::Unused,
            Standing::Loose => EvictReason::NotKept,
            Standing::Kept => EvictReason::OverBudget,
            Standing::Queued { .. } => EvictReason::QueuedLater,
            Standing::Pinned => EvictReason::Pinned,
        }
    }
}
