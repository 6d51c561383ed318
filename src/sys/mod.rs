//! Every `unsafe` block and raw system call of the project, each behind a safe function.

pub mod cachestat;
pub mod lease;
pub mod locked;
pub mod mapping;
pub mod uring;
