//! Leases. The write lease proves that nobody else has a file open or mapped; the read lease, that nobody has it open or
//! mapped for writing.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::Once;

use nix::libc;
use nix::sys::signal::{SigHandler, Signal, signal};

/// Who opens the file while the lease is held waits for it, and the kernel tells its holder by a signal that would end this
/// process.
static SIGNAL_IGNORED: Once = Once::new();

/// Whether this descriptor is the only open file of its inode, and nobody else maps it.
///
/// The kernel grants a write lease exactly then, provided that `file` came from a real `open` for writing (a bare
/// memfd does not count its own writer). The lease is given back at once: who relies on the answer must keep others
/// from opening the file meanwhile.
pub fn sole_user(file: &File) -> io::Result<bool> {
    let granted = take(file, libc::F_WRLCK)?;
    if granted {
        give_back(file);
    }
    Ok(granted)
}

/// Has whoever opens a file for writing wait until the lease is given back; `file` must be open for reading only. False
/// where somebody has it open for writing, or mapped so.
///
/// A descriptor has one lease, however often it is taken.
///
/// # Errors
/// Where the file system has no leases, and for files of others without CAP_LEASE.
pub fn hold_writers_off(file: &File) -> io::Result<bool> {
    take(file, libc::F_RDLCK)
}

/// Gives back the lease of a descriptor, if there is one.
pub fn give_back(file: &File) {
    // SAFETY: F_SETLEASE takes an integer and touches no memory of ours; the descriptor is open for the whole call.
    unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLEASE, libc::F_UNLCK) };
}

/// Whether the kernel grants it.
fn take(file: &File, kind: i32) -> io::Result<bool> {
    SIGNAL_IGNORED.call_once(|| {
        // SAFETY: no handler is installed that could run at a bad moment, and nothing here waits for this signal.
        if let Err(error) = unsafe { signal(Signal::SIGIO, SigHandler::SigIgn) } {
            tracing::error!(%error, "SIGIO cannot be ignored");
        }
    });
    // SAFETY: as in `give_back`.
    if unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLEASE, kind) } == 0 {
        return Ok(true);
    }
    match io::Error::last_os_error() {
        error if error.raw_os_error() == Some(libc::EAGAIN) => Ok(false),
        error => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_opens_the_file_meanwhile_ends_nobody() {
        let named = tempfile::NamedTempFile::new_in("/dev/shm").unwrap();
        let until = std::time::Instant::now() + std::time::Duration::from_millis(500);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    while std::time::Instant::now() < until {
                        File::open(named.path()).unwrap();
                    }
                });
            }
            while std::time::Instant::now() < until {
                sole_user(named.as_file()).unwrap();
            }
        });
        assert!(sole_user(named.as_file()).unwrap());
    }

    #[test]
    fn another_open_file_or_mapping_refuses_the_lease() {
        let named = tempfile::NamedTempFile::new_in("/dev/shm").unwrap();
        named.as_file().set_len(4096).unwrap();
        assert!(sole_user(named.as_file()).unwrap());
        let other = File::open(named.path()).unwrap();
        assert!(!sole_user(named.as_file()).unwrap());
        // SAFETY: nobody writes to the file.
        let mapped = unsafe { memmap2::Mmap::map(&other) }.unwrap();
        drop(other);
        assert!(!sole_user(named.as_file()).unwrap());
        drop(mapped);
        assert!(sole_user(named.as_file()).unwrap());
    }
}
