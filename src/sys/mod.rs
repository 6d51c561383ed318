//! Every `unsafe` block and raw system call of the project, each behind a safe function.

pub mod cachestat;
pub mod cuda;
pub mod cufile;
pub mod lease;
pub mod library;
pub mod locked;
pub mod mapping;
pub mod uring;

use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

/// Takes charge of a descriptor that was received as a number, for instance over a socket.
pub fn owned_fd(descriptor: RawFd) -> OwnedFd {
    // SAFETY: the number was just received as a new descriptor of this process, and nobody else knows it.
    unsafe { OwnedFd::from_raw_fd(descriptor) }
}

/// Makes the descriptor `old` lead to what `new` leads to. Its owner has given the number away for this, and keeps it
/// open meanwhile.
pub fn replace_descriptor(old: RawFd, new: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: the descriptor is open for the whole call, and `ManuallyDrop` leaves it to its owner.
    let mut old = ManuallyDrop::new(unsafe { OwnedFd::from_raw_fd(old) });
    Ok(rustix::io::dup3(new, &mut old, rustix::io::DupFlags::CLOEXEC)?)
}

mod ioctl {
    // FUSE_DEV_IOC_BACKING_CLOSE of linux/fuse.h.
    nix::ioctl_write_ptr!(backing_close, 229, 2, u32);
}

/// Gives back the kernel's reference to a file that it reads from on behalf of the FUSE `device`.
pub fn close_backing(device: BorrowedFd<'_>, backing: u32) -> io::Result<()> {
    // SAFETY: the ioctl reads one number from the address that it is given.
    unsafe { ioctl::backing_close(device.as_raw_fd(), &raw const backing) }?;
    Ok(())
}
