//! Mapping files as loaders do. The one place of the tests with `unsafe`.

use std::fs::File;
use std::io;

use memmap2::{Mmap, MmapOptions, MmapRaw};

/// How a loader maps: safetensors and ComfyUI map privately, GGUF readers shared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MapKind {
    Private,
    Shared,
}

/// A mapping of the first `len` bytes of a file, to be read. `file` may be closed while it lives.
///
/// The bytes are only ever copied out of it through [`Map::read`], so that no reference to them can outlive a change.
pub struct Map {
    kind: Kind,
}

enum Kind {
    Private(Mmap),
    Shared(MmapRaw),
}

impl Map {
    /// # Errors
    /// What `mmap` says.
    #[allow(unsafe_code)]
    pub fn new(file: &File, len: usize, kind: MapKind) -> io::Result<Map> {
        let kind = match kind {
            // SAFETY: the mapping is private to `Map`, which hands out copies and no references; a test that
            // truncates the file behind it would be ended by SIGBUS, which is a failed test and no unsoundness.
            MapKind::Private => Kind::Private(unsafe { MmapOptions::new().len(len).map_copy_read_only(file)? }),
            MapKind::Shared => Kind::Shared(MmapOptions::new().len(len).map_raw_read_only(file)?),
        };
        Ok(Map { kind })
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        match &self.kind {
            Kind::Private(map) => map.len(),
            Kind::Shared(map) => map.len(),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Copies `into.len()` bytes from `offset`.
    ///
    /// # Panics
    /// If the range is not inside the mapping.
    #[allow(unsafe_code)]
    pub fn read(&self, offset: usize, into: &mut [u8]) {
        assert!(offset.checked_add(into.len()).is_some_and(|end| end <= self.len()), "read outside the mapping");
        match &self.kind {
            Kind::Private(map) => into.copy_from_slice(&map[offset..offset + into.len()]),
            // SAFETY: the range was checked above to be inside the mapping, which lives as long as `self`; `into`
            // is memory of the caller and cannot overlap a mapping that never lends references.
            Kind::Shared(map) => unsafe {
                std::ptr::copy_nonoverlapping(map.as_ptr().add(offset), into.as_mut_ptr(), into.len());
            },
        }
    }

    /// All of it.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.len()];
        self.read(0, &mut bytes);
        bytes
    }
}

/// Stores `bytes` at `offset` through a shared writable mapping of `file`, and flushes it.
///
/// # Errors
/// What `mmap` or `msync` say.
#[allow(unsafe_code)]
pub fn store_through_map(file: &File, offset: usize, bytes: &[u8]) -> io::Result<()> {
    let map = MmapOptions::new().map_raw(file)?;
    assert!(offset.checked_add(bytes.len()).is_some_and(|end| end <= map.len()), "store outside the mapping");
    // SAFETY: the range was checked to be inside the mapping, which lives until the end of this function; nobody
    // holds a reference to it, and `bytes` cannot overlap it.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), map.as_mut_ptr().add(offset), bytes.len()) };
    map.flush()
}
