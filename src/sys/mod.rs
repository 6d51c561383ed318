//! Every `unsafe` block and raw system call of the project, each behind a safe function.

pub mod cachestat;
pub mod cuda;
pub mod cufile;
pub mod lease;
pub mod library;
pub mod locked;
pub mod mapping;
pub mod uring;

use std::os::fd::{FromRawFd, OwnedFd, RawFd};

/// Takes charge of a descriptor that was received as a number, for instance over a socket.
pub fn owned_fd(descriptor: RawFd) -> OwnedFd {
    // SAFETY: the number was just received as a new descriptor of this process, and nobody else knows it.
    unsafe { OwnedFd::from_raw_fd(descriptor) }
}
