//! What of a file the page cache holds: `cachestat(2)`, Linux 6.5.

use std::fs::File;
use std::os::fd::AsRawFd;

use nix::libc;

/// As on every architecture: the call is newer than the common numbering.
const SYS_CACHESTAT: libc::c_long = 451;

const PAGE: u64 = 4096;

#[repr(C)]
struct Range {
    offset: u64,
    len: u64,
}

/// Counts of pages.
#[repr(C)]
#[derive(Default)]
struct Stat {
    cached: u64,
    dirty: u64,
    writeback: u64,
    evicted: u64,
    recently_evicted: u64,
}

/// Whether the page cache holds every page of `len` bytes from `offset`, a multiple of 4096. None where the kernel
/// does not tell: it is too old, or the file belongs to somebody else. Does no I/O.
pub fn all_cached(file: &File, offset: u64, len: u64) -> Option<bool> {
    if len == 0 {
        return Some(true);
    }
    // The kernel counts pages of its own size, which may be larger than ours: then this says "no" too often.
    cached_pages(file, offset, len).map(|pages| pages >= (offset % PAGE + len).div_ceil(PAGE))
}

/// How many pages of `len` bytes from `offset` the page cache holds; all to the end of the file where `len` is 0. None
/// where the kernel does not tell.
pub fn cached_pages(file: &File, offset: u64, len: u64) -> Option<u64> {
    let range = Range { offset, len };
    let mut stat = Stat::default();
    // SAFETY: both pointers are to live values of the layout that the call documents, and it keeps neither.
    let result =
        unsafe { libc::syscall(SYS_CACHESTAT, file.as_raw_fd(), &raw const range, &raw mut stat, 0 as libc::c_uint) };
    (result == 0).then_some(stat.cached)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn what_was_just_written_is_cached_and_a_hole_is_not() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&[1; 10_000]).unwrap();
        file.set_len(1 << 20).unwrap();
        let Some(cached) = all_cached(&file, 0, 8192) else { return };
        assert!(cached);
        assert_eq!(cached_pages(&file, 0, 0), Some(3));
        assert_eq!(all_cached(&file, 0, 1 << 20), Some(false));
        assert_eq!(all_cached(&file, 65536, 1), Some(false));
    }
}
