//! Traces of what is opened, read and decided: recording, generating and replaying them.
//!
//! A trace recorded in production or made by [`generate`] is replayed through the very engine that decides in
//! production ([`simulate::replay`]) and held against the best that was possible ([`optimum::optimum`]).

mod event;
mod format;
pub mod generate;
mod optimum;
mod random;
mod recorded;
mod simulate;
#[cfg(test)]
mod suite;
#[cfg(test)]
mod vram;

pub use event::{Event, What};
pub use format::{Reader, TraceError, Writer};
pub use optimum::optimum;
pub use recorded::Trace;
pub use simulate::{Outcome, Replay, Row, replay, sweep};
