//! Resident node numbers: one for each generation that is whole in the arena, opened in passthrough and in no other way.
//!
//! The kernel allows one way of opening a node at a time, so a resident generation has a node number of its own beside
//! the file's. Lookup answers with the one that fits; an open that meets the wrong one is bounced (see `bounce`).
//!
//! Where there is no passthrough, what is mapped has such a number as well, whose pages the kernel keeps from one open to
//! the next: as long as the generation is current, all of them are its own.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::{Mutex, RwLock};
use rustix::io::Errno;
use weightfs::ids::SourceIdentity;
use weightfs::journal::Record;
use weightfs::store::Generation;

use crate::ledger::{Ledger, Lookups};
use crate::nodes::RESIDENT_BIT;

/// A generation under a node number of its own.
#[derive(Debug)]
pub struct Resident {
    /// Its number, `RESIDENT_BIT` set.
    pub id: u64,
    /// The number of the file's own node.
    pub node: u64,
    pub generation: Arc<Generation>,
    lookups: Lookups,
    used: Mutex<Used>,
}

/// How a number was opened so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Used {
    /// In passthrough, if at all.
    #[default]
    Passed,
    /// For the kernel to keep its pages. It is not opened in passthrough any more: the kernel would refuse one of both.
    Kept,
    /// In any other way: neither in passthrough nor for pages to be kept.
    Withdrawn,
}

impl Resident {
    fn new(id: u64, node: u64, generation: &Arc<Generation>, lookups: Lookups) -> Arc<Self> {
        Arc::new(Self { id, node, generation: Arc::clone(generation), lookups, used: Mutex::default() })
    }

    /// The content that this number stands for whatever becomes of the source. None for streams of which the kernel keeps
    /// pages: they follow their file. There are such only where there is no `passthrough`, and the next worker does not know
    /// them from others.
    pub fn snapshot(&self, passthrough: bool) -> Option<SourceIdentity> {
        (passthrough || *self.used.lock() == Used::Passed).then(|| self.generation.identity())
    }

    /// Whether it can be opened in passthrough, or `kept`.
    pub fn is_usable(&self, kept: bool) -> bool {
        let used = *self.used.lock();
        used == Used::Passed || kept && used == Used::Kept
    }

    /// Opens it in passthrough, which `hold` does, if it may be.
    pub fn enter<T>(&self, hold: impl FnOnce() -> Option<T>) -> Option<T> {
        let used = self.used.lock();
        if *used == Used::Passed { hold() } else { None }
    }

    /// From here on the kernel keeps its pages. False where it may not.
    pub fn keep(&self) -> bool {
        let mut used = self.used.lock();
        if *used == Used::Passed && !self.generation.is_held() {
            *used = Used::Kept;
        }
        *used == Used::Kept
    }

    /// From here on it is opened in other ways. False where somebody has it open in passthrough.
    pub fn withdraw(&self) -> bool {
        let mut used = self.used.lock();
        if !self.generation.is_held() {
            *used = Used::Withdrawn;
        }
        *used == Used::Withdrawn
    }
}

/// What is known of a regular file beyond its names.
#[derive(Debug, Default)]
pub struct FileState {
    inner: Mutex<Inner>,
    /// The kernel may keep pages of it under resident numbers.
    has_pages: AtomicBool,
}

#[derive(Debug, Default)]
struct Inner {
    writers: u32,
    resident: Option<Arc<Resident>>,
}

impl FileState {
    pub fn writer_came(&self) {
        self.inner.lock().writers += 1;
    }

    pub fn writer_went(&self) {
        let mut inner = self.inner.lock();
        inner.writers = inner.writers.saturating_sub(1);
    }

    pub fn has_writers(&self) -> bool {
        self.inner.lock().writers > 0
    }

    pub fn keeps_pages(&self) {
        self.has_pages.store(true, Ordering::Release);
    }

    pub fn has_pages(&self) -> bool {
        self.has_pages.load(Ordering::Acquire)
    }
}

/// All resident node numbers of a mount.
#[derive(Debug)]
pub struct Residents {
    ledger: Ledger,
    by_id: RwLock<HashMap<u64, Arc<Resident>>>,
    next: AtomicU64,
}

