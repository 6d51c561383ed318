//! What to read when a part of a model file is touched. Pure: maps and ranges in, ranges out; what is resident already
//! is asked of the caller.

mod plan;
mod requests;

pub use plan::{Plan, Window, plan};
pub use requests::requests;
