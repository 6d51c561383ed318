//! What it gains to know which models a GPU holds: they leave RAM first, and others stay.

use super::generate::GB;
use super::{Event, Outcome, Trace, What, replay};
use crate::ids::FileId;
use crate::residency::{PolicyKind, RefetchCost, UseKind};
use crate::units::extent_count;

/// In gigabytes: a model that stays on the GPU for a while, and those that go to and fro meanwhile.
const HELD: u64 = 20;
const LOOPED: [u64; 2] = [14, 14];
const BUDGET: u64 = 34;
/// Ten gigabytes in four seconds.
const COST: RefetchCost = RefetchCost { ns_per_kib: 400 };

/// Days of work in which, by turns, either of two models stays on the GPU for some passes, while two others are loaded
/// in each pass.
fn trace(rounds: u64, passes: u64) -> Trace {
    let sizes = [HELD, HELD, LOOPED[0], LOOPED[1]].map(|gigabytes| gigabytes * GB);
    let mut events = Vec::new();
    let (mut at_ms, mut open) = (0, 0);
    let mut push = |at_ms: u64, what| events.push(Event { at_ms, what });
    for (file, size) in (0..).zip(sizes) {
        push(0, What::File { file: FileId(file), size, cost: COST });
    }
    for round in 0..rounds {
        let on_gpu = round % 2;
        for pass in 0..passes {
            let loaded = if pass == 0 { vec![on_gpu, 2, 3] } else { vec![2, 3] };
            for file in loaded {
                let (id, extents) = (FileId(file), 0..extent_count(sizes[file as usize]));
                push(at_ms, What::Open { open, file: id, kind: UseKind::Load });
                push(at_ms + 5_000, What::Read { open, extents });
                push(at_ms + 10_000, What::Close { open, kind: UseKind::Load });
                if pass == 0 && file == on_gpu {
                    push(at_ms + 10_000, What::InVram { file: FileId(1 - on_gpu), held: false });
                    push(at_ms + 10_000, What::InVram { file: id, held: true });
                }
                (at_ms, open) = (at_ms + 20_000, open + 1);
            }
        }
    }
    Trace { events }
}

fn both(rounds: u64, passes: u64) -> [Outcome; 2] {
    let told = trace(rounds, passes);
    let mut untold = told.clone();
    untold.events.retain(|event| !matches!(event.what, What::InVram { .. }));
    [untold, told].map(|trace| replay(&trace, PolicyKind::Auto, BUDGET * GB, 0..trace.events.len()))
}

#[test]
fn models_that_a_gpu_holds_make_room_for_those_that_it_does_not() {
    let [untold, told] = both(12, 6);
    let (before, after) = (untold.hit_ratio(), told.hit_ratio());
    assert!(after > before + 0.05, "hits {before:.3} without knowing, {after:.3} with it");
    assert!(told.seconds_spent < 0.85 * untold.seconds_spent, "{untold:?} {told:?}");
}

#[test]
fn where_everything_is_reloaded_in_each_pass_it_costs_little() {
    // The model comes back to be read from RAM as soon as it has left it: the worst case of the rule.
    let [untold, told] = both(24, 1);
    assert!(told.seconds_spent <= 1.25 * untold.seconds_spent, "{untold:?} {told:?}");
}