impl Residents {
    pub fn new(ledger: Ledger) -> Self {
        let next = AtomicU64::new(ledger.legacy.first_number());
        Self { ledger, by_id: RwLock::default(), next }
    }

    pub fn get(&self, id: u64) -> Option<Arc<Resident>> {
        self.by_id.read().get(&id).cloned()
    }

    /// The number under which `generation` is looked up, to be opened in passthrough or `kept`, with one more lookup by the
    /// kernel.
    pub fn found(&self, file: &FileState, node: u64, generation: &Arc<Generation>, kept: bool) -> Result<u64, Errno> {
        let mut inner = file.inner.lock();
        let mut by_id = self.by_id.write();
        let known = inner.resident.clone();
        let known = known.filter(|known| Arc::ptr_eq(&known.generation, generation) && known.is_usable(kept));
        let resident = known.unwrap_or_else(|| {
            let id = self.next.fetch_add(1, Ordering::Relaxed) | RESIDENT_BIT;
            Resident::new(id, node, generation, Lookups::none())
        });
        let (slot, is_new) = resident.lookups.slot(&self.ledger)?;
        if is_new {
            let (mount, id, generation) = (self.ledger.mount, resident.id, generation.id);
            self.ledger.note(&Record::Resident { mount, id, node, generation, slot });
        }
        resident.lookups.add(&self.ledger);
        // The kernel may have forgotten it since, and with it the table.
        by_id.entry(resident.id).or_insert_with(|| Arc::clone(&resident));
        let id = resident.id;
        inner.resident = Some(resident);
        Ok(id)
    }

    /// A number that an earlier worker has told the kernel of. The latest one of a file that is `held`, open in
    /// passthrough, is its number again. One that nobody holds may be open in another way: it stays out of use.
    pub fn restore(&self, id: u64, file: &FileState, node: u64, slot: u32, generation: &Arc<Generation>, held: bool) {
        let resident = Resident::new(id, node, generation, Lookups::in_slot(slot));
        if !held {
            *resident.used.lock() = Used::Withdrawn;
            file.keeps_pages();
        }
        let mut inner = file.inner.lock();
        if held && generation.is_complete() && inner.resident.as_ref().is_none_or(|known| known.id < id) {
            inner.resident = Some(Arc::clone(&resident));
        }
        self.by_id.write().insert(id, resident);
    }

    /// The numbers of a file of which the kernel may keep pages, but for those that somebody may be writing by.
    pub fn with_pages(&self, file: &FileState, node: u64) -> Vec<u64> {
        if !file.has_pages() {
            return Vec::new();
        }
        let is_written = file.has_writers();
        let has_pages = |resident: &&Arc<Resident>| {
            resident.node == node
                && match *resident.used.lock() {
                    Used::Passed => false,
                    Used::Kept => true,
                    Used::Withdrawn => !is_written,
                }
        };
        self.by_id.read().values().filter(has_pages).map(|resident| resident.id).collect()
    }

    /// The generation is no longer to be found under its number. Handles that have it open keep it.
    pub fn retire(&self, file: &FileState, generation: &Arc<Generation>) {
        let mut inner = file.inner.lock();
        if inner.resident.as_ref().is_some_and(|known| Arc::ptr_eq(&known.generation, generation)) {
            inner.resident = None;
        }
    }

    /// Takes a number out of use that can serve its generation no more. It stays known to those who hold it.
    pub fn retire_number(&self, file: &FileState, id: u64) {
        let mut inner = file.inner.lock();
        if inner.resident.as_ref().is_some_and(|known| known.id == id) {
            inner.resident = None;
        }
    }

    /// The kernel has forgotten `lookups` of a number; true where it does not know it any more.
    pub fn forget(&self, id: u64, lookups: u64) -> bool {
        let mut by_id = self.by_id.write();
        let Some(resident) = by_id.get(&id) else { return false };
        let gone = resident.lookups.forget(&self.ledger, lookups);
        if gone {
            self.ledger.note(&Record::ResidentGone { mount: self.ledger.mount, id });
            resident.lookups.release(&self.ledger);
            by_id.remove(&id);
        }
        gone
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writers_are_counted() {
        let file = FileState::default();
        file.writer_came();
        file.writer_came();
        file.writer_went();
        assert!(file.has_writers());
        file.writer_went();
        assert!(!file.has_writers());
    }
}
