//! Three models in turn that do not fit together: the loop of a workflow, against the page cache in as much memory.

use weightfs::ids::FileId;
use weightfs::residency::{PolicyKind, RefetchCost, UseKind};
use weightfs::trace::{Event, Outcome as Replayed, Trace, What, optimum, replay};
use weightfs::units::extent_count;

use super::{Bench, Scenario};
use crate::caches;
use crate::cgroup::Throttle;
use crate::error::{Doing, Result};
use crate::measure::{Spread, interleave};
use crate::memory;
use crate::readers::turns::{self, Turns};
use crate::report::{Bar, Comparison, Figure, Outcome, Relation, Sample, Unit};

const ROUNDS: usize = 6;

const MIB: f64 = 1_048_576.0;

/// A loop over so many hundredths of the memory, and what it is held to.
#[derive(Clone, Copy, Debug)]
pub struct Loop {
    pub hundredths: u64,
    /// Of the time that the page cache takes.
    pub time: Option<f64>,
    /// Of the bytes that a cache reads that knows the future.
    pub bytes: Option<f64>,
}

impl Loop {
    pub fn run(&self, bench: &mut Bench, scenario: &Scenario) -> Result<Vec<Outcome>> {
        let ram = bench.library.sizes.turn * 3 * 100 / self.hundredths;
        let mut weightfs = bench.weightfs.clone();
        weightfs.options.retain(|option| !option.starts_with("--ram="));
        weightfs.options.push(format!("--ram={ram}"));
        let native = bench.library.turns(&bench.library.folder);
        let through_mount = bench.library.turns(&weightfs.mountpoint);
        // The daemon is started by this process, and so is held to it as well.
        let throttle = bench.throttle.map(|speed| Throttle::new(&bench.library.folder, speed)).transpose()?;
        let rounds = interleave(
            bench.pairs,
            || {
                caches::drop_all()?;
                memory::back(ram * 2)?;
                turns::in_limited_group(&native, ROUNDS, ram)
            },
            || {
                weightfs.forget_history()?;
                let mounted = weightfs.mount(&[])?;
                caches::drop_all()?;
                memory::back(ram * 2)?;
                let read_so_far = || Ok(mounted.work()?.source_read_bytes);
                let turns = bench.watch.over(|| turns::read(&through_mount, ROUNDS, read_so_far))?;
                mounted.unmount()?;
                Ok(turns)
            },
        )?;
        drop(throttle);
        let sizes = native.iter().map(|path| Ok(std::fs::metadata(path).doing(|| "look at a model".to_owned())?.len()));
        Ok(self.judge(&bounds(&sizes.collect::<Result<Vec<_>>>()?, ram), &rounds, scenario))
    }

    fn judge(&self, bounds: &Bounds, rounds: &[(Turns, Turns)], scenario: &Scenario) -> Vec<Outcome> {
        let compared = |what: &str, title: &str, unit, bar, value: &dyn Fn(&Turns) -> f64| {
            let pairs: Vec<_> = rounds.iter().map(|(a, b)| (Sample::of(value(a)), Sample::of(value(b)))).collect();
            let (id, title) = (format!("{}-{what}", scenario.id), format!("{}, {title}", scenario.title));
            Comparison::of(id, title, unit, (Relation::Ratio, bar), &pairs)
        };
        let figure = |what: &str, title: &str, unit, value, bar| {
            let (id, title) = (format!("{}-{what}", scenario.id), format!("{}, {title}", scenario.title));
            Outcome::Figure(Figure::of(id, title, unit, value, bar))
        };
        let hits = |read: f64| 100.0 * (1.0 - read / bounds.wanted);
        let read = |turns: &Turns| turns.read as f64 / MIB;
        let least = bounds.least.missed as f64 / MIB;
        let seconds = compared("time", "time", Unit::Seconds, self.time.map(Bar::AtMost), &|turns| turns.seconds);
        let bytes = compared("read", "read from the disk", Unit::Mebibytes, None, &read);
        let native = Spread::of(&rounds.iter().map(|(native, _)| read(native)).collect::<Vec<_>>());
        let part = bytes.mount.median / least;
        let bar = self.bytes.map(Bar::AtMost);
        let possible = |replayed: &Replayed| 100.0 * replayed.hit_ratio();
        vec![
            figure("part", "bytes read, to the least possible (MIN)", Unit::Times, part, bar),
            figure("hits-native", "hits of the page cache", Unit::Percent, hits(native.median), None),
            figure("hits", "hits of weightfs", Unit::Percent, hits(bytes.mount.median), None),
            figure(
                "hits-min",
                "hits of a cache that knows the future (MIN)",
                Unit::Percent,
                possible(&bounds.least),
                None,
            ),
            figure("hits-lru", "hits of a least-recently-used cache", Unit::Percent, possible(&bounds.lru), None),
            Outcome::Compared(seconds),
            Outcome::Compared(bytes),
        ]
    }
}

/// What the best possible cache and a least-recently-used one come to in all rounds but the first.
struct Bounds {
    /// MiB that the loop reads of its models.
    wanted: f64,
    least: Replayed,
    lru: Replayed,
}

fn bounds(sizes: &[u64], ram: u64) -> Bounds {
    let cost = RefetchCost::from_bytes_per_second(1 << 30);
    let file = |index: usize| FileId(index as u64);
    let known = sizes.iter().enumerate().map(|(index, size)| What::File { file: file(index), size: *size, cost });
    let load = |(index, size): (usize, &u64)| {
        let open = What::Open { open: 0, file: file(index), kind: UseKind::Load };
        let read = What::Read { open: 0, extents: 0..extent_count(*size) };
        [open, read, What::Close { open: 0, kind: UseKind::Load }]
    };
    let loads = (0..ROUNDS).flat_map(|_| sizes.iter().enumerate().flat_map(load));
    let events: Vec<_> = known.chain(loads).map(|what| Event { at_ms: 0, what }).collect();
    let trace = Trace { events };
    let counted = sizes.len() * 4..trace.events.len();
    let wanted = sizes.iter().sum::<u64>() as f64 / MIB * (ROUNDS - 1) as f64;
    let least = optimum(&trace, ram, counted.clone());
    Bounds { wanted, least, lru: replay(&trace, PolicyKind::Lru, ram, counted) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loop_of_three_of_which_two_fit_misses_one_at_best_and_all_at_worst() {
        let bounds = bounds(&[64 << 20; 3], 128 << 20);
        assert_eq!((bounds.least.missed, bounds.lru.missed), ((5 * 64) << 20, (15 * 64) << 20));
        assert_eq!(bounds.wanted, 15.0 * 64.0);
    }
}
