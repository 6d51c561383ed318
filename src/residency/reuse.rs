//! Keeps what is reused most often for its cost, by each block's own intervals.
//!
//! The value of a block is the seconds it costs to read again, divided by the mean traffic between its uses: what
//! keeping it saves for each byte that goes by. Intervals are a good measure of how often something is used, and a poor
//! prophecy of when (in a 70/30 mix they foretold less than half of what a fixed set hits), so they only rank, with a margin: blocks of one loop are
//! worth the same, none displaces another, and what came first stays, as with `mru`. Where workflows alternate, the one
//! that runs more often stays. A block that was not used for clearly longer than ever before is out of use and goes
//! first, whatever it was worth. No parameter depends on how many capacities the loop has, as the K of `aged` does.
//!
//! Needs to see a block twice before it knows anything of it: newcomers wait for the second use unless there is room.

use std::collections::{BTreeSet, HashMap};

use super::blocks::Blocks;
use super::policy::{Access, Policy};
use crate::ids::FileId;

/// A newcomer must be worth this many times what it displaces. The means of equally often used blocks of a jittered
/// loop differ by less; workflows in a 70/30 mix differ by more.
const MARGIN: f64 = 1.5;

/// A block is overdue when it was not used for this many times its longest interval.
const OVERDUE: f64 = 1.5;

/// The mean forgets slower than this part for each use: it is the average of about the last dozen.
const MEAN_STEP: f64 = 1.0 / 12.0;

/// The longest interval is forgotten sooner, since one long pause must not protect a block for good.
const LONGEST_STEP: f64 = 1.0 / 8.0;

/// Capacities of traffic until a block that was used only once is overdue.
const UNKNOWN_LONGEST: f64 = 2.0;

/// Capacities of traffic that stand for the mean interval of a block that was used only once.
const UNKNOWN_MEAN: f64 = 4.0;

type Block = (FileId, u32);

#[derive(Clone, Copy)]
struct Node {
    weight: u64,
    class: u8,
    pass: u64,
    /// Traffic before the last use.
    last: u64,
    /// Of the intervals between uses, in traffic.
    mean: f64,
    longest: f64,
    intervals: u32,
}

/// Least worth first; among equals the tail of what was read last.
type ByValue = (u64, u64, u32, FileId);

/// Overdue first; among equals from the tail.
type ByDeadline = (u64, u32, FileId);

#[derive(Default)]
pub struct Reuse {
    capacity: u64,
    used: u64,
    nodes: HashMap<Block, Node>,
    known: HashMap<FileId, Blocks>,
    kept: HashMap<FileId, Blocks>,
    by_value: BTreeSet<ByValue>,
    by_deadline: BTreeSet<ByDeadline>,
}

impl Node {
    fn value(&self) -> f64 {
        (1u64 << self.class.min(62)) as f64 / self.mean.max(1.0)
    }

    fn used(&mut self, access: &Access) {
        let interval = access.traffic.saturating_sub(self.last).max(1) as f64;
        self.intervals = self.intervals.saturating_add(1);
        let step = (1.0 / f64::from(self.intervals)).max(MEAN_STEP);
        self.mean += (interval - self.mean) * step;
        let faded = if self.intervals == 1 { 0.0 } else { self.longest + (interval - self.longest) * LONGEST_STEP };
        self.longest = interval.max(faded);
        self.last = access.traffic;
        self.pass = access.pass;
        self.class = access.class;
    }

    fn keys(&self, (file, block): Block) -> (ByValue, ByDeadline) {
        let deadline = self.last.saturating_add((self.longest * OVERDUE) as u64);
        // Positive floats sort as their bits do.
        ((self.value().to_bits(), !self.pass, !block, file), (deadline, !block, file))
    }
}

impl Reuse {
    pub fn new() -> Reuse {
        Reuse::default()
    }

    /// What gives way to `newcomer`, which is being used now.
    fn victim(&self, newcomer: &Node) -> Option<Block> {
        self.overdue(newcomer).or_else(|| {
            let &(value, _, block, file) = self.by_value.first()?;
            let clearly_less = f64::from_bits(value) * MARGIN < newcomer.value();
            (newcomer.intervals > 0 && clearly_less).then_some((file, !block))
        })
    }

    /// What is overdue, if it has also not been used for clearly longer than the newcomer's mean interval.
    fn overdue(&self, newcomer: &Node) -> Option<Block> {
        let &(deadline, block, file) = self.by_deadline.first()?;
        let block = (file, !block);
        let node = &self.nodes[&block];
        let expected = match newcomer.intervals {
            0 => node.longest.max(UNKNOWN_LONGEST * self.capacity as f64),
            _ => newcomer.mean,
        };
        let unused = newcomer.last.saturating_sub(node.last) as f64;
        (deadline < newcomer.last && unused > MARGIN * expected).then_some(block)
    }

    fn keep(&mut self, block: Block) {
        let node = &self.nodes[&block];
        let (value, deadline) = node.keys(block);
        self.used += node.weight;
        self.by_value.insert(value);
        self.by_deadline.insert(deadline);
        let kept = self.kept.entry(block.0).or_default();
        *kept = kept.with(block.1);
    }

    fn drop(&mut self, block: Block) {
        let node = &self.nodes[&block];
        let (value, deadline) = node.keys(block);
        self.used -= node.weight;
        self.by_value.remove(&value);
        self.by_deadline.remove(&deadline);
        let kept = self.kept.entry(block.0).or_default();
        *kept = kept.without(block.1);
    }

