//! What the engine knows of one file.

use std::ops::Range;
use std::time::Duration;

use super::blocks::{Blocks, Layout};
use super::extents::ExtentSet;
use super::order::Key;
use super::types::{Priority, RefetchCost, Scope};
use crate::ids::ExtentIndex;
use crate::units::extent_count;

/// One priority class is worth this many doublings.
const CLASSES_PER_PRIORITY: u8 = 4;

pub(super) struct File {
    pub size: u64,
    pub layout: Layout,
    pub cost: RefetchCost,
    pub priority: Priority,
    pub resident: ExtentSet,
    /// Resident, but given out as victims.
    pub leaving: ExtentSet,
    pub since: Option<Duration>,
    pub pin: Option<ExtentSet>,
    /// A client holds it, so that dropping a part of it frees nothing.
    pub held: bool,
    pub in_use_until: Option<Duration>,
    /// A GPU holds it, so that nobody reads it from RAM for now.
    pub in_vram: bool,
    /// Its places in the queue of what comes, and what is needed there first, the nearest first.
    pub queued: Vec<(u64, ExtentSet)>,
    pub last_use: Option<LastUse>,
    /// Where the order of eviction has it now.
    pub keys: Vec<Key>,
    /// Uses of opens of which nobody knows yet whether they are uses.
    pub undecided: ExtentSet,
    pub undecided_opens: u32,
    pass: Pass,
}

#[derive(Clone, Copy)]
pub(super) struct LastUse {
    /// Later uses have higher numbers.
    pub stamp: u64,
    pub at: Duration,
}

/// One reading of the file. Loaders open a file two or three times and touch an extent many times to load it once.
#[derive(Default)]
struct Pass {
    /// Later passes have higher numbers.
    number: u64,
    seen: Blocks,
    extents: u64,
    /// All traffic up to its last read.
    until: u64,
    ended: bool,
}

impl File {
    pub fn new(size: u64, cost: RefetchCost) -> File {
        File {
            size,
            layout: Layout::new(extent_count(size)),
            cost,
            priority: Priority::default(),
            resident: ExtentSet::new(),
            leaving: ExtentSet::new(),
            since: None,
            pin: None,
            held: false,
            in_use_until: None,
            in_vram: false,
            queued: Vec::new(),
            last_use: None,
            keys: Vec::new(),
            undecided: ExtentSet::new(),
            undecided_opens: 0,
            pass: Pass::default(),
        }
    }

    /// Worth of an extent, as a power of two: see [`super::policy::Access::class`].
    pub fn class(&self) -> u8 {
        let cost = self.cost.ns_per_kib.max(1).ilog2() as u8;
        cost + CLASSES_PER_PRIORITY * self.priority as u8
    }

    /// The next touch may begin another pass.
    pub fn end_pass(&mut self) {
        self.pass.ended = true;
    }

    /// The blocks that this touch reaches first in its pass, after `traffic` extents were used by anybody. `counted`
    /// is false for what is only about to be read. A pass that begins gets the number `stamp`.
    pub fn first_reached(&mut self, extents: &ExtentSet, counted: bool, traffic: u64, stamp: u64) -> Blocks {
        let blocks = extents.runs().iter().fold(Blocks::NONE, |blocks, run| blocks.or(self.layout.touching(run)));
        let again = !blocks.and(self.pass.seen).is_empty();
        let others = traffic != self.pass.until;
        // A mapping that stays open has no opens to tell its passes apart: as many bytes as the file has are a pass.
        let through = self.pass.extents >= u64::from(self.layout.extents());
        if self.pass.ended && (again || others) || again && through {
            self.pass = Pass { number: stamp, ..Pass::default() };
        }
        self.pass.ended = false;
        let first = blocks.minus(self.pass.seen);
        self.pass.seen = self.pass.seen.or(first);
        self.pass.until = traffic;
        if counted {
            self.pass.extents += extents.count();
            self.pass.until += extents.count();
        }
        first
    }

    pub fn pass(&self) -> u64 {
        self.pass.number
    }

    /// What of `extents` the file has.
    pub fn clip(&self, extents: &[Range<ExtentIndex>]) -> ExtentSet {
        let end = self.layout.extents();
        extents.iter().map(|run| run.start.min(end)..run.end.min(end)).collect()
    }

    pub fn pinned(&self, extents: &ExtentSet) -> ExtentSet {
        self.pin.as_ref().map_or_else(ExtentSet::new, |pin| extents.intersection(pin))
    }

    pub fn covered_by(&self, scope: &Scope) -> ExtentSet {
        match scope {
            Scope::Whole => std::iter::once(0..self.layout.extents()).collect(),
            Scope::Extents(extents) => self.clip(extents.runs()),
        }
    }

    pub fn in_use(&self, now: Duration) -> bool {
        self.in_use_until.is_some_and(|until| now < until)
    }

    /// Resident, not pinned, and not on its way out.
    pub fn evictable(&self) -> ExtentSet {
        let staying = self.resident.difference(&self.leaving);
        self.pin.as_ref().map_or_else(|| staying.clone(), |pin| staying.difference(pin))
    }

    /// What of `extents` no place in the queue needs.
    pub fn unqueued(&self, extents: &ExtentSet) -> ExtentSet {
        self.queued.iter().fold(extents.clone(), |rest, (_, part)| rest.difference(part))
    }
}
