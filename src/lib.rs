//! The core of weightfs: it knows model files, extents, pinned RAM and how to fill it, and nothing of FUSE.
//!
//! Arrows point one way. Pure modules (`format`, `extent`, `residency`, `predict`, `pressure`, `pattern`, `trace`) take bytes,
//! time and samples as arguments and do no I/O; `arena` and `fill` touch the machine through `sys`, `machine` looks at it; `store` composes
//! all of them into what a filesystem needs: open, read, write, evict, report.

pub mod arena;
pub mod control;
pub mod extent;
pub mod failpoint;
pub mod fill;
pub mod format;
pub mod gpu;
pub mod ids;
pub mod journal;
pub mod machine;
pub mod pattern;
pub mod predict;
pub mod pressure;
pub mod residency;
pub mod store;
pub mod trace;
pub mod units;

#[allow(unsafe_code)]
pub mod sys;
