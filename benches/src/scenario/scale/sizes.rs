//! Models of more and more bytes, of which only the header is looked at.

use super::{Curves, Folder, GIB, RUNS};
use crate::caches;
use crate::data::sparse;
use crate::error::Result;
use crate::readers::first_bytes;
use crate::report::{Outcome, Unit};
use crate::scenario::{Bench, Scenario};

const HEADER: usize = 64 << 10;

pub fn run(bench: &mut Bench, sizes: &[u64], scenario: &Scenario) -> Result<Vec<Outcome>> {
    let folder = Folder::make(bench)?;
    let weightfs = &folder.weightfs;
    let mut buffer = vec![1; HEADER];
    let name = |size: u64| format!("{}.safetensors", size >> 20);
    for size in sizes {
        sparse::write(&folder.path().join(name(*size)), *size)?;
    }
    folder.settle();
    let mut curves = Curves::default();
    for _ in 0..RUNS {
        for size in sizes.iter().copied() {
            caches::drop_all()?;
            let mut first = |root: &std::path::Path| -> Result<f64> {
                Ok(first_bytes(&root.join(name(size)), 0, &mut buffer)?.as_secs_f64() * 1e3)
            };
            curves.add("native, first", size, first(&weightfs.source)?);
            weightfs.forget_history()?;
            let mounted = weightfs.mount(&[])?;
            caches::drop_all()?;
            let before = mounted.memory()?.own();
            curves.add("weightfs, first", size, first(&weightfs.mountpoint)?);
            curves.add("weightfs, second", size, first(&weightfs.mountpoint)?);
            let grown = mounted.memory()?.own().saturating_sub(before);
            curves.add("weightfs, memory", size, grown as f64 / 1024.0);
            mounted.unmount()?;
        }
    }
    let gib = |size: u64| size as f64 / GIB as f64;
    let growth = |what, lines: &[&str], explained| curves.growth(scenario, what, lines, (gib, explained));
    Ok(vec![
        growth(
            ("first", "open and first 64 KiB of a model", "GiB of the model", Unit::Milliseconds),
            &["native, first", "weightfs, first", "weightfs, second"],
            "The header is read and understood, which has a tensor more for each 64 MiB. The rest of the file is not \
             touched, and no memory is taken for it before it is read.",
        ),
        growth(
            ("memory", "memory of the daemon for a model that was opened", "GiB of the model", Unit::Kibibytes),
            &["weightfs, memory"],
            "Its tensors, and some bits for each extent of 2 MiB, beside what the first open takes once.",
        ),
    ])
}
