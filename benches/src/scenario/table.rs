//! The scenarios and their bars, in the order in which they run.

use super::first_byte::{FirstByte, Place};
use super::instances::Before;
use super::scale::Scale;
use super::table_of_readers::Which;
use super::turns::Loop;
use super::walk::{Through, Walk, When};
use super::{Job, Load, Native, Scenario, Served};
use crate::data::Model;
use crate::readahead::KERNELS_DEFAULT;
use crate::readers::{Loader, Reader};
use crate::report::Bar;

/// Which scenarios, and how far those go whose length is a choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Length {
    /// All of them, as short as they can be.
    Quick,
    /// What is set against the plain folder.
    Usual,
    /// How costs grow.
    Long,
}

impl Length {
    fn has(self, scenario: &Scenario) -> bool {
        match self {
            Length::Quick => true,
            Length::Usual => !matches!(scenario.job, Job::Scale(_)),
            Length::Long => matches!(scenario.job, Job::Scale(_)),
        }
    }
}

pub fn all(length: Length) -> Vec<Scenario> {
    let load = |id, title, model, reader, (native, served), bar| Scenario {
        id,
        title,
        job: Job::Load(Load { model, reader, native, served, read_ahead: None, bar }),
    };
    // Mappings of the plain folder depend on how the disk is set.
    let by_default = |scenario: Scenario, id, title| match scenario.job {
        Job::Load(load) => Scenario { id, title, job: Job::Load(Load { read_ahead: Some(KERNELS_DEFAULT), ..load }) },
        _ => scenario,
    };
    let of = |id, title, job| Scenario { id, title, job };
    let walk = |id, title, when, bar| of(id, title, Job::Walk(Walk { when, through: Through::Weightfs, bar }));
    let plain_walk =
        |id, title, when| of(id, title, Job::Walk(Walk { when, through: Through::Passthrough, bar: None }));
    let first_byte = |id, title, place, bar| Scenario { id, title, job: Job::FirstByte(FirstByte { place, bar }) };
    let turns = |id, title, hundredths, (time, bytes)| of(id, title, Job::Turns(Loop { hundredths, time, bytes }));
    let scale = |id, title, scale: fn(Length) -> Scale| of(id, title, Job::Scale(scale(length)));
    let at_least = |bar| Some(Bar::AtLeast(bar));
    let at_most = |bar| Some(Bar::AtMost(bar));
    let unknown = (Native::Empty, Served::NewUnknown);
    let device = (Native::Device, Served::NewUnknown);
    let known = (Native::Empty, Served::NewKnown);
    let streamed = (Native::AsLeft, Served::Streamed);
    let kept = (Native::AsLeft, Served::Kept);
    let resident = (Native::AsLeft, Served::Resident);
    let safetensors = Reader::Python(Loader::Safetensors);
    use Model::{Large, Medium};
    use Reader::{Pread, PreadAndDrop, PrivateMap};
    let resident_map = load("resident-map", "resident, private map", Large, PrivateMap, resident, at_least(1.05));
    let cold_map =
        load("cold-map-known", "cold, private map, known to be loaded", Medium, PrivateMap, known, at_least(1.2));
    let mut all = vec![
        load("resident-pread", "resident, 8 × 2 MiB pread", Large, Pread, resident, at_least(0.95)),
        resident_map,
        by_default(resident_map, "resident-map-128", "resident, private map, readahead of 128 KiB as kernels have it"),
        load("resident-safetensors", "resident, safetensors for Python", Large, safetensors, resident, at_least(1.0)),
        load("reload-and-drop", "reload with DONTNEED behind each read", Large, PreadAndDrop, resident, at_least(8.0)),
        load("cold-pread", "cold, 8 × 2 MiB pread, never seen", Large, Pread, unknown, at_least(1.2)),
        load("cold-pread-device", "cold, 8 × 2 MiB pread, against the device", Large, Pread, device, at_least(0.9)),
        load("cold-pread-known", "cold, 8 × 2 MiB pread, known to be loaded", Medium, Pread, known, None),
        load("cold-map", "cold, private map, never seen", Medium, PrivateMap, unknown, None),
        cold_map,
        by_default(cold_map, "cold-map-known-128", "cold, private map, known, readahead of 128 KiB as kernels have it"),
        load("streamed-pread", "streamed out of the arena, 8 × 2 MiB pread", Large, Pread, streamed, at_least(0.45)),
        load("streamed-map", "streamed out of the arena, private map", Medium, PrivateMap, streamed, None),
        load("kept-map", "kept by the kernel without passthrough, private map", Medium, PrivateMap, kept, None),
        turns("loop-1.25", "loop over 1.25 × the memory", 125, (None, None)),
        turns("loop-1.5", "loop over 1.5 × the memory", 150, (Some(0.55), Some(1.1))),
        turns("loop-2", "loop over 2 × the memory", 200, (None, None)),
        turns("loop-3", "loop over 3 × the memory", 300, (None, None)),
        of("restart-worker", "resident, after the worker was killed", Job::WorkerKilled),
        of("restart-client", "loaded again after the program that had it was killed", Job::ClientKilled),
        of("instances-cold", "two instances at once, cold", Job::Instances(Before::Cold)),
        of("instances-warm", "two instances at once, in RAM", Job::Instances(Before::Warm)),
        walk("walk-cold", "walk and stat, first, caches dropped for both", When::FirstCold, at_most(2.0)),
        walk("walk-first", "walk and stat, first on a new mount, caches kept", When::FirstKnown, at_most(3.0)),
        walk("walk-again", "walk and stat, again, 2.5 s apart", When::Again, at_most(1.2)),
        plain_walk("walk-cold-plain", "walk and stat, first, caches dropped, by a plain FUSE", When::FirstCold),
        plain_walk("walk-first-plain", "walk and stat, first on a new mount, by a plain FUSE", When::FirstKnown),
        plain_walk("walk-again-plain", "walk and stat, again, 2.5 s apart, by a plain FUSE", When::Again),
        first_byte("first-byte", "first 64 KiB of a cold file", Place::Header, at_most(2.0)),
        first_byte("first-byte-middle", "64 KiB in the middle of a cold file", Place::Middle, at_most(2.0)),
        of("faults", "a page fault in a cold file while another is read", Job::Faults),
        of("cost", "what the daemon costs", Job::Cost),
        scale("scale-files", "growth with the files", Scale::files),
        scale("scale-sizes", "growth with the size of a model", Scale::sizes),
        scale("scale-resident", "growth with what is resident", Scale::resident),
        scale("scale-readers", "growth with parallel readers", Scale::readers),
        // These take longest, and no bar is held to them.
        of("readers", "every reader in every way", Job::Readers(Which::Usual)),
        of("engines", "loaders with engines of their own", Job::Readers(Which::Engines)),
    ];
    all.retain(|scenario| length.has(scenario));
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_scenario_has_a_name_of_its_own() {
        let mut ids: Vec<_> = all(Length::Quick).iter().map(|scenario| scenario.id).collect();
        let count = ids.len();
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), count);
    }

    #[test]
    fn the_usual_run_and_the_long_one_have_every_scenario_between_them_and_none_twice() {
        let ids = |length| all(length).iter().map(|scenario| scenario.id).collect::<Vec<_>>();
        let mut both = [ids(Length::Usual), ids(Length::Long)].concat();
        let mut every = ids(Length::Quick);
        both.sort_unstable();
        every.sort_unstable();
        assert_eq!(both, every);
    }
}
