//! What comes out of a run: one value that is saved as JSON and rendered as Markdown with plots.

mod grid;
mod growth;
mod markdown;
mod outcome;
mod svg;

use serde::Serialize;

pub use grid::{Cell, Grid, GridRow};
pub use growth::{Growth, Line};
pub use markdown::{PLOTS, Rendered, render};
pub use outcome::{Bar, Comparison, Failed, Figure, Outcome, Relation, Sample, Sides, Skipped, Unit};

use crate::data::Sizes;
use crate::machine::{Machine, Probe};

#[derive(Debug, Serialize)]
pub struct Results {
    pub version: String,
    /// Seconds since the epoch.
    pub started: u64,
    pub seconds: f64,
    pub machine: Machine,
    /// What the disk gives, and whether it always gives the same.
    pub disk: Option<Probe>,
    /// Bytes a second that both sides of the loops were held to.
    pub throttle: Option<u64>,
    /// The load average of the minute before the run and of its last minute.
    pub load_before: Option<f64>,
    pub load_after: Option<f64>,
    /// Small files and few pairs, which say nothing of speed.
    pub is_quick: bool,
    pub pairs: usize,
    pub sizes: Sizes,
    /// Options of every mount.
    pub options: Vec<String>,
    /// What the daemon says it lacks on this machine.
    pub daemon_notes: Vec<String>,
    /// The packages whose loaders took part, or why there are none.
    pub python: Vec<String>,
    pub scenarios: Vec<Ran>,
    pub outcomes: Vec<Outcome>,
}

/// A scenario that was run.
#[derive(Debug, Serialize)]
pub struct Ran {
    pub id: &'static str,
    pub title: &'static str,
    pub seconds: f64,
}
