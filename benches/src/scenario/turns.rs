//! Three models in turn that do not fit together: the loop of a workflow, against the page cache in as much memory.

use weightfs::ids::FileId;
use weightfs::residency::{PolicyKind, RefetchCost, UseKind};
use weightfs::trace::{Event, Trace, What, optimum, replay};
use weightfs::units::extent_count;

use super::{Bench, Scenario};
use crate::caches;
use crate::error::{Doing, Result};
use crate::measure::interleave;
use crate::readers::turns::{self, Turns};
use crate::report::{Bar, Comparison, Figure, Outcome, Relation, Sample, Unit};

const ROUNDS: usize = 6;

/// A loop over this part of what it needs is where caches differ.
const FITS: (u64, u64) = (2, 3);

const MIB: f64 = 1_048_576.0;

/// Of what a cache that knows the future reads.
const MOST: f64 = 1.15;

pub fn run(bench: &mut Bench, scenario: &Scenario) -> Result<Vec<Outcome>> {
    let ram = bench.library.sizes.turn * 3 / FITS.1 * FITS.0;
    let mut weightfs = bench.weightfs.clone();
    weightfs.options.retain(|option| !option.starts_with("--ram="));
    weightfs.options.push(format!("--ram={ram}"));
    weightfs.forget_history()?;
    let native = bench.library.turns(&bench.library.folder);
    let through_mount = bench.library.turns(&weightfs.mountpoint);
    let rounds = interleave(
        bench.pairs,
        || {
            caches::drop_all()?;
            turns::in_limited_group(&native, ROUNDS, ram)
        },
        || {
            let mounted = weightfs.mount(&[])?;
            caches::drop_all()?;
            let turns = turns::read(&through_mount, ROUNDS, || Ok(mounted.work()?.source_read_bytes))?;
            mounted.unmount()?;
            Ok(turns)
        },
    )?;
    let sizes = native.iter().map(|path| Ok(std::fs::metadata(path).doing(|| "look at a model".to_owned())?.len()));
    let (least, lru) = bounds(&sizes.collect::<Result<Vec<_>>>()?, ram);
    let compared = |what: &str, title: &str, unit, bar, value: fn(&Turns) -> f64| {
        let pairs: Vec<_> = rounds.iter().map(|(a, b)| (Sample::of(value(a)), Sample::of(value(b)))).collect();
        let (id, title) = (format!("{}-{what}", scenario.id), format!("{}, {title}", scenario.title));
        Comparison::of(id, title, unit, (Relation::Ratio, bar), &pairs)
    };
    let read = |turns: &Turns| turns.read as f64 / MIB;
    let bytes = compared("read", "read from the disk", Unit::Mebibytes, None, read);
    let seconds = compared("time", "time", Unit::Seconds, Some(Bar::AtMost(1.0)), |turns| turns.seconds);
    let figure = |what: &str, title: &str, unit, value, bar| {
        Outcome::Figure(Figure::of(format!("{}-{what}", scenario.id), title, unit, value, bar))
    };
    let part = bytes.mount.median / least;
    Ok(vec![
        Outcome::Compared(seconds),
        figure("least", "the same loop, what a cache that knows the future reads", Unit::Mebibytes, least, None),
        figure("lru", "the same loop, what a least-recently-used cache reads", Unit::Mebibytes, lru, None),
        figure("part", "weightfs against the least", Unit::Times, part, Some(Bar::AtMost(MOST))),
        Outcome::Compared(bytes),
    ])
}

/// MiB that the best possible cache and a least-recently-used one of `ram` bytes read in all rounds but the first.
fn bounds(sizes: &[u64], ram: u64) -> (f64, f64) {
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
    let least = optimum(&trace, ram, counted.clone()).missed as f64;
    (least / MIB, replay(&trace, PolicyKind::Lru, ram, counted).missed as f64 / MIB)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loop_of_three_of_which_two_fit_misses_one_at_best_and_all_at_worst() {
        let (least, lru) = bounds(&[64 << 20; 3], 128 << 20);
        assert_eq!((least, lru), (5.0 * 64.0, 15.0 * 64.0));
    }
}
