//! The bound: what a cache that knows the future would hit.
//!
//! Belady's MIN ("A study of replacement algorithms for a virtual-storage computer", 1966) with bypass: after each use
//! the extents stay whose next uses come first. Exact to the extent: extents of a file that are always read together
//! are counted, not followed one by one.

use std::collections::{BTreeSet, HashMap};
use std::ops::Range;

use super::event::What;
use super::recorded::Trace;
use super::simulate::Outcome;
use crate::ids::FileId;
use crate::residency::{RefetchCost, UseKind};
use crate::units::{EXTENT_SIZE, extent_count};

/// Extents that are always read together.
type Segment = (FileId, u32);

/// A use of one segment.
struct Use {
    /// None for what was there to begin with, which costs nothing.
    place: Option<usize>,
    segment: Segment,
    extents: u64,
    cost: RefetchCost,
}

/// The most bytes that any policy with `budget` bytes could have hit in the events of `counted`. Uses before them
/// count for nothing but may bring extents in.
pub fn optimum(trace: &Trace, budget: u64, counted: Range<usize>) -> Outcome {
    let uses = uses(trace);
    // Next uses that count, from the back.
    let mut next = vec![usize::MAX; uses.len()];
    let mut seen: HashMap<Segment, usize> = HashMap::new();
    for (place, used) in uses.iter().enumerate().rev() {
        next[place] = seen.get(&used.segment).copied().unwrap_or(usize::MAX);
        if used.place.is_some_and(|place| counted.contains(&place)) {
            seen.insert(used.segment, place);
        }
    }
    let mut cache = Cache { room: budget / EXTENT_SIZE, used: 0, held: HashMap::new(), order: BTreeSet::new() };
    let mut outcome = Outcome::default();
    for (used, next) in uses.iter().zip(next) {
        let hit = cache.take(used.segment);
        if used.place.is_some_and(|place| counted.contains(&place)) {
            outcome.read(hit, used.extents - hit, used.cost);
        }
        if next != usize::MAX {
            outcome.evicted += cache.put(used.segment, next, used.extents) * EXTENT_SIZE;
        }
    }
    outcome
}

struct Cache {
    room: u64,
    used: u64,
    /// The next use of a segment, and how many of its extents are held.
    held: HashMap<Segment, (usize, u64)>,
    order: BTreeSet<(usize, Segment)>,
}

impl Cache {
    fn take(&mut self, segment: Segment) -> u64 {
        let Some((next, extents)) = self.held.remove(&segment) else { return 0 };
        self.order.remove(&(next, segment));
        self.used -= extents;
        extents
    }

    /// Puts a segment that was just read in and returns how many extents of others had to go.
    fn put(&mut self, segment: Segment, next: usize, extents: u64) -> u64 {
        self.used += extents;
        self.held.insert(segment, (next, extents));
        self.order.insert((next, segment));
        let mut evicted = 0;
        while self.used > self.room {
            let &(furthest, victim) = self.order.last().expect("used extents are in the order");
            let (_, held) = self.held[&victim];
            let gone = held.min(self.used - self.room);
            self.used -= gone;
            if victim != segment {
                evicted += gone;
            }
            if gone == held {
                self.held.remove(&victim);
                self.order.remove(&(furthest, victim));
            } else {
                self.held.insert(victim, (furthest, held - gone));
            }
        }
        evicted
    }
}

