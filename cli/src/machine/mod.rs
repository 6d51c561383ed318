//! What this machine has, as far as mounting needs to know it.

pub mod fuse;
pub mod memory;
