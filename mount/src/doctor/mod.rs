//! What this machine and the sources have and lack: each tried, not guessed, with what it costs and what mends it.
//!
//! For the daemon as for the command line, which shows it. Nothing here writes to a terminal; `observe` is told what is
//! being tried, since some of it takes a second or two.

mod finding;
mod kernel;
mod memory;
mod reading;
mod source;
mod speed;
mod survey;

use std::time::Duration;

pub use finding::{Finding, Fix, FixError};
pub use memory::{memory_total, reserve};
pub use source::{Subject, source};

/// How long the speed of one source is measured.
pub const MEASURED: Duration = Duration::from_millis(1500);

/// The machine, whatever is mounted. Takes some tens of milliseconds.
pub fn machine(observe: &mut dyn FnMut(&str)) -> Vec<Finding> {
    observe("what the kernel's FUSE gives");
    let mut findings = kernel::check();
    observe("the pages of the arena");
    findings.extend(memory::arena());
    observe("io_uring");
    findings.push(reading::io_uring());
    findings
}