/// Every use in order, cut where any read of the file begins or ends.
fn uses(trace: &Trace) -> Vec<Use> {
    let kinds = trace.kinds();
    let mut known: HashMap<FileId, (u32, RefetchCost)> = HashMap::new();
    let mut opens: HashMap<u32, FileId> = HashMap::new();
    let mut reads = Vec::new();
    let mut cuts: HashMap<FileId, BTreeSet<u32>> = HashMap::new();
    for (place, event) in trace.events.iter().enumerate() {
        match &event.what {
            What::File { file, size, cost } => {
                known.insert(*file, (extent_count(*size), *cost));
            }
            What::Open { open, file, .. } => {
                opens.insert(*open, *file);
            }
            What::Read { open, extents } if matches!(kinds[place], Some(UseKind::Load | UseKind::Unknown)) => {
                let Some(file) = opens.get(open) else { continue };
                let Some((end, cost)) = known.get(file) else { continue };
                let run = extents.start.min(*end)..extents.end.min(*end);
                if !run.is_empty() {
                    cuts.entry(*file).or_default().extend([run.start, run.end]);
                    reads.push((Some(place), *file, run, *cost));
                }
            }
            What::Resident { file, extents } => {
                let Some((end, cost)) = known.get(file) else { continue };
                let run = extents.start.min(*end)..extents.end.min(*end);
                if !run.is_empty() {
                    cuts.entry(*file).or_default().extend([run.start, run.end]);
                    reads.push((None, *file, run, *cost));
                }
            }
            _ => {}
        }
    }
    let mut uses = Vec::with_capacity(reads.len());
    for (place, file, run, cost) in reads {
        let mut starts = cuts[&file].range(run.start..=run.end).copied();
        let mut start = starts.next().unwrap_or(run.start);
        for end in starts {
            uses.push(Use { place, segment: (file, start), extents: u64::from(end - start), cost });
            start = end;
        }
    }
    uses
}

#[cfg(test)]
mod tests {
    use super::super::event::Event;
    use super::*;
    use crate::residency::PolicyKind;

    const COST: RefetchCost = RefetchCost { ns_per_kib: 100 };

    fn trace(reads: &[(u64, Range<u32>)]) -> Trace {
        let mut events = Vec::new();
        for file in 0..4 {
            events.push(What::File { file: FileId(file), size: 100 * EXTENT_SIZE, cost: COST });
        }
        for (file, extents) in reads {
            events.push(What::Open { open: 0, file: FileId(*file), kind: UseKind::Load });
            events.push(What::Read { open: 0, extents: extents.clone() });
            events.push(What::Close { open: 0, kind: UseKind::Load });
        }
        Trace { events: events.into_iter().map(|what| Event { at_ms: 0, what }).collect() }
    }

    fn hits(reads: &[(u64, Range<u32>)], room: u64) -> u64 {
        let trace = trace(reads);
        optimum(&trace, room * EXTENT_SIZE, 0..trace.events.len()).hit / EXTENT_SIZE
    }

    #[test]
    fn a_loop_hits_what_fits() {
        let turns: Vec<_> = (0..15).map(|place| (place % 3, 0..100)).collect();
        assert_eq!(hits(&turns, 150), 4 * 150);
        assert_eq!(hits(&turns, 0), 0);
    }

    #[test]
    fn what_comes_first_is_kept_and_parts_are_told_apart() {
        let reads = [(0, 0..100), (1, 0..100), (1, 20..30), (0, 0..40), (1, 0..100)];
        // 40 of file 0 and 10 of file 1, which count twice.
        assert_eq!(hits(&reads, 50), 10 + 40 + 10);
    }

    #[test]
    fn what_was_there_to_begin_with_costs_nothing() {
        let mut trace = trace(&[(0, 0..100), (1, 0..100)]);
        let begin = What::Resident { file: FileId(1), extents: 10..90 };
        trace.events.insert(4, Event { at_ms: 0, what: begin });
        let outcome = optimum(&trace, 50 * EXTENT_SIZE, 0..trace.events.len());
        assert_eq!((outcome.hit, outcome.missed), (50 * EXTENT_SIZE, 150 * EXTENT_SIZE));
        let replayed = super::super::replay(&trace, PolicyKind::Auto, 50 * EXTENT_SIZE, 0..trace.events.len());
        assert_eq!((replayed.hit, replayed.missed), (50 * EXTENT_SIZE, 150 * EXTENT_SIZE));
    }

    #[test]
    fn only_hits_that_count_are_worth_keeping() {
        let reads = [(0, 0..100), (1, 0..100), (0, 0..100), (1, 0..100)];
        let trace = trace(&reads);
        let last = trace.events.len() - 3..trace.events.len();
        assert_eq!(optimum(&trace, 100 * EXTENT_SIZE, last).hit, 100 * EXTENT_SIZE);
    }
}
