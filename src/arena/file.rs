//! One generation's pages.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use rustix::fs::FallocateFlags;

use crate::ids::ExtentIndex;
use crate::sys::lease;
use crate::sys::locked;
use crate::sys::mapping::Mapping;
use crate::units::{EXTENT_SIZE, extent_bytes, extent_count, extents_of};

const PAGE: u64 = 4096;

/// How many bytes may still be locked in memory, shared by all files of an arena.
#[derive(Debug)]
pub(super) struct LockBudget {
    limit: u64,
    used: AtomicU64,
}

impl LockBudget {
    pub(super) fn new(limit: u64) -> Self {
        Self { limit, used: AtomicU64::new(0) }
    }

    pub(super) fn limit(&self) -> u64 {
        self.limit
    }

    fn take(&self, bytes: u64) -> bool {
        self.used
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |used| {
                Some(used + bytes).filter(|total| *total <= self.limit)
            })
            .is_ok()
    }

    fn give_back(&self, bytes: u64) {
        self.used.fetch_sub(bytes, Ordering::Relaxed);
    }
}

/// RLIMIT_MEMLOCK, raised as far as we may.
pub(super) fn lock_limit() -> u64 {
    use nix::sys::resource::{Resource, getrlimit, setrlimit};
    let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_MEMLOCK) else { return 0 };
    if soft < hard && setrlimit(Resource::RLIMIT_MEMLOCK, hard, hard).is_ok() { hard } else { soft }
}

/// The file of one generation, exactly as long as the model file, and its mapping.
#[derive(Debug)]
pub struct ArenaFile {
    file: File,
    mapping: Arc<Mapping>,
    size: u64,
    lock: Arc<LockBudget>,
    locked: parking_lot::Mutex<Vec<ExtentIndex>>,
    /// Extents that another process filled and this one has not yet looked at.
    unseen: Option<Box<[AtomicBool]>>,
}

impl ArenaFile {
    pub(super) fn new(file: File, size: u64, lock: Arc<LockBudget>) -> io::Result<Self> {
        // Exactly the model file's length: a client in passthrough sees this file's end as its own.
        file.set_len(size)?;
        // Whole pages, so that direct reads of the last page have room for their full length.
        let mapping = Mapping::shared(&file, size.next_multiple_of(PAGE) as usize)?;
        mapping.prefer_huge_pages();
        let locked = parking_lot::Mutex::default();
        Ok(Self { file, mapping: Arc::new(mapping), size, lock, locked, unseen: None })
    }

    pub(super) fn adopt(file: File, size: u64, lock: Arc<LockBudget>) -> io::Result<Self> {
        let unseen = (0..extent_count(size)).map(|_| AtomicBool::new(true)).collect();
        let mut adopted = Self::new(file, size, lock)?;
        adopted.unseen = Some(unseen);
        // A process that was killed while it asked may have left its lease: everybody who opens the file would wait.
        adopted.sole_user()?;
        Ok(adopted)
    }

    pub fn as_file(&self) -> &File {
        &self.file
    }

    pub fn mapping(&self) -> Arc<Mapping> {
        Arc::clone(&self.mapping)
    }

    /// The bytes of `range`, which must lie in complete extents.
    pub fn bytes(&self, range: Range<u64>) -> &[u8] {
        if let Some(unseen) = &self.unseen {
            self.see(unseen, &range);
        }
        self.mapping.bytes(range.start as usize..range.end as usize)
    }

    /// A reply is copied by the kernel out of the mapping. Killed while a page is missing there, this process would give
    /// its client an error, where one that is killed before or after the copy does not.
    fn see(&self, unseen: &[AtomicBool], range: &Range<u64>) {
        for extent in extents_of(range) {
            if unseen[extent as usize].swap(false, Ordering::Relaxed) {
                let bytes = extent_bytes(extent, self.size);
                self.mapping.populate(bytes.start as usize..bytes.end as usize);
            }
        }
    }

    /// Locks a filled extent in memory if the pages could be swapped and the limit allows it.
    pub fn lock(&self, extent: ExtentIndex) {
        if self.lock.limit == 0 || !self.lock.take(EXTENT_SIZE) {
            return;
        }
        let bytes = extent_bytes(extent, self.size);
        match locked::lock(&self.mapping, bytes.start as usize..bytes.end as usize) {
            Ok(()) => self.locked.lock().push(extent),
            Err(error) => {
                self.lock.give_back(EXTENT_SIZE);
                tracing::debug!(%error, "an extent could not be locked in memory");
            }
        }
    }

    /// Frees the pages of `extents`. Nobody may be looking at them: see [`ArenaFile::sole_user`].
    pub fn punch(&self, extents: &Range<ExtentIndex>) -> io::Result<()> {
        let start = u64::from(extents.start) * EXTENT_SIZE;
        let length = u64::from(extents.end - extents.start) * EXTENT_SIZE;
        self.unlock(extents);
        // The whole last extent, also beyond the end of the file: its page goes as one.
        Ok(rustix::fs::fallocate(&self.file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, start, length)?)
    }

    /// Whether no client has this file open or mapped.
    pub fn sole_user(&self) -> io::Result<bool> {
        lease::sole_user(&self.file)
    }

    fn unlock(&self, extents: &Range<ExtentIndex>) {
        let mut all = self.locked.lock();
        all.retain(|extent| {
            if !extents.contains(extent) {
                return true;
            }
            let bytes = extent_bytes(*extent, self.size);
            locked::unlock(&self.mapping, bytes.start as usize..bytes.end as usize);
            self.lock.give_back(EXTENT_SIZE);
            false
        });
    }
}

impl Drop for ArenaFile {
    fn drop(&mut self) {
        self.lock.give_back(self.locked.lock().len() as u64 * EXTENT_SIZE);
    }
}
