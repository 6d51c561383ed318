//! How costs grow: with the files of a folder, the size of a model, what is resident, and how many read at once.

mod files;
mod readers;
mod resident;
mod sizes;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::table::Length;
use super::{Bench, Scenario};
use crate::error::{Doing, Result};
use crate::measure::Spread;
use crate::report::{Growth, Line, Outcome, Unit};
use crate::weightfs::Weightfs;

/// What grows, and through which values.
#[derive(Clone, Copy, Debug)]
pub enum Scale {
    Files(&'static [u64]),
    /// Bytes.
    Sizes(&'static [u64]),
    /// Models of [`resident::MODEL`] bytes.
    Resident(&'static [u64]),
    Readers(&'static [u64]),
}

/// Runs of each value. What is looked for are powers, not percents.
const RUNS: usize = 3;

const GIB: u64 = 1 << 30;

impl Scale {
    pub fn files(length: Length) -> Self {
        Scale::Files(match length {
            Length::Quick => &[20, 200],
            _ => &[100, 2_000, 20_000, 200_000],
        })
    }

    pub fn sizes(length: Length) -> Self {
        Scale::Sizes(match length {
            Length::Quick => &[GIB / 16, GIB],
            _ => &[GIB / 16, GIB / 4, GIB, 4 * GIB, 16 * GIB, 64 * GIB],
        })
    }

    pub fn resident(length: Length) -> Self {
        Scale::Resident(match length {
            Length::Quick => &[1, 2],
            _ => &[1, 2, 4, 8, 16, 32, 48],
        })
    }

    pub fn readers(length: Length) -> Self {
        Scale::Readers(match length {
            Length::Quick => &[1, 8],
            _ => &[1, 2, 4, 8, 16, 32, 64],
        })
    }

    pub fn run(self, bench: &mut Bench, scenario: &Scenario) -> Result<Vec<Outcome>> {
        match self {
            Scale::Files(counts) => files::run(bench, counts, scenario),
            Scale::Sizes(sizes) => sizes::run(bench, sizes, scenario),
            Scale::Resident(counts) => resident::run(bench, counts, scenario),
            Scale::Readers(counts) => readers::run(bench, counts, scenario),
        }
    }
}

/// What was measured, by curve and by the value that grew.
#[derive(Default)]
struct Curves(BTreeMap<&'static str, BTreeMap<u64, Vec<f64>>>);

impl Curves {
    fn add(&mut self, curve: &'static str, at: u64, value: f64) {
        self.0.entry(curve).or_default().entry(at).or_default().push(value);
    }

    /// A line that is judged if it is one of weightfs. `shown` makes of the value that grew what the plot has, and
    /// `whole` of a point the cost of all of it.
    fn line(&self, curve: &str, shown: impl Fn(u64) -> f64, whole: impl Fn(f64, f64) -> f64) -> Line {
        let points = self.0.get(curve).into_iter().flatten().map(|(at, values)| (shown(*at), Spread::of(values)));
        Line::of(curve, points.collect(), curve.starts_with("weightfs"), whole)
    }

    /// A growth of costs that are for the whole.
    fn growth(
        &self,
        scenario: &Scenario,
        (id, title, across, unit): (&str, &str, &str, Unit),
        curves: &[&str],
        (shown, explained): (fn(u64) -> f64, &str),
    ) -> Outcome {
        let lines = curves.iter().map(|curve| self.line(curve, shown, |_, cost| cost)).collect();
        let explained = format!("{explained} ({RUNS} runs of each.)");
        Outcome::Growth(Growth::of(format!("{}-{id}", scenario.id), title, (across, unit), lines, &explained))
    }

    /// The median of a curve at the largest value.
    fn last(&self, curve: &str) -> f64 {
        self.0
            .get(curve)
            .and_then(|points| points.last_key_value())
            .map_or(0.0, |(_, values)| Spread::of(values).median)
    }
}

/// A folder of its own beside the library, gone with its value, and a mount of it.
struct Folder {
    weightfs: Weightfs,
}

impl Folder {
    fn make(bench: &Bench) -> Result<Self> {
        let source = bench.library.folder.with_file_name("scale");
        let _ = std::fs::remove_dir_all(&source);
        std::fs::create_dir_all(&source).doing(|| format!("make {}", source.display()))?;
        Ok(Self { weightfs: Weightfs { source, ..bench.weightfs.clone() } })
    }

    fn path(&self) -> &Path {
        &self.weightfs.source
    }

    fn settle(&self) {
        rustix::fs::sync();
        std::thread::sleep(crate::data::SETTLE);
    }

    /// With so much RAM for models.
    fn with_ram(&self, bytes: u64) -> Weightfs {
        let mut weightfs = self.weightfs.clone();
        weightfs.options.retain(|option| !option.starts_with("--ram="));
        weightfs.options.push(format!("--ram={bytes}"));
        weightfs
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(self.path()) {
            eprintln!("cannot remove {}: {error}", self.path().display());
        }
    }
}

fn numbered(root: &Path, index: u64) -> PathBuf {
    root.join(format!("{:05}/{index:07}.safetensors", index / 100))
}

fn as_it_is(value: u64) -> f64 {
    value as f64
}

fn milliseconds(start: std::time::Instant) -> f64 {
    start.elapsed().as_secs_f64() * 1e3
}
