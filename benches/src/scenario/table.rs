//! The scenarios and their bars, in the order in which they run.

use super::first_byte::{FirstByte, Place};
use super::walk::{Walk, When};
use super::{Job, Load, Native, Scenario, Served};
use crate::data::Model;
use crate::readers::Reader;
use crate::report::Bar;

pub fn all() -> Vec<Scenario> {
    let load = |id, title, model, reader, (native, served), bar| Scenario {
        id,
        title,
        job: Job::Load(Load { model, reader, native, served, bar }),
    };
    let walk = |id, title, when, bar| Scenario { id, title, job: Job::Walk(Walk { when, bar }) };
    let first_byte = |id, title, place, bar| Scenario { id, title, job: Job::FirstByte(FirstByte { place, bar }) };
    let at_least = |bar| Some(Bar::AtLeast(bar));
    let at_most = |bar| Some(Bar::AtMost(bar));
    let unknown = (Native::Empty, Served::NewUnknown);
    let known = (Native::Empty, Served::NewKnown);
    let streamed = (Native::AsLeft, Served::Streamed);
    let resident = (Native::AsLeft, Served::Resident);
    use Model::{Large, Medium};
    use Reader::{Pread, PreadAndDrop, PrivateMap, Safetensors};
    vec![
        load("cold-pread", "cold, 8 × 2 MiB pread, never seen", Large, Pread, unknown, at_least(1.0)),
        load("cold-pread-known", "cold, 8 × 2 MiB pread, known to be loaded", Medium, Pread, known, None),
        load("cold-map", "cold, private map, never seen", Medium, PrivateMap, unknown, None),
        load("cold-map-known", "cold, private map, known to be loaded", Medium, PrivateMap, known, at_least(1.2)),
        load("streamed-pread", "warm, streamed, 8 × 2 MiB pread", Large, Pread, streamed, at_least(0.35)),
        load("streamed-map", "warm, streamed, private map", Medium, PrivateMap, streamed, None),
        load("resident-pread", "resident, 8 × 2 MiB pread", Large, Pread, resident, at_least(0.95)),
        load("resident-map", "resident, private map", Large, PrivateMap, resident, at_least(1.05)),
        load("resident-safetensors", "resident, safetensors for Python", Large, Safetensors, resident, at_least(1.0)),
        load("reload-and-drop", "reload with DONTNEED behind each read", Large, PreadAndDrop, resident, at_least(8.0)),
        walk("walk-first", "walk and stat, first on a new mount, caches kept", When::FirstKnown, at_most(3.0)),
        walk("walk-cold", "walk and stat, first on a new mount, caches dropped for both", When::FirstCold, None),
        walk("walk-again", "walk and stat, again, 2.5 s apart", When::Again, at_most(1.5)),
        first_byte("first-byte", "first 64 KiB of a cold file", Place::Header, at_most(2.0)),
        first_byte("first-byte-middle", "64 KiB in the middle of a cold file", Place::Middle, at_most(2.0)),
        Scenario { id: "loop", title: "three models in turn, in two thirds of the memory", job: Job::Turns },
        Scenario { id: "cost", title: "what the daemon costs", job: Job::Cost },
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_scenario_has_a_name_of_its_own() {
        let mut ids: Vec<_> = all().iter().map(|scenario| scenario.id).collect();
        let count = ids.len();
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), count);
    }
}
