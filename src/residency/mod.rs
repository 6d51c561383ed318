//! Which bytes stay in RAM.
//!
//! [`Residency`] is told what is opened, read, filled and evicted, and answers what to admit and what to evict, with
//! reasons. It does no I/O and reads no clock: the same calls give the same answers, so that a recorded trace can be
//! replayed under any policy and budget (`trace`).
//!
//! Inside, a [`policy::Policy`] models the cache in coarse [`blocks`] and names what it would keep; the engine lets
//! reality follow as misses come, exact to the extent, and adds what no policy guesses: pins, priorities, marks of
//! use, what clients hold, and the queue of what comes.

pub mod blocks;
mod decide;
mod engine;
mod explain;
pub mod extents;
mod file;
mod mru;
mod order;
pub mod policy;
mod shelf;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
mod types;

pub use engine::Residency;
pub use explain::{Explanation, Next};
pub use extents::ExtentSet;
pub use types::{AdmitReason, Decision, EvictReason, PinError, PinScope, Priority, RefetchCost, UseKind, Victim};

/// The policies by name.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum PolicyKind {
    Mru,
}

impl PolicyKind {
    pub fn build(self) -> Box<dyn policy::Policy> {
        match self {
            PolicyKind::Mru => Box::new(mru::Mru::new()),
        }
    }
}
