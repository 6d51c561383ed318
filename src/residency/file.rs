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

/// An extent takes several reads, by several threads, and the engine hears of them in batches: what was touched so
/// lately, or among so many extents, may still be under way.
const UNDER_WAY_FOR: Duration = Duration::from_secs(1);
const UNDER_WAY: u64 = 64;

/// A mapping that stays open has no opens to tell its passes apart: where this part of the file is read again, another
/// pass has begun.
const AGAIN_PART: u64 = 8;

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
    read: ExtentSet,
    /// Of `read`, what may still be under way: since `since`, and before that.
    lately: [ExtentSet; 2],
    since: Duration,
    /// Read again after it was no longer under way.
    again: ExtentSet,
    /// All traffic up to its last read.
    until: u64,
    ended: bool,
}

/// What a touch brings that its pass had not.
pub(super) struct Reached {
    /// Blocks of which nothing was read before.
    pub blocks: Blocks,
    /// Extents that are not merely still being read.
    pub extents: u64,
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

    /// What this touch reaches first in its pass, after `traffic` extents were used by anybody. `counted` is false for
    /// what is only about to be read. A pass that begins gets the number `stamp`.
    pub fn first_reached(
        &mut self,
        extents: &ExtentSet,
        counted: bool,
        traffic: u64,
        stamp: u64,
        now: Duration,
    ) -> Reached {
        let blocks = extents.runs().iter().fold(Blocks::NONE, |blocks, run| blocks.or(self.layout.touching(run)));
        let again = !blocks.and(self.pass.seen).is_empty();
        let others = traffic.saturating_sub(self.pass.until);
        // Those who open a file that is being read in for them begin no other pass than the one it is read in for.
        let is_over = match self.pass.read.is_empty() {
            true => others >= u64::from(self.layout.extents()),
            false => again || others > 0,
        };
        if self.pass.ended && is_over || again && self.pass.is_through(extents, &self.layout, now) {
            self.pass = Pass { number: stamp, ..Pass::default() };
        }
        self.pass.ended = false;
        let first = blocks.minus(self.pass.seen);
        self.pass.seen = self.pass.seen.or(first);
        let fresh = if counted { self.pass.count(extents, now) } else { 0 };
        self.pass.until = traffic + fresh;
        Reached { blocks: first, extents: fresh }
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

impl Pass {
    /// Whether a touch of `extents`, of which something was read before, is the beginning of another pass.
    fn is_through(&self, extents: &ExtentSet, layout: &Layout, now: Duration) -> bool {
        let all = u64::from(layout.extents());
        let again = || !self.fresh(extents, now).is_empty();
        self.again.count() * AGAIN_PART >= all || self.read.count() >= all && again()
    }

    /// Those that are not merely still being read.
    fn fresh(&self, extents: &ExtentSet, now: Duration) -> ExtentSet {
        match now.saturating_sub(self.since) {
            since if since > 2 * UNDER_WAY_FOR => extents.clone(),
            _ => self.lately.iter().fold(extents.clone(), |rest, lately| rest.difference(lately)),
        }
    }

    /// Notes that these were read; returns how many are not merely still being read.
    fn count(&mut self, extents: &ExtentSet, now: Duration) -> u64 {
        let fresh = self.fresh(extents, now);
        self.again.extend(&fresh.intersection(&self.read));
        self.read.extend(&fresh);
        let since = now.saturating_sub(self.since);
        if since > UNDER_WAY_FOR || self.lately[0].count() > UNDER_WAY {
            let before = std::mem::take(&mut self.lately[0]);
            self.lately[1] = if since > 2 * UNDER_WAY_FOR { ExtentSet::new() } else { before };
            self.since = now;
        }
        match extents.count() > UNDER_WAY {
            // So much at once was read from its beginning, and its readers are at its ends.
            true => extents.runs().iter().for_each(|run| self.lately[0].insert(run.end - 1..run.end)),
            false => self.lately[0].extend(extents),
        }
        fresh.count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::EXTENT_SIZE;

    const COUNT: ExtentIndex = 256;

    struct Reader {
        file: File,
        traffic: u64,
        now: Duration,
        /// Blocks that were reached first, all touches together.
        reached: u32,
    }

    impl Reader {
        fn new() -> Reader {
            let file = File::new(u64::from(COUNT) * EXTENT_SIZE, RefetchCost { ns_per_kib: 137 });
            Reader { file, traffic: 0, now: Duration::ZERO, reached: 0 }
        }

        fn touch(&mut self, extents: &[Range<ExtentIndex>]) {
            let set = extents.iter().cloned().collect();
            let reached = self.file.first_reached(&set, true, self.traffic, self.traffic + 1, self.now);
            self.traffic += reached.extents;
            self.reached += reached.blocks.0.count_ones();
        }

        /// By four threads that read so many extents each between two batches, in parts of 12 extents.
        fn read(&mut self, until: ExtentIndex, each: f64) {
            let mut parts = (0..until).step_by(12).map(|start| (f64::from(start), f64::from((start + 12).min(until))));
            let mut threads: Vec<_> = parts.by_ref().take(4).collect();
            while !threads.is_empty() {
                let touched: Vec<_> = threads
                    .iter()
                    .map(|(at, end)| *at as ExtentIndex..(at + each).min(*end).ceil() as ExtentIndex)
                    .collect();
                self.touch(&touched);
                threads.iter_mut().for_each(|(at, _)| *at += each);
                for thread in &mut threads {
                    if thread.0 >= thread.1
                        && let Some(next) = parts.next()
                    {
                        *thread = next;
                    }
                }
                threads.retain(|(at, end)| at < end);
                self.now += Duration::from_millis(200);
            }
        }
    }

    #[test]
    fn an_extent_that_takes_several_batches_is_read_once() {
        for each in [0.1, 0.25, 0.7, 2.5, 9.0, 40.0] {
            let mut reader = Reader::new();
            for pass in 1..4 {
                reader.read(COUNT, each);
                assert_eq!(reader.reached, 32 * pass, "{each}");
                assert!(
                    reader.traffic.abs_diff(u64::from(COUNT * pass)) < 8 * u64::from(pass),
                    "{each} {}",
                    reader.traffic
                );
                reader.now += Duration::from_secs(3);
            }
        }
    }

    #[test]
    fn what_is_read_in_for_an_open_is_read_by_it() {
        let mut reader = Reader::new();
        let all: ExtentSet = std::iter::once(0..COUNT).collect();
        for pass in 1..4 {
            for _ in 0..2 {
                let reached = reader.file.first_reached(&all, false, reader.traffic, 1, reader.now);
                reader.reached += reached.blocks.0.count_ones();
                // Something else is read meanwhile.
                reader.traffic += 20;
                reader.file.end_pass();
            }
            reader.read(COUNT, 2.5);
            assert_eq!(reader.reached, 32 * pass);
            reader.file.end_pass();
        }
        // Nobody came, and later somebody does.
        reader.file.first_reached(&all, false, reader.traffic, 1, reader.now);
        reader.file.end_pass();
        reader.traffic += 1000;
        reader.reached = 0;
        reader.read(COUNT, 2.5);
        assert_eq!(reader.reached, 32);
    }

    #[test]
    fn passes_of_an_open_that_leaves_out_a_part_are_told_apart() {
        let mut reader = Reader::new();
        (0..6).for_each(|_| reader.read(200, 2.5));
        assert!(reader.reached >= 4 * 25, "{}", reader.reached);
    }
}
