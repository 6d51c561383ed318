//! The write lease: proof that nobody else has a file open or mapped.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

use nix::libc;

/// Whether this descriptor is the only open file of its inode, and nobody else maps it.
///
/// The kernel grants a write lease exactly then, provided that `file` came from a real `open` for writing (a bare
/// memfd does not count its own writer). The lease is given back at once: who relies on the answer must keep others
/// from opening the file meanwhile.
pub fn sole_user(file: &File) -> io::Result<bool> {
    // SAFETY: F_SETLEASE takes an integer and touches no memory of ours; the descriptor is open for the whole call.
    let granted = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLEASE, libc::F_WRLCK) };
    if granted == 0 {
        // SAFETY: as above.
        unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLEASE, libc::F_UNLCK) };
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
