//! Memory shared with an arena file, written by the kernel on our behalf and read by everyone.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::sync::atomic::AtomicU64;

use memmap2::{Advice, Mmap, MmapOptions, MmapRaw};

/// A shared, writable mapping of a whole file.
///
/// Who writes where and when is decided above (an extent is filled by one request, and read only once it is complete);
/// this type keeps every access inside the mapping and the mapping alive for as long as somebody holds it.
#[derive(Debug)]
pub struct Mapping {
    raw: MmapRaw,
}

impl Mapping {
    /// Maps the first `len` bytes of `file`, shared and writable. `len` must not be zero.
    pub fn shared(file: &File, len: usize) -> io::Result<Self> {
        MmapOptions::new().len(len).map_raw(file).map(|raw| Self { raw })
    }

    /// Asks for 2 MiB pages where the file system leaves that to its users.
    pub fn prefer_huge_pages(&self) {
        if let Err(error) = self.raw.advise(Advice::HugePage) {
            tracing::debug!(%error, "the kernel has no 2 MiB pages for this mapping");
        }
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        self.raw.len()
    }

    /// Never true: an empty file is not mapped.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The bytes of `range`, which must be complete: nobody writes to them while the slice lives.
    ///
    /// # Panics
    /// Where `range` does not lie in the mapping.
    pub fn bytes(&self, range: Range<usize>) -> &[u8] {
        assert!(
            range.start <= range.end && range.end <= self.len(),
            "{range:?} is outside a mapping of {}",
            self.len()
        );
        // SAFETY: the range was checked to lie in the mapping, which lives as long as `self`. That the memory does not
        // change meanwhile is the caller's promise above: extents are read between their completion and their
        // eviction, and eviction waits for readers.
        unsafe { std::slice::from_raw_parts(self.raw.as_ptr().add(range.start), range.len()) }
    }

    /// A word of the mapping as a counter that several threads may change.
    ///
    /// # Panics
    /// Where it does not lie in the mapping.
    pub fn counter(&self, index: usize) -> &AtomicU64 {
        assert!(index < self.len() / 8, "counter {index} is outside a mapping of {}", self.len());
        // SAFETY: the word lies in the mapping, which lives as long as `self`, and is aligned, since mappings begin at a
        // page. What a word is used for is decided above: a counter is only ever touched as one.
        unsafe { &*self.raw.as_mut_ptr().cast::<AtomicU64>().add(index) }
    }

    /// Brings pages that exist into this process' view, so that the kernel finds them when it copies from there.
    pub fn populate(&self, range: Range<usize>) {
        let start = range.start & !4095;
        if let Err(error) = self.raw.advise_range(Advice::PopulateRead, start, range.end - start) {
            tracing::debug!(%error, "pages cannot be brought in ahead");
        }
    }

    /// The memory of `range` for one writer: the fill that owns these extents.
    ///
    /// # Panics
    /// Where `range` does not lie in the mapping.
    #[allow(clippy::mut_from_ref)]
    pub fn target(&self, range: Range<usize>) -> &mut [u8] {
        assert!(
            range.start <= range.end && range.end <= self.len(),
            "{range:?} is outside a mapping of {}",
            self.len()
        );
        // SAFETY: the range lies in the mapping, and the caller is the only one who touches it: an extent has one
        // fill at a time and no readers before that is complete.
        unsafe { std::slice::from_raw_parts_mut(self.raw.as_mut_ptr().add(range.start), range.len()) }
    }
}

/// A private, read-only mapping of a whole file, as programs that load models make it.
#[derive(Debug)]
pub struct PrivateMapping {
    map: Mmap,
}

impl PrivateMapping {
    /// Maps all of `file`; nothing of one that is empty.
    pub fn of(file: &File) -> io::Result<Self> {
        // SAFETY: nobody gets a slice of it, so that nothing is assumed of bytes that others may change; a file that
        // is cut short ends the process with SIGBUS, which breaks no promise of the language.
        let map = unsafe { MmapOptions::new().map_copy_read_only(file)? };
        Ok(Self { map })
    }

    /// Reads every byte once, from the first to the last, on this thread. Gives the sum of the whole 64-bit words.
    pub fn touch_in_order(&self) -> u64 {
        let words = self.map.as_ptr().cast::<u64>();
        // SAFETY: each word lies in the mapping, which begins at a page. Volatile: the bytes may change at any time.
        (0..self.map.len() / 8).fold(0, |sum, index| sum.wrapping_add(unsafe { words.add(index).read_volatile() }))
    }

    /// Reads the byte at `offset`.
    ///
    /// # Panics
    /// Where it does not lie in the mapping.
    pub fn touch_at(&self, offset: usize) -> u8 {
        assert!(offset < self.map.len(), "{offset} is outside a mapping of {}", self.map.len());
        // SAFETY: the byte lies in the mapping. Volatile: it may change at any time.
        unsafe { self.map.as_ptr().add(offset).read_volatile() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::FileExt;

    #[test]
    fn what_is_written_through_the_mapping_is_in_the_file() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(8192).unwrap();
        let mapping = Mapping::shared(&file, 8192).unwrap();
        mapping.target(4096..4100).copy_from_slice(b"abcd");
        let mut read = [0; 4];
        file.read_exact_at(&mut read, 4096).unwrap();
        assert_eq!(&read, b"abcd");
        assert_eq!(mapping.bytes(4095..4101), b"\0abcd\0");
    }

    #[test]
    fn a_private_mapping_reads_the_file_to_its_last_word() {
        let file = tempfile::tempfile().unwrap();
        assert_eq!(PrivateMapping::of(&file).unwrap().touch_in_order(), 0);
        file.set_len(8192).unwrap();
        file.write_all_at(&7u64.to_le_bytes(), 0).unwrap();
        file.write_all_at(&5u64.to_le_bytes(), 8184).unwrap();
        let mapping = PrivateMapping::of(&file).unwrap();
        assert_eq!((mapping.touch_in_order(), mapping.touch_at(0), mapping.touch_at(8184)), (12, 7, 5));
    }

    #[test]
    #[should_panic(expected = "outside a mapping")]
    fn nothing_outside_can_be_reached() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(4096).unwrap();
        Mapping::shared(&file, 4096).unwrap().bytes(4090..4097);
    }
}
