//! Pins pages of a file for as long as somebody likes, as a GPU or a network card does that reads them by itself: as
//! fixed buffers of an io_uring, for which the kernel pins them in the same way (`FOLL_LONGTERM`).

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

use io_uring::{IoUring, opcode, types};
use memmap2::{MmapOptions, MmapRaw};
use nix::libc;

/// A shared mapping of a file, pinned.
pub struct PinnedMap {
    // Before the memory that it has pinned.
    ring: IoUring,
    map: MmapRaw,
}

impl PinnedMap {
    /// Pins the first `len` bytes of `file`, which must be open for writing: io_uring asks for memory that it may write.
    ///
    /// # Errors
    /// What the kernel says: where pages of this file cannot be pinned for long, `EOPNOTSUPP` or `EFAULT`.
    pub fn new(file: &File, len: usize) -> io::Result<Self> {
        Self::of(MmapOptions::new().len(len).map_raw(file)?)
    }

    /// The same of a mapping that may only be read.
    ///
    /// # Errors
    /// `EFAULT`: of such a mapping io_uring pins nothing, whatever the file.
    pub fn read_only(file: &File, len: usize) -> io::Result<Self> {
        Self::of(MmapOptions::new().len(len).map_raw_read_only(file)?)
    }

    #[allow(unsafe_code)]
    fn of(map: MmapRaw) -> io::Result<Self> {
        let ring = IoUring::new(4)?;
        let buffer = libc::iovec { iov_base: map.as_mut_ptr().cast(), iov_len: map.len() };
        // SAFETY: the memory is a mapping that `self` holds longer than the ring, and that only the kernel reads.
        unsafe { ring.submitter().register_buffers(&[buffer])? };
        Ok(Self { ring, map })
    }

    /// Has the kernel read the pinned pages from `offset` on and write them to the start of `target`, past any mapping.
    ///
    /// # Errors
    /// What the kernel says.
    ///
    /// # Panics
    /// Where the range is not inside the mapping.
    #[allow(unsafe_code)]
    pub fn write_to(&mut self, offset: usize, len: usize, target: &File) -> io::Result<usize> {
        assert!(offset.checked_add(len).is_some_and(|end| end <= self.map.len()), "outside the mapping");
        let from = self.map.as_mut_ptr().wrapping_add(offset);
        let entry = opcode::WriteFixed::new(types::Fd(target.as_raw_fd()), from, len as u32, 0).build();
        // SAFETY: buffer 0 is registered and holds the range, as was checked; the call below waits for the end.
        unsafe { self.ring.submission().push(&entry) }.map_err(io::Error::other)?;
        self.ring.submit_and_wait(1)?;
        let result = self.ring.completion().next().expect("it was waited for").result();
        usize::try_from(result).map_err(|_| io::Error::from_raw_os_error(-result))
    }
}
