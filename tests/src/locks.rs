//! POSIX record locks with a range, which the standard library does not have.

use std::os::fd::AsFd;

use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordLock {
    Read,
    Write,
    Unlock,
}

/// Takes or gives back a lock on `len` bytes from `start` (0: to the end), without waiting.
///
/// # Errors
/// EAGAIN or EACCES where somebody else holds a lock that excludes this one.
pub fn record_lock(file: impl AsFd, lock: RecordLock, start: i64, len: i64) -> nix::Result<()> {
    fcntl(file, FcntlArg::F_SETLK(&request(lock, start, len))).map(drop)
}

/// Whether somebody else holds a lock that excludes this one.
///
/// # Errors
/// What `fcntl` says.
pub fn would_conflict(file: impl AsFd, lock: RecordLock, start: i64, len: i64) -> nix::Result<bool> {
    let mut request = request(lock, start, len);
    fcntl(file, FcntlArg::F_GETLK(&mut request))?;
    Ok(i32::from(request.l_type) != libc::F_UNLCK)
}

fn request(lock: RecordLock, start: i64, len: i64) -> libc::flock {
    let kind = match lock {
        RecordLock::Read => libc::F_RDLCK,
        RecordLock::Write => libc::F_WRLCK,
        RecordLock::Unlock => libc::F_UNLCK,
    };
    libc::flock { l_type: kind as i16, l_whence: libc::SEEK_SET as i16, l_start: start, l_len: len, l_pid: 0 }
}
