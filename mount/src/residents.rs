//! Resident node numbers: one for each generation that is whole in the arena, whose content never changes, opened as a
//! snapshot and in no other way.
//!
//! The kernel allows passthrough and other ways of opening a node only one at a time, and pages that it keeps belong to a
//! node, so a resident generation has a node number of its own beside the file's. Lookup answers with the one that fits; an open that meets the wrong one is bounced (see `bounce`).

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::{Mutex, RwLock};
use rustix::io::Errno;
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
    /// It was opened in another way, and is not opened as a snapshot any more: the kernel would refuse one of both, or mix
    /// what it keeps of them.
    withdrawn: Mutex<bool>,
}

impl Resident {
    fn new(id: u64, node: u64, generation: &Arc<Generation>, lookups: Lookups) -> Arc<Self> {
        Arc::new(Self { id, node, generation: Arc::clone(generation), lookups, withdrawn: Mutex::default() })
    }

    pub fn is_withdrawn(&self) -> bool {
        *self.withdrawn.lock()
    }

    /// Opens it as a snapshot, which `hold` does, if it may be.
    pub fn enter<T>(&self, hold: impl FnOnce() -> Option<T>) -> Option<T> {
        let withdrawn = self.withdrawn.lock();
        if *withdrawn { None } else { hold() }
    }

    /// From here on it is opened in other ways. False where somebody has it open as a snapshot.
    pub fn withdraw(&self) -> bool {
        let mut withdrawn = self.withdrawn.lock();
        *withdrawn |= !self.generation.is_held();
        *withdrawn
    }
}

/// What is known of a regular file beyond its names.
#[derive(Debug, Default)]
pub struct FileState {
    inner: Mutex<Inner>,
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

    /// The number under which `generation` is looked up, with one more lookup by the kernel.
    pub fn found(&self, file: &FileState, node: u64, generation: &Arc<Generation>) -> Result<u64, Errno> {
        let mut inner = file.inner.lock();
        let mut by_id = self.by_id.write();
        let known = inner.resident.clone();
        let known = known.filter(|known| Arc::ptr_eq(&known.generation, generation) && !known.is_withdrawn());
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

    /// A number that an earlier worker has told the kernel of. The latest one of a file that is `held`, open as a
    /// snapshot, is its number again. One that nobody holds may be open in another way: it stays out of use.
    pub fn restore(&self, id: u64, file: &FileState, node: u64, slot: u32, generation: &Arc<Generation>, held: bool) {
        let resident = Resident::new(id, node, generation, Lookups::in_slot(slot));
        *resident.withdrawn.lock() = !held;
        let mut inner = file.inner.lock();
        if held && generation.is_complete() && inner.resident.as_ref().is_none_or(|known| known.id < id) {
            inner.resident = Some(Arc::clone(&resident));
        }
        self.by_id.write().insert(id, resident);
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
