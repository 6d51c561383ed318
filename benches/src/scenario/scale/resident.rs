//! More and more bytes in the arena: what the daemon takes besides, how fast its worker is replaced, and how it ends.

use std::path::PathBuf;
use std::time::Instant;

use super::readers::read_all;
use super::{Curves, Folder, GIB, RUNS, milliseconds};
use crate::caches;
use crate::data::sparse;
use crate::error::Result;
use crate::memory;
use crate::report::{Figure, Outcome, Unit};
use crate::scenario::{Bench, Scenario};

/// Bytes of one of the models.
pub const MODEL: u64 = GIB / 4;

pub fn run(bench: &mut Bench, counts: &[u64], scenario: &Scenario) -> Result<Vec<Outcome>> {
    let folder = Folder::make(bench)?;
    let name = |index: u64| format!("{index:03}.safetensors");
    let most = counts.iter().copied().max().unwrap_or(1);
    for index in 0..most {
        sparse::write(&folder.path().join(name(index)), MODEL)?;
    }
    folder.settle();
    let mut curves = Curves::default();
    for _ in 0..RUNS {
        for count in counts.iter().copied() {
            let bytes = count * MODEL;
            // Room for the watermarks.
            let weightfs = folder.with_ram(bytes + bytes / 16 + MODEL);
            weightfs.forget_history()?;
            caches::drop_all()?;
            memory::back(bytes)?;
            let start = Instant::now();
            (0..count).try_for_each(|index| read_all(&folder.path().join(name(index)), 1).map(drop))?;
            curves.add("native, page cache", count, milliseconds(start));
            caches::drop_all()?;
            memory::back(bytes)?;
            let mut mounted = weightfs.mount(&[])?;
            let before = mounted.memory()?.own();
            let all: Vec<PathBuf> = (0..count).map(|index| weightfs.mountpoint.join(name(index))).collect();
            let start = Instant::now();
            mounted.prefetch(&all)?;
            curves.add("weightfs, prefetch", count, milliseconds(start));
            let grown = mounted.memory()?.own().saturating_sub(before);
            curves.add("weightfs, memory", count, grown as f64 / 1024.0);
            curves.add("weightfs, worker replaced", count, mounted.kill_worker()?.as_secs_f64() * 1e3);
            mounted.wait_resident(bytes)?;
            let start = Instant::now();
            mounted.unmount()?;
            curves.add("weightfs, unmount", count, milliseconds(start));
        }
    }
    let gib = |count: u64| (count * MODEL) as f64 / GIB as f64;
    let growth = |what, lines: &[&str], explained| curves.growth(scenario, what, lines, (gib, explained));
    let each = curves.last("weightfs, memory") / gib(most);
    let title = format!("memory of the daemon besides the arena, for a GiB of {:.1}", gib(most));
    Ok(vec![
        growth(
            ("memory", "memory of the daemon besides the arena", "GiB resident", Unit::Kibibytes),
            &["weightfs, memory"],
            "Some bits for each extent of 2 MiB, beside what the first fill takes once: threads and buffers.",
        ),
        growth(
            ("time", "what takes longer with more in RAM", "GiB resident", Unit::Milliseconds),
            &["native, page cache", "weightfs, prefetch", "weightfs, worker replaced", "weightfs, unmount"],
            "Bytes are brought one by one, as the page cache takes them. A virtual machine that has to ask its host \
             for memory takes longer for a GiB the more it asks for, on either side. A worker that replaces another maps \
             the arena as it is and copies nothing.",
        ),
        Outcome::Figure(Figure::of(format!("{}-each", scenario.id), title, Unit::Kibibytes, each, None)),
    ])
}