    fn touch_block(&mut self, block: Block, access: &Access, changed: &mut Vec<FileId>) {
        let was_kept = self.kept(block.0).contains(block.1);
        if was_kept {
            self.drop(block);
        }
        let known = self.known.entry(block.0).or_default();
        *known = known.with(block.1);
        let capacity = self.capacity as f64;
        let first = || Node {
            weight: access.layout.weight(block.1),
            class: access.class,
            pass: access.pass,
            last: access.traffic,
            mean: UNKNOWN_MEAN * capacity,
            longest: UNKNOWN_LONGEST * capacity,
            intervals: 0,
        };
        let node = *self.nodes.entry(block).and_modify(|node| node.used(access)).or_insert_with(first);
        while !was_kept
            && self.used + node.weight > self.capacity
            && let Some(victim) = self.victim(&node)
        {
            self.drop(victim);
            changed.push(victim.0);
        }
        if self.used + node.weight <= self.capacity {
            self.keep(block);
        }
        if self.kept(block.0).contains(block.1) != was_kept {
            changed.push(block.0);
        }
    }
}

impl Policy for Reuse {
    fn name(&self) -> String {
        "reuse".to_owned()
    }

    fn touch(&mut self, access: &Access, changed: &mut Vec<FileId>) -> Blocks {
        let before = self.kept(access.file);
        for block in access.blocks.iter() {
            self.touch_block((access.file, block), access, changed);
        }
        access.blocks.and(before)
    }

    fn kept(&self, file: FileId) -> Blocks {
        self.kept.get(&file).copied().unwrap_or_default()
    }

    fn set_capacity(&mut self, extents: u64, changed: &mut Vec<FileId>) {
        self.capacity = extents;
        while self.used > extents
            && let Some(&(_, _, block, file)) = self.by_value.first()
        {
            self.drop((file, !block));
            changed.push(file);
        }
    }

    fn reclass(&mut self, file: FileId, class: u8) {
        let kept = self.kept(file);
        for block in self.known.get(&file).copied().unwrap_or_default().iter() {
            let is_kept = kept.contains(block);
            if is_kept {
                self.drop((file, block));
            }
            if let Some(node) = self.nodes.get_mut(&(file, block)) {
                node.class = class;
            }
            if is_kept {
                self.keep((file, block));
            }
        }
    }

    fn forget(&mut self, file: FileId) {
        self.kept(file).iter().for_each(|block| self.drop((file, block)));
        self.kept.remove(&file);
        for block in self.known.remove(&file).unwrap_or_default().iter() {
            self.nodes.remove(&(file, block));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::residency::testing::{access, rate};

    struct Cache {
        reuse: Reuse,
        traffic: u64,
    }

    impl Cache {
        fn new(capacity: u64) -> Cache {
            let mut reuse = Reuse::new();
            reuse.set_capacity(capacity, &mut Vec::new());
            Cache { reuse, traffic: 1 }
        }

        /// Loads these files of 96 extents; returns the extents that were hit.
        fn load(&mut self, files: &[u64], class: u8) -> u64 {
            let mut hits = 0;
            for file in files {
                let access = rate(access(*file, 96, self.traffic), class);
                hits += access.layout.weights(self.reuse.touch(&access, &mut Vec::new()));
                self.traffic += 96;
            }
            hits
        }

        fn kept(&self, file: u64) -> u32 {
            self.reuse.kept(FileId(file)).0.count_ones() * 8
        }
    }

    #[test]
    fn a_loop_keeps_what_came_first_and_shrinks_from_the_tail_of_the_last() {
        let mut cache = Cache::new(200);
        cache.load(&[0, 1, 2], 4);
        for _ in 0..5 {
            assert_eq!(cache.load(&[0, 1, 2], 4), 200);
        }
        cache.reuse.set_capacity(150, &mut Vec::new());
        assert_eq!([0, 1, 2].map(|file| cache.kept(file)), [96, 48, 0]);
    }

    #[test]
    fn a_new_loop_takes_over_in_its_second_turn() {
        let mut cache = Cache::new(200);
        (0..6).for_each(|_| _ = cache.load(&[0, 1, 2], 4));
        assert_eq!(cache.load(&[3, 4, 5], 4), 0);
        cache.load(&[3, 4, 5], 4);
        assert_eq!(cache.load(&[3, 4, 5], 4), 200);
    }

    #[test]
    fn what_is_used_more_often_takes_the_place_of_what_is_used_less() {
        let mut cache = Cache::new(96);
        for _ in 0..4 {
            cache.load(&[0, 1, 2, 1, 3, 1, 4, 1], 4);
        }
        assert_eq!((cache.kept(0), cache.kept(1)), (0, 96));
    }

    #[test]
    fn what_becomes_worth_more_than_was_thought_changes_nothing_while_all_does() {
        let mut cache = Cache::new(200);
        cache.load(&[0, 1], 4);
        [0, 1].into_iter().for_each(|file| cache.reuse.reclass(FileId(file), 8));
        for _ in 0..4 {
            cache.load(&[2, 0, 1], 8);
        }
        assert_eq!([0, 1, 2].map(|file| cache.kept(file)), [96, 96, 8]);
        cache.reuse.reclass(FileId(2), 12);
        cache.load(&[2, 0, 1], 8);
        assert_eq!(cache.kept(2), 8, "its uses say what it is worth now");
    }

    #[test]
    fn a_slow_source_is_worth_more() {
        let mut cache = Cache::new(96);
        for _ in 0..3 {
            cache.load(&[0, 1], 4);
            cache.load(&[2], 10);
        }
        assert_eq!((cache.kept(0), cache.kept(2)), (0, 96));
    }
}
