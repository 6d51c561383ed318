//! Notices to the kernel that the FUSE library does not send, or not from the thread that they must come from: one that
//! must have arrived before an answer does cannot wait for the thread that tells of changes.

use std::ffi::OsStr;
use std::io::{self, IoSlice};
use std::os::fd::BorrowedFd;
use std::os::unix::ffi::OsStrExt;

/// Where the header of an answer has its error (linux/fuse.h).
const INVALIDATE_INODE: i32 = 2;
const INVALIDATE_ENTRY: i32 = 3;
/// Of the header.
const HEADER: usize = 16;
/// No page is meant, only the attributes. The kernel takes no lock on pages for that: also a thread that holds up an
/// operation on the file may say it.
const ATTRIBUTES_ONLY: i64 = -1;
/// The entry is to be looked up again, and goes only if it leads elsewhere by then. Kernels before 6.2 drop it at once.
const EXPIRE_ONLY: u32 = 1;

/// Has the kernel ask for the attributes of `node` again before it relies on them. Without that, an open might see a
/// changed file up to its former size until the change is heard of.
pub fn expire_attributes(device: BorrowedFd<'_>, node: u64) {
    let body = [node.to_ne_bytes(), ATTRIBUTES_ONLY.to_ne_bytes(), 0i64.to_ne_bytes()].concat();
    if let Err(error) = send(device, INVALIDATE_INODE, &body) {
        tracing::debug!(%error, node, "the kernel does not take a notice");
    }
}

/// Has the kernel look `name` up again before it relies on it. What is mounted on it stays.
pub fn expire_entry(device: BorrowedFd<'_>, directory: u64, name: &OsStr) -> io::Result<()> {
    let mut body = Vec::with_capacity(16 + name.len() + 1);
    body.extend_from_slice(&directory.to_ne_bytes());
    body.extend_from_slice(&(name.len() as u32).to_ne_bytes());
    body.extend_from_slice(&EXPIRE_ONLY.to_ne_bytes());
    body.extend_from_slice(name.as_bytes());
    body.push(0);
    match send(device, INVALIDATE_ENTRY, &body) {
        // It does not know the entry.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        sent => sent,
    }
}

fn send(device: BorrowedFd<'_>, what: i32, body: &[u8]) -> io::Result<()> {
    let mut header = [0; HEADER];
    header[..4].copy_from_slice(&((HEADER + body.len()) as u32).to_ne_bytes());
    header[4..8].copy_from_slice(&what.to_ne_bytes());
    rustix::io::writev(device, &[IoSlice::new(&header), IoSlice::new(body)])?;
    Ok(())
}
