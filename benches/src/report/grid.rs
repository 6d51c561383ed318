//! Readers against the ways in which a folder can be served.

use serde::Serialize;

use super::Unit;
use crate::measure::Spread;

#[derive(Debug, Serialize)]
pub struct Grid {
    pub id: String,
    pub title: String,
    pub unit: Unit,
    pub columns: Vec<String>,
    pub rows: Vec<GridRow>,
    /// What a reader has to know of it.
    pub notes: Vec<String>,
}

#[derive(Debug, Serialize)]
pub struct GridRow {
    pub name: String,
    /// One for each column.
    pub cells: Vec<Cell>,
}

#[derive(Clone, Debug, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Cell {
    Measured {
        spread: Spread,
        samples: Vec<f64>,
        /// CPU seconds of the daemon for a GB, its own and the kernel's on its behalf. None where there is no daemon.
        cpu_per_gigabyte: Option<f64>,
    },
    /// Why there is nothing.
    Missing { reason: String },
}

impl Cell {
    /// `cpu_seconds` and `bytes` are sums over all samples.
    pub fn measured(samples: Vec<f64>, cpu_seconds: Option<f64>, bytes: u64) -> Self {
        let cpu_per_gigabyte = cpu_seconds.map(|seconds| seconds / (bytes as f64 / 1e9));
        Cell::Measured { spread: Spread::of(&samples), samples, cpu_per_gigabyte }
    }

    pub fn median(&self) -> Option<f64> {
        match self {
            Cell::Measured { spread, .. } => Some(spread.median),
            Cell::Missing { .. } => None,
        }
    }
}
