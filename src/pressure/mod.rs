//! How much memory the arena may have: what the kernel says, and the law that follows from it.
//!
//! Callers read the files and pass their contents; nothing here does I/O or reads a clock.

mod budget;
mod cgroup;
mod meminfo;
mod psi;

pub use budget::{Budget, BudgetReason, Limits, Sample, default_reserve};
pub use cgroup::{GroupBound, Level, parse_membership, parse_v1, parse_v2, tightest};
pub use meminfo::{Meminfo, parse_meminfo};
pub use psi::{Psi, parse_psi};

/// A file of the kernel's that is not as it should be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{file} has no readable '{field}', so the budget cannot follow it")]
pub struct ParseError {
    pub file: &'static str,
    pub field: &'static str,
}
