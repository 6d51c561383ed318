//! Bytes that are served without being kept: a small number of slots of one extent each, used again and again.
//!
//! A slot holds an extent just long enough for the readers that walk through it, so that a bypassed model is still read
//! in large requests and ahead of its readers, in memory that is bounded and needs no zeroing.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::arena::ArenaFile;
use crate::ids::{ExtentIndex, GenerationId};
use crate::sys::mapping::Mapping;
use crate::units::EXTENT_SIZE;

/// A slot that was not used while every slot was used so often is not waited for: by somebody who reads now, and by who
/// reads ahead.
const OLD: [u64; 2] = [2, 8];

type Key = (GenerationId, ExtentIndex);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Empty,
    /// Nobody may read it yet, and nobody may take it.
    Filling,
    Full,
}

#[derive(Debug)]
struct Slot {
    key: Option<Key>,
    state: State,
    readers: u32,
    /// Bytes handed out: a slot that was read to its end goes first.
    consumed: u64,
    /// When it was used last, by a count of uses.
    used: u64,
}

#[derive(Debug)]
struct Table {
    slots: Vec<Slot>,
    by_key: HashMap<Key, usize>,
    uses: u64,
}

#[derive(Debug)]
pub struct Bypass {
    memory: ArenaFile,
    table: Mutex<Table>,
}

/// A slot that is being filled by its holder. Dropped without [`Claim::full`], it is empty again.
#[derive(Debug)]
pub struct Claim {
    bypass: Arc<Bypass>,
    slot: usize,
    filled: bool,
}

/// A full slot that stays what it is while this lives.
#[derive(Debug)]
pub struct Reading<'a> {
    bypass: &'a Bypass,
    slot: usize,
}

impl Bypass {
    /// `memory` holds `slots` extents.
    pub fn new(memory: ArenaFile, slots: usize) -> Self {
        let empty = |_| Slot { key: None, state: State::Empty, readers: 0, consumed: 0, used: 0 };
        let table = Table { slots: (0..slots).map(empty).collect(), by_key: HashMap::new(), uses: 0 };
        Self { memory, table: Mutex::new(table) }
    }

    /// The extent, if it is in a slot.
    pub fn read(&self, generation: GenerationId, extent: ExtentIndex) -> Option<Reading<'_>> {
        let mut table = self.table.lock();
        let slot = *table.by_key.get(&(generation, extent))?;
        if table.slots[slot].state != State::Full {
            return None;
        }
        table.uses += 1;
        table.slots[slot].used = table.uses;
        table.slots[slot].readers += 1;
        Some(Reading { bypass: self, slot })
    }

    #[cfg(test)]
    pub fn holds(&self, generation: GenerationId, extent: ExtentIndex) -> bool {
        self.table.lock().by_key.contains_key(&(generation, extent))
    }

    /// A slot for an extent that is in none: an empty one, else the one that was read to its end, else the one that
    /// was used least recently, if that is long ago. None where all are in use: what somebody may be about to read is
    /// not dropped for others, less so where those only read `ahead`.
    pub fn claim(self: &Arc<Self>, generation: GenerationId, extent: ExtentIndex, ahead: bool) -> Option<Claim> {
        let mut table = self.table.lock();
        if table.by_key.contains_key(&(generation, extent)) {
            return None;
        }
        let rank = |slot: &Slot| (slot.state != State::Empty, slot.consumed < EXTENT_SIZE, slot.used);
        // Many others were used since: its readers went elsewhere.
        let old = table.uses.saturating_sub(OLD[usize::from(ahead)] * table.slots.len() as u64);
        let done = |slot: &Slot| slot.state == State::Empty || slot.consumed >= EXTENT_SIZE || slot.used < old;
        let free = |slot: &Slot| slot.state != State::Filling && slot.readers == 0 && done(slot);
        // Those who read now find room beside those who read ahead.
        if ahead && table.slots.iter().filter(|slot| free(slot)).count() <= table.slots.len() / 2 {
            return None;
        }
        let (index, _) =
            table.slots.iter().enumerate().filter(|(_, slot)| free(slot)).min_by_key(|(_, slot)| rank(slot))?;
        if let Some(old) = table.slots[index].key.take() {
            table.by_key.remove(&old);
        }
        table.uses += 1;
        let used = table.uses;
        table.slots[index] =
            Slot { key: Some((generation, extent)), state: State::Filling, readers: 0, consumed: 0, used };
        table.by_key.insert((generation, extent), index);
        Some(Claim { bypass: Arc::clone(self), slot: index, filled: false })
    }

    /// So many extents were read without a slot: time that passes for those that are in one.
    pub fn passed_by(&self, extents: usize) {
        self.table.lock().uses += extents as u64;
    }

    /// Empties every slot of a generation that nobody reads or fills just now.
    pub fn forget(&self, generation: GenerationId) {
        let mut table = self.table.lock();
        let Table { slots, by_key, .. } = &mut *table;
        for slot in slots.iter_mut().filter(|slot| slot.state == State::Full && slot.readers == 0) {
            if let Some(key) = slot.key.filter(|key| key.0 == generation) {
                by_key.remove(&key);
                slot.key = None;
                slot.state = State::Empty;
            }
        }
    }

    pub fn file(&self) -> &std::fs::File {
        self.memory.as_file()
    }

    /// Bytes of RAM that the slots take when all were used.
    pub fn capacity(&self) -> u64 {
        self.memory.mapping().len() as u64
    }
}

