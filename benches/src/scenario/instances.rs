//! Two programs that load and hold the same model at once: the time that takes, and the memory.

use std::path::Path;

use super::{Bench, Scenario};
use crate::caches;
use crate::data::Model;
use crate::error::Result;
use crate::measure::take_turns;
use crate::memory;
use crate::process;
use crate::readers::helper::Helper;
use crate::report::{Bar, Comparison, Outcome, Relation, Sample, Sides, Unit};

const MIB: f64 = 1_048_576.0;

/// Two against one: the same, but for the few MiB that a process has of its own.
const OF_ONE: f64 = 1.01;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Before {
    /// Nobody has read the model.
    Cold,
    /// It is in the page cache, or in the arena.
    Warm,
}

/// What came of programs that loaded at once.
struct Held {
    seconds: f64,
    /// All that the machine used more with the model loaded and held, in MiB.
    memory: f64,
}

pub fn run(bench: &mut Bench, before: Before, scenario: &Scenario) -> Result<Vec<Outcome>> {
    let weightfs = bench.weightfs.clone();
    let native = bench.native(Model::Medium);
    let through_mount = bench.through_mount(Model::Medium);
    let size = bench.size(Model::Medium)?;
    let of_folder = |count: usize| {
        caches::drop_all()?;
        memory::back(size * 9 / 4)?;
        let used = process::used_memory()?;
        if before == Before::Warm {
            hold(1, &native)?;
        }
        finish(hold(count, &native)?, used)
    };
    let of_mount = |count: usize| {
        weightfs.forget_history()?;
        let mounted = weightfs.mount(&[])?;
        caches::drop_all()?;
        memory::back(size * 9 / 4)?;
        let used = process::used_memory()?;
        if before == Before::Warm {
            mounted.prefetch(std::slice::from_ref(&through_mount))?;
        }
        let held = finish(hold(count, &through_mount)?, used)?;
        mounted.unmount()?;
        Ok(held)
    };
    let mut samples = take_turns(
        bench.pairs,
        &mut [Box::new(|| of_folder(2)), Box::new(|| of_mount(2)), Box::new(|| of_folder(1)), Box::new(|| of_mount(1))],
    )?
    .into_iter();
    let mut next = || samples.next().expect("as many as were asked for");
    let (two_native, two, one_native, one) = (next(), next(), next(), next());
    let compared = |what: &str, title: &str, unit, bar, (a, b): (&[Held], &[Held]), value: fn(&Held) -> f64| {
        let pairs: Vec<_> = a.iter().zip(b).map(|(a, b)| (Sample::of(value(a)), Sample::of(value(b)))).collect();
        let (id, title) = (format!("{}-{what}", scenario.id), format!("{}, {title}", scenario.title));
        Comparison::of(id, title, unit, (Relation::Ratio, bar), &pairs)
    };
    let bar = (before == Before::Warm).then_some(Bar::AtMost(OF_ONE));
    let memory = |held: &Held| held.memory;
    let of_one = Sides::of("weightfs, one", "weightfs, two");
    let of_one_native = Sides::of("native, one", "native, two");
    Ok([
        compared("time", "until both have it", Unit::Seconds, None, (&two_native, &two), |held| held.seconds),
        compared("memory", "memory of two", Unit::Mebibytes, None, (&two_native, &two), memory),
        compared("memory-of-one", "memory", Unit::Mebibytes, bar, (&one, &two), memory).between(of_one),
        compared("memory-native", "memory", Unit::Mebibytes, None, (&one_native, &two_native), memory)
            .between(of_one_native),
    ]
    .map(Outcome::Compared)
    .into())
}

/// Programs that hold a model, and the seconds until the last of them had it.
fn hold(count: usize, path: &Path) -> Result<(Vec<Helper>, f64)> {
    let mut helpers = (0..count).map(|_| Helper::start(&[])).collect::<Result<Vec<_>>>()?;
    let start = std::time::Instant::now();
    helpers.iter_mut().try_for_each(|helper| helper.begin_hold(path))?;
    for helper in &mut helpers {
        helper.held()?;
    }
    Ok((helpers, start.elapsed().as_secs_f64()))
}

fn finish((helpers, seconds): (Vec<Helper>, f64), before: u64) -> Result<Held> {
    let memory = (process::used_memory()? as f64 - before as f64) / MIB;
    drop(helpers);
    Ok(Held { seconds, memory })
}
