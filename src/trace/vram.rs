//! What it gains to know which models a GPU holds: they leave RAM first, and others stay.

use super::generate::GB;
use super::{Event, Outcome, Trace, What, replay};
use crate::ids::FileId;
use crate::residency::{PolicyKind, RefetchCost, UseKind};
use crate::units::extent_count;

/// In gigabytes: a model and its companion, and two others that are loaded by turns later.
const SIZES: [u64; 4] = [20, 8, 14, 14];
/// Ten gigabytes in four seconds.
const COST: RefetchCost = RefetchCost { ns_per_kib: 400 };

/// Rounds of work. In the first half of each, a model is loaded in every pass, as it does not stay on the GPU; in the
/// second half it stays there, and others are loaded.
fn trace(rounds: u64, passes: [u64; 2]) -> Trace {
    let mut events = Vec::new();
    let (mut at_ms, mut open) = (0, 0);
    let mut push = |at_ms: u64, what| events.push(Event { at_ms, what });
    for (file, size) in (0..).zip(SIZES) {
        push(0, What::File { file: FileId(file), size: size * GB, cost: COST });
    }
    for _ in 0..rounds {
        for (half, loaded) in [[0, 1], [2, 3]].into_iter().enumerate() {
            push(at_ms, What::InVram { file: FileId(0), held: half == 1 });
            for _ in 0..passes[half] {
                for file in loaded {
                    let (id, extents) = (FileId(file), 0..extent_count(SIZES[file as usize] * GB));
                    push(at_ms, What::Open { open, file: id, kind: UseKind::Load });
                    push(at_ms + 5_000, What::Read { open, extents });
                    push(at_ms + 10_000, What::Close { open, kind: UseKind::Load });
                    (at_ms, open) = (at_ms + 20_000, open + 1);
                }
            }
        }
    }
    Trace { events }
}

fn both(rounds: u64, passes: [u64; 2], gigabytes: u64) -> [Outcome; 2] {
    let told = trace(rounds, passes);
    let mut untold = told.clone();
    untold.events.retain(|event| !matches!(event.what, What::InVram { .. }));
    [untold, told].map(|trace| replay(&trace, PolicyKind::Auto, gigabytes * GB, 0..trace.events.len()))
}

/// The budgets, in gigabytes: no half of a round fits into the smallest, each fits into the largest, never both.
const BUDGETS: [u64; 4] = [24, 30, 34, 40];

#[test]
fn models_that_a_gpu_holds_make_room_for_those_that_it_does_not() {
    for passes in [[2, 2], [2, 4], [4, 2], [4, 4], [8, 3], [8, 8], [1, 4]] {
        for gigabytes in BUDGETS {
            let [untold, told] = both(4, passes, gigabytes);
            assert!(told.hit_ratio() > untold.hit_ratio(), "{passes:?} {gigabytes}: {untold:?} {told:?}");
            assert!(told.seconds_spent < 0.95 * untold.seconds_spent, "{passes:?} {gigabytes}: {untold:?} {told:?}");
        }
    }
    // A half that fits beside nothing but what the GPU holds gains most: two fifths of the time to read.
    let [untold, told] = both(4, [4, 4], 34);
    assert!(told.seconds_spent < 0.65 * untold.seconds_spent, "{untold:?} {told:?}");
}

#[test]
fn it_costs_where_a_model_stays_on_the_gpu_for_a_single_pass() {
    // What left RAM for one pass is read again after it. The queue, where it is known, brings it back before that.
    for gigabytes in BUDGETS {
        let [untold, told] = both(4, [4, 1], gigabytes);
        assert!(told.seconds_spent < 1.55 * untold.seconds_spent, "{gigabytes}: {untold:?} {told:?}");
    }
}
