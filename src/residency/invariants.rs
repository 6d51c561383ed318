//! What holds for any sequence of calls, under every policy.

// Runs of extents are ranges, and one of them is a slice of one.
#![allow(clippy::single_range_in_vec_init)]

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::ids::FileId;
use crate::units::EXTENT_SIZE;

const BUDGET: u64 = 120;
const SIZES: [u64; 5] = [40, 70, 25, 90, 33];

#[derive(Clone, Debug)]
enum Step {
    Open(u64, UseKind),
    Read(u64, Range<u32>, UseKind),
    Close(u64, UseKind, UseKind),
    Pin(u64, Range<u32>),
    Unpin(u64),
    Held(u64, bool),
    InUse(u64, u64),
    Priority(u64, Priority),
    Queue(u64, Vec<(u64, Option<Range<u32>>)>),
    InVram(u64, bool),
    Reclaim(u64),
    Budget(u64),
    Forget(u64),
}

fn kind() -> impl Strategy<Value = UseKind> {
    prop::sample::select(vec![UseKind::Load, UseKind::Load, UseKind::HeaderPeek, UseKind::Scan, UseKind::Unknown])
}

fn step() -> impl Strategy<Value = Step> {
    let file = || 0..SIZES.len() as u64;
    let run = || (0u32..90, 1u32..90).prop_map(|(start, count)| start..start + count);
    prop_oneof![
        3 => (file(), kind()).prop_map(|(file, kind)| Step::Open(file, kind)),
        12 => (file(), run(), kind()).prop_map(|(file, run, kind)| Step::Read(file, run, kind)),
        3 => (file(), kind(), kind()).prop_map(|(file, opened, closed)| Step::Close(file, opened, closed)),
        1 => (file(), run()).prop_map(|(file, run)| Step::Pin(file, run)),
        1 => file().prop_map(Step::Unpin),
        1 => (file(), any::<bool>()).prop_map(|(file, held)| Step::Held(file, held)),
        1 => (file(), 0u64..200).prop_map(|(file, until)| Step::InUse(file, until)),
        1 => (file(), prop::sample::select(vec![Priority::Low, Priority::Normal, Priority::High]))
            .prop_map(|(file, priority)| Step::Priority(file, priority)),
        1 => (0u64..3, prop::collection::vec((file(), prop::option::of(run())), 0..6))
            .prop_map(|(owner, items)| Step::Queue(owner, items)),
        1 => (file(), any::<bool>()).prop_map(|(file, in_vram)| Step::InVram(file, in_vram)),
        2 => (0u64..40).prop_map(Step::Reclaim),
        1 => (60u64..=BUDGET).prop_map(Step::Budget),
        1 => file().prop_map(Step::Forget),
    ]
}

fn policy() -> impl Strategy<Value = PolicyKind> {
    prop::sample::select(vec![
        PolicyKind::Auto,
        PolicyKind::Reuse,
        PolicyKind::Aged(1),
        PolicyKind::Mru,
        PolicyKind::Lirs,
        PolicyKind::Lru,
    ])
}

/// An engine, with a ledger of its own of what is resident and pinned.
struct Run {
    engine: Residency,
    resident: BTreeMap<u64, ExtentSet>,
    pinned: BTreeMap<u64, ExtentSet>,
    now: Duration,
    log: Vec<String>,
}

impl Run {
    fn new(policy: PolicyKind) -> Run {
        let engine = Residency::new(policy, BUDGET * EXTENT_SIZE);
        let mut run =
            Run { engine, resident: BTreeMap::new(), pinned: BTreeMap::new(), now: Duration::ZERO, log: Vec::new() };
        (0..SIZES.len() as u64).for_each(|file| run.register(file));
        run
    }

    fn register(&mut self, file: u64) {
        let cost = RefetchCost { ns_per_kib: if file == 2 { 10_000 } else { 137 } };
        self.engine.register(FileId(file), SIZES[file as usize] * EXTENT_SIZE, cost);
    }

    fn used(&self) -> u64 {
        self.resident.values().map(ExtentSet::count).sum()
    }

    fn evict(&mut self, victims: &[Victim]) {
        for Victim { file, extents, .. } in victims {
            let run: ExtentSet = std::iter::once(extents.clone()).collect();
            let resident = self.resident.entry(file.0).or_default();
            assert!(run.difference(resident).is_empty(), "{file} {extents:?} is not resident");
            resident.remove(extents.clone());
            let pinned = self.pinned.entry(file.0).or_default();
            assert!(run.intersection(pinned).is_empty(), "{file} {extents:?} is pinned");
            self.engine.evicted(*file, extents.clone());
        }
    }

