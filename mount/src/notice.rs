//! A notice to the kernel that must have arrived before an answer does, and so cannot come from the thread that tells of
//! changes.

use std::io::IoSlice;
use std::os::fd::BorrowedFd;

/// FUSE_NOTIFY_INVAL_INODE, where the header of an answer has its error (linux/fuse.h).
const INVALIDATE_INODE: i32 = 2;
/// Bytes of the header, and of a number and a range after it.
const LENGTH: u32 = 16 + 24;
/// No page is meant, only the attributes. The kernel takes no lock on pages for that: also a thread that holds up an
/// operation on the file may say it.
const ATTRIBUTES_ONLY: i64 = -1;

/// Has the kernel ask for the attributes of `node` again before it relies on them. Without that, an open might see a
/// changed file up to its former size until the change is heard of.
pub fn expire_attributes(device: BorrowedFd<'_>, node: u64) {
    let mut message = Vec::with_capacity(LENGTH as usize);
    message.extend_from_slice(&LENGTH.to_ne_bytes());
    message.extend_from_slice(&INVALIDATE_INODE.to_ne_bytes());
    message.extend_from_slice(&0u64.to_ne_bytes());
    message.extend_from_slice(&node.to_ne_bytes());
    message.extend_from_slice(&ATTRIBUTES_ONLY.to_ne_bytes());
    message.extend_from_slice(&0i64.to_ne_bytes());
    if let Err(error) = rustix::io::writev(device, &[IoSlice::new(&message)]) {
        tracing::debug!(%error, node, "the kernel does not take a notice");
    }
}
