//! Locking mapped pages in memory.

use std::io;
use std::ops::Range;

use crate::sys::mapping::Mapping;

/// Keeps the pages of `range` in memory until they are unlocked or unmapped. Counts against RLIMIT_MEMLOCK.
pub fn lock(mapping: &Mapping, range: Range<usize>) -> io::Result<()> {
    let bytes = mapping.bytes(range);
    // SAFETY: the slice is mapped; locking does not change it.
    Ok(unsafe { rustix::mm::mlock(bytes.as_ptr().cast_mut().cast(), bytes.len()) }?)
}

/// Undoes [`lock`]. Pages that were not locked are left as they are.
pub fn unlock(mapping: &Mapping, range: Range<usize>) {
    let bytes = mapping.bytes(range);
    // SAFETY: the slice is mapped; unlocking does not change it.
    if let Err(error) = unsafe { rustix::mm::munlock(bytes.as_ptr().cast_mut().cast(), bytes.len()) } {
        tracing::debug!(%error, "pages could not be unlocked");
    }
}