    fn read(&mut self, file: u64, extents: Range<u32>, kind: UseKind) {
        let room = (BUDGET - self.used()) * EXTENT_SIZE;
        let decision = self.engine.want(FileId(file), std::slice::from_ref(&extents), kind, room, self.now);
        self.log.push(format!("{decision:?}"));
        assert!(decision.admit.intersection(&decision.bypass).is_empty());
        let mut asked: ExtentSet = std::iter::once(extents.clone()).collect();
        asked.remove(SIZES[file as usize] as u32..u32::MAX);
        let missed = asked.difference(self.resident.entry(file).or_default());
        assert_eq!(decision.admit.count() + decision.bypass.count(), missed.count());
        assert!(decision.admit.difference(&missed).is_empty());
        if matches!(kind, UseKind::Scan | UseKind::HeaderPeek) {
            let pinned = self.pinned.get(&file).cloned().unwrap_or_default();
            assert!(decision.admit.difference(&pinned).is_empty(), "{kind} admits");
        }
        self.evict(&decision.evict);
        for run in decision.admit.runs() {
            self.engine.filled(FileId(file), run.clone(), self.now);
            self.resident.entry(file).or_default().insert(run.clone());
        }
        self.engine.touched(FileId(file), &[extents], kind, self.now);
    }

    fn step(&mut self, step: &Step) {
        self.now += Duration::from_secs(1);
        match step.clone() {
            Step::Open(file, kind) => self.engine.opened(FileId(file), kind),
            Step::Read(file, extents, kind) => self.read(file, extents, kind),
            Step::Close(file, opened, closed) => self.engine.closed(FileId(file), opened, closed, self.now),
            Step::Pin(file, extents) => {
                let scope: ExtentSet = std::iter::once(extents).collect();
                if self.engine.pin(FileId(file), &Scope::Extents(scope.clone())).is_ok() {
                    let end = SIZES[file as usize] as u32;
                    let pinned = self.pinned.entry(file).or_default();
                    scope.runs().iter().for_each(|run| pinned.insert(run.start.min(end)..run.end.min(end)));
                }
            }
            Step::Unpin(file) => {
                self.engine.unpin(FileId(file));
                self.pinned.remove(&file);
            }
            Step::Held(file, held) => self.engine.held(FileId(file), held),
            Step::InUse(file, until) => self.engine.in_use(FileId(file), Duration::from_secs(until)),
            Step::Priority(file, priority) => self.engine.set_priority(FileId(file), priority),
            Step::Queue(owner, items) => {
                let upcoming = items.into_iter().map(|(file, run)| Upcoming {
                    file: FileId(file),
                    scope: run.map_or(Scope::Whole, |run| Scope::Extents(std::iter::once(run).collect())),
                });
                self.engine.set_queue(owner, upcoming.collect());
            }
            Step::InVram(file, in_vram) => self.engine.in_vram(FileId(file), in_vram),
            Step::Reclaim(extents) => {
                let victims = self.engine.reclaim(extents * EXTENT_SIZE, self.now);
                self.log.push(format!("{victims:?}"));
                let freed: u64 = victims.iter().map(Victim::bytes).sum();
                let pinned = self.pinned.iter().map(|(file, pin)| {
                    self.resident.get(file).map_or(0, |resident| resident.intersection(pin).count())
                });
                let free_to_go = self.used() - pinned.sum::<u64>();
                assert_eq!(freed, extents.min(free_to_go) * EXTENT_SIZE);
                self.evict(&victims);
            }
            Step::Budget(extents) => self.engine.set_budget(extents * EXTENT_SIZE),
            Step::Forget(file) => {
                self.engine.forget(FileId(file));
                self.resident.remove(&file);
                self.pinned.remove(&file);
                self.register(file);
            }
        }
        assert!(self.used() <= BUDGET, "{} extents are resident", self.used());
        assert_eq!(self.engine.resident_bytes(), self.used() * EXTENT_SIZE);
        let pinned: u64 = self.pinned.values().map(ExtentSet::count).sum();
        assert_eq!(self.engine.pinned_bytes(), pinned * EXTENT_SIZE);
    }
}

proptest! {
    #[test]
    fn whatever_happens_the_books_are_right_and_the_same_happens_again(
        policy in policy(),
        steps in prop::collection::vec(step(), 1..150),
    ) {
        let runs = [(); 2].map(|()| {
            let mut run = Run::new(policy);
            steps.iter().for_each(|step| run.step(step));
            run.log
        });
        prop_assert_eq!(&runs[0], &runs[1]);
    }
}