impl Claim {
    pub fn memory(&self) -> Arc<Mapping> {
        self.bypass.memory.mapping()
    }

    /// Where in the memory the slot begins, in bytes.
    pub fn at(&self) -> usize {
        self.slot * EXTENT_SIZE as usize
    }

    /// The bytes are there.
    pub fn full(mut self) {
        self.filled = true;
        self.bypass.table.lock().slots[self.slot].state = State::Full;
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        if self.filled {
            return;
        }
        let mut table = self.bypass.table.lock();
        if let Some(key) = table.slots[self.slot].key.take() {
            table.by_key.remove(&key);
        }
        table.slots[self.slot].state = State::Empty;
    }
}

impl Reading<'_> {
    /// `length` bytes from `offset` in the extent.
    pub fn bytes(&self, offset: usize, length: usize) -> &[u8] {
        let start = self.slot * EXTENT_SIZE as usize + offset;
        self.bypass.memory.bytes(start as u64..(start + length) as u64)
    }

    /// Counts what was handed out.
    pub fn consumed(&self, length: usize) {
        self.bypass.table.lock().slots[self.slot].consumed += length as u64;
    }
}

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        self.bypass.table.lock().slots[self.slot].readers -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arena::Arena;

    const A: GenerationId = GenerationId(1);

    fn bypass(slots: usize) -> Arc<Bypass> {
        let size = slots as u64 * EXTENT_SIZE;
        let memory = Arena::create(size).unwrap().file(GenerationId(0), size).unwrap();
        Arc::new(Bypass::new(memory, slots))
    }

    #[test]
    fn a_slot_is_read_when_full_and_reused_when_nobody_reads_it() {
        let bypass = bypass(2);
        let first = bypass.claim(A, 0, false).unwrap();
        assert!(bypass.claim(A, 0, false).is_none() && bypass.read(A, 0).is_none() && bypass.holds(A, 0));
        first.memory().target(first.at() + 5..first.at() + 8).copy_from_slice(b"abc");
        first.full();
        let reading = bypass.read(A, 0).unwrap();
        assert_eq!(reading.bytes(5, 3), b"abc");
        bypass.claim(A, 1, false).unwrap().full();
        bypass.read(A, 1).unwrap().consumed(EXTENT_SIZE as usize);
        // Slot 0 is being read, so extent 2 takes the place of extent 1.
        bypass.claim(A, 2, false).unwrap().full();
        assert!(bypass.read(A, 1).is_none() && bypass.read(A, 2).is_some());
        drop(reading);
        bypass.forget(A);
        let held = bypass.claim(A, 3, false).unwrap();
        let other = bypass.claim(A, 4, false).unwrap();
        assert!(bypass.claim(A, 5, false).is_none(), "all slots are being filled");
        drop((held, other));
        assert!(!bypass.holds(A, 3) && bypass.claim(A, 5, false).is_some());
    }

    #[test]
    fn what_was_read_to_its_end_goes_and_what_was_not_stays_for_a_while() {
        let bypass = bypass(2);
        bypass.claim(A, 0, false).unwrap().full();
        bypass.claim(A, 1, false).unwrap().full();
        assert!(bypass.claim(A, 2, false).is_none(), "nobody has read what the slots hold");
        bypass.read(A, 1).unwrap().consumed(EXTENT_SIZE as usize);
        assert!(bypass.claim(A, 2, true).is_none(), "half of the slots are for who reads now");
        bypass.claim(A, 2, false).unwrap().full();
        assert!(bypass.holds(A, 0) && !bypass.holds(A, 1));
        for _ in 0..2 * OLD[0] {
            drop(bypass.read(A, 2));
        }
        bypass.claim(A, 3, false).unwrap().full();
        assert!(!bypass.holds(A, 0) && bypass.holds(A, 2));
        bypass.forget(A);
        assert!(!bypass.holds(A, 2) && !bypass.holds(A, 3));
    }
}
