//! Resident node numbers: one for each generation that is whole in the arena, opened in passthrough and in no other way.
//!
//! The kernel allows one way of opening a node at a time, so a resident generation has a node number of its own beside
//! the file's. Lookup answers with the one that fits; an open that meets the wrong one is bounced (see `bounce`).

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::{Mutex, RwLock};
use weightfs::store::Generation;

use crate::nodes::RESIDENT_BIT;

/// A generation under a node number of its own.
#[derive(Debug)]
pub struct Resident {
    /// Its number, `RESIDENT_BIT` set.
    pub id: u64,
    /// The number of the file's own node.
    pub node: u64,
    pub generation: Arc<Generation>,
    lookups: Mutex<u64>,
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
    by_id: RwLock<HashMap<u64, Arc<Resident>>>,
    next: AtomicU64,
}

impl Default for Residents {
    fn default() -> Self {
        Self { by_id: RwLock::default(), next: AtomicU64::new(1) }
    }
}

impl Residents {
    pub fn get(&self, id: u64) -> Option<Arc<Resident>> {
        self.by_id.read().get(&id).cloned()
    }

    /// The number under which `generation` is looked up, with one more lookup by the kernel.
    pub fn found(&self, file: &FileState, node: u64, generation: &Arc<Generation>) -> u64 {
        let mut inner = file.inner.lock();
        if let Some(resident) = inner.resident.as_ref().filter(|known| Arc::ptr_eq(&known.generation, generation)) {
            *resident.lookups.lock() += 1;
            // The kernel may have forgotten it since, and with it the table.
            self.by_id.write().entry(resident.id).or_insert_with(|| Arc::clone(resident));
            return resident.id;
        }
        let id = self.next.fetch_add(1, Ordering::Relaxed) | RESIDENT_BIT;
        let generation = Arc::clone(generation);
        let resident = Arc::new(Resident { id, node, generation, lookups: Mutex::new(1) });
        self.by_id.write().insert(id, Arc::clone(&resident));
        inner.resident = Some(resident);
        id
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
        let mut left = resident.lookups.lock();
        *left = left.saturating_sub(lookups);
        let gone = *left == 0;
        drop(left);
        if gone {
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
