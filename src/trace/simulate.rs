//! Replays a trace through the residency engine as it is, under any policy and budget.

use std::collections::HashMap;
use std::ops::Range;
use std::time::Duration;

use super::event::What;
use super::optimum::optimum;
use super::recorded::Trace;
use crate::ids::FileId;
use crate::residency::{ExtentSet, PolicyKind, RefetchCost, Residency, UseKind};
use crate::units::EXTENT_SIZE;

/// What a replay came to, over the events that count. Only what was a use in the end is counted.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Outcome {
    /// Bytes read from RAM.
    pub hit: u64,
    /// Bytes read from the source.
    pub missed: u64,
    /// What reading the hits from their sources would have taken.
    pub seconds_saved: f64,
    /// What reading the misses took.
    pub seconds_spent: f64,
    /// Bytes that were evicted.
    pub evicted: u64,
}

impl Outcome {
    /// Hits as a part of all bytes, 0 for none.
    pub fn hit_ratio(&self) -> f64 {
        self.hit as f64 / (self.hit + self.missed).max(1) as f64
    }

    pub(super) fn read(&mut self, hit: u64, missed: u64, cost: RefetchCost) {
        self.hit += hit * EXTENT_SIZE;
        self.missed += missed * EXTENT_SIZE;
        self.seconds_saved += cost.seconds(hit * EXTENT_SIZE);
        self.seconds_spent += cost.seconds(missed * EXTENT_SIZE);
    }
}

/// Replays `trace` under `policy` with `budget` bytes and counts the events in `counted`. What the trace says about
/// decisions and budgets at the time is ignored; every fill and every eviction takes no time.
pub fn replay(trace: &Trace, policy: PolicyKind, budget: u64, counted: Range<usize>) -> Outcome {
    let mut replay = Replay::new(trace, policy, budget);
    replay.run_to(counted.start);
    replay.run_to(counted.end)
}

/// One row of a table of hit ratio over budget.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// Bytes.
    pub budget: u64,
    /// The best that was possible.
    pub optimum: Outcome,
    /// In the order of the policies asked for.
    pub policies: Vec<Outcome>,
}

/// Replays the whole trace under each policy and budget.
pub fn sweep(trace: &Trace, policies: &[PolicyKind], budgets: &[u64]) -> Vec<Row> {
    let all = 0..trace.events.len();
    let row = |&budget: &u64| Row {
        budget,
        optimum: optimum(trace, budget, all.clone()),
        policies: policies.iter().map(|policy| replay(trace, *policy, budget, all.clone())).collect(),
    };
    budgets.iter().map(row).collect()
}

/// A replay under way, for looking at the engine between events.
pub struct Replay<'a> {
    trace: &'a Trace,
    kinds: Vec<Option<UseKind>>,
    pub engine: Residency,
    budget: u64,
    opens: HashMap<u32, (FileId, UseKind)>,
    costs: HashMap<FileId, RefetchCost>,
    /// The event that comes next.
    place: usize,
}

#[derive(Default)]
struct Step {
    hit: u64,
    missed: u64,
    evicted: u64,
    /// The cost of the file, if it was a use.
    used: Option<RefetchCost>,
}

impl<'a> Replay<'a> {
    pub fn new(trace: &'a Trace, policy: PolicyKind, budget: u64) -> Replay<'a> {
        Replay {
            trace,
            kinds: trace.kinds(),
            engine: Residency::new(policy, budget),
            budget,
            opens: HashMap::new(),
            costs: HashMap::new(),
            place: 0,
        }
    }

    /// Replays up to the event `place`, and returns what came of it since the last call.
    pub fn run_to(&mut self, place: usize) -> Outcome {
        let mut outcome = Outcome::default();
        while self.place < place.min(self.trace.events.len()) {
            let step = self.step();
            outcome.evicted += step.evicted;
            if let Some(cost) = step.used {
                outcome.read(step.hit, step.missed, cost);
            }
        }
        outcome
    }

    fn step(&mut self) -> Step {
        let event = &self.trace.events[self.place];
        let kind = self.kinds[self.place];
        self.place += 1;
        let now = Duration::from_millis(event.at_ms);
        let mut step = Step::default();
        match &event.what {
            What::File { file, size, cost } => {
                self.costs.insert(*file, *cost);
                self.engine.register(*file, *size, *cost);
            }
            What::Open { open, file, kind } => {
                self.opens.insert(*open, (*file, *kind));
                self.engine.opened(*file, *kind);
            }
            What::Read { open, extents } => {
                let Some((file, believed)) = self.opens.get(open).copied() else { return step };
                step = self.read(file, extents, believed, now);
                if matches!(kind, Some(UseKind::Load | UseKind::Unknown)) {
                    step.used = self.costs.get(&file).copied();
                }
            }
            What::Close { open, kind } => {
                if let Some((file, believed)) = self.opens.remove(open) {
                    self.engine.closed(file, believed, *kind, now);
                }
            }
            What::Resident { file, extents } => self.start_with(*file, extents.clone(), now),
            What::InVram { file, held } => self.engine.in_vram(*file, *held),
            What::Decided { .. } | What::Evicted { .. } | What::Budget { .. } => {}
        }
        step
    }

    /// What was resident at the beginning is resident here, as far as there is room.
    fn start_with(&mut self, file: FileId, extents: Range<u32>, now: Duration) {
        let mut extents: ExtentSet = std::iter::once(extents).collect();
        let room = self.budget.saturating_sub(self.engine.resident_bytes()) / EXTENT_SIZE;
        let head = extents.take_head(room);
        self.engine.restored(file, &head, now);
    }

    fn read(&mut self, file: FileId, extents: &Range<u32>, kind: UseKind, now: Duration) -> Step {
        let wanted: ExtentSet = std::iter::once(extents.clone()).collect();
        let missed = wanted.difference(&self.engine.resident(file));
        let mut step = Step { hit: wanted.count() - missed.count(), missed: missed.count(), ..Step::default() };
        if !missed.is_empty() {
            let room = self.budget.saturating_sub(self.engine.resident_bytes());
            let decision = self.engine.want(file, missed.runs(), kind, room, now);
            for victim in decision.evict {
                step.evicted += victim.bytes();
                self.engine.evicted(victim.file, victim.extents);
            }
            for run in decision.admit.runs() {
                self.engine.filled(file, run.clone(), now);
            }
        }
        self.engine.touched(file, wanted.runs(), kind, now);
        step
    }
}
