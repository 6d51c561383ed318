//! What decisions cost: the residency engine with 20,000 files known, told what a store tells it while 10 GB go by.
//!
//! Ten milliseconds for 10 GB are one percent of a core at 10 GB/s.

use std::ops::Range;
use std::time::Duration;

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use weightfs::ids::{ExtentIndex, FileId};
use weightfs::residency::{Decision, PolicyKind, RefetchCost, Residency, UseKind};
use weightfs::units::EXTENT_SIZE;

const GB: u64 = 1_000_000_000;
const KNOWN: u64 = 20_000;
const BUDGET: u64 = 24 * GB;
const COST: RefetchCost = RefetchCost { ns_per_kib: 500 };

/// The models that are loaded, and what of each: 10 GB.
const MODELS: u64 = 4;
const MODEL: u64 = 10 * GB;
const EXTENTS: ExtentIndex = (MODEL / EXTENT_SIZE) as ExtentIndex;

/// What is read between two batches of the store's, and what one job of its fills brings.
const BATCH: ExtentIndex = EXTENTS / 5;
const JOB: ExtentIndex = 2;

struct Machine {
    engine: Residency,
    now: Duration,
    next: u64,
}

impl Machine {
    fn new() -> Machine {
        let mut engine = Residency::new(PolicyKind::Auto, BUDGET);
        for file in 0..KNOWN {
            // LoRAs most of them; each was used once, as long ago as can be.
            let size = if file < MODELS { MODEL } else { 20_000_000 + file * 10_000 };
            engine.register(FileId(file), size, COST);
        }
        let mut machine = Machine { engine, now: Duration::ZERO, next: 0 };
        (MODELS..KNOWN).for_each(|file| machine.load(file, (20_000_000 / EXTENT_SIZE) as ExtentIndex));
        (0..3 * MODELS).for_each(|_| machine.turn());
        machine
    }

    /// Loads the next model of a loop over more than fits.
    fn turn(&mut self) {
        self.next = (self.next + 1) % MODELS;
        self.load(self.next, EXTENTS);
    }

    fn load(&mut self, file: u64, extents: ExtentIndex) {
        let file = FileId(file);
        self.engine.opened(file, UseKind::Unknown);
        self.engine.opened(file, UseKind::Load);
        self.engine.expected(file, self.now);
        let missing = self.want(file, 0..extents);
        // What was not admitted is asked for again when it is read.
        for run in missing.bypass.runs() {
            for start in run.clone().step_by(JOB as usize) {
                self.want(file, start..(start + JOB).min(run.end));
            }
        }
        for start in (0..extents).step_by(BATCH as usize) {
            self.now += Duration::from_millis(200);
            let batch = start..(start + BATCH).min(extents);
            self.engine.touched(file, std::slice::from_ref(&batch), UseKind::Load, self.now);
        }
        self.engine.closed(file, UseKind::Unknown, UseKind::Load, self.now);
    }

    fn want(&mut self, file: FileId, extents: Range<ExtentIndex>) -> Decision {
        let room = BUDGET.saturating_sub(self.engine.resident_bytes());
        let decision = self.engine.want(file, std::slice::from_ref(&extents), UseKind::Load, room, self.now);
        for victim in &decision.evict {
            self.engine.evicted(victim.file, victim.extents.clone());
        }
        for run in decision.admit.runs() {
            for start in run.clone().step_by(JOB as usize) {
                self.engine.filled(file, start..(start + JOB).min(run.end), self.now);
            }
        }
        decision
    }
}

fn decisions(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("decisions for 10 GB");
    group.throughput(Throughput::Bytes(MODEL)).sample_size(20);
    let mut machine = Machine::new();
    group.bench_function("a loop over more than fits", |bencher| bencher.iter(|| machine.turn()));
    let mut machine = Machine::new();
    group.bench_function("a new model each time", |bencher| {
        let mut numbers = (KNOWN..).map(FileId);
        bencher.iter_batched(
            || numbers.next().expect("there is no end to them"),
            |file| {
                machine.engine.register(file, MODEL, COST);
                machine.load(file.0, EXTENTS);
                machine.engine.forget(file);
            },
            BatchSize::PerIteration,
        );
    });
    let mut machine = Machine::new();
    group.bench_function("a resident model", |bencher| {
        // The one that is kept whole.
        let kept = (0..MODELS).max_by_key(|file| machine.engine.resident(FileId(*file)).count()).unwrap_or(0);
        bencher.iter(|| machine.load(kept, EXTENTS));
    });
    group.finish();
}

criterion_group!(benches, decisions);
criterion_main!(benches);
