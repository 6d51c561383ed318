//! weightfs against the plain folder behind it, measured in one run.
//!
//! A [`scenario`] is data: which file, which reader, what state the native side and the mount are in, and which bar the
//! result is held to. Samples are taken in pairs, one side after the other (A B A B), so that whatever else the machine
//! does meets both. [`report`] has what comes out.

pub mod caches;
pub mod cgroup;
pub mod data;
pub mod error;
pub mod interrupt;
pub mod machine;
pub mod measure;
pub mod memory;
pub mod nobody;
pub mod passthrough;
pub mod process;
pub mod profile;
pub mod readahead;
pub mod readers;
pub mod report;
pub mod scenario;
pub mod wakeup;
pub mod weightfs;
