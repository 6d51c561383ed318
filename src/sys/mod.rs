//! Every `unsafe` block and raw system call of the project, each behind a safe function.

pub mod cachestat;
pub mod mapping;
pub mod uring;
