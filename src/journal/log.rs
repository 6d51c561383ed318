//! The journal in memory that outlives its writer.
//!
//! Two halves take turns: records are appended to one until it has grown much, then what it comes to is written to the
//! other, and the other is declared the current one in a single step. Beside them lies an array of counters, for numbers
//! that change too often to be written down each time, and at its end the table of what is [underway](super::underway).
//!
//! Appending is a copy into shared memory under a lock. A writer that is killed within it leaves a torn record at the
//! very end, where it is ignored.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;
use rustix::fs::{FallocateFlags, MemfdFlags};

use super::record::{Record, encode};
use super::state::State;
use crate::sys::mapping::Mapping;

/// The form of the journal. A worker of another form cannot take over.
pub const VERSION: u32 = 2;

/// The first counters have a use of their own each.
pub const TALLIES: u32 = 16;

/// Bytes of one half, of which only those exist that were written.
const HALF: u64 = 1 << 30;
const COUNTERS: u32 = 8 << 20;
/// Entries of the table of changes that are underway: two counters each, the last ones.
pub(super) const UNDERWAY: u32 = 1024;
const UNDERWAY_AT: u32 = COUNTERS - 2 * UNDERWAY;
const MAGIC: u64 = u64::from_le_bytes(*b"weightfs");
/// Bytes before the records: three words with the magic, the version, and the turn.
const HEADER: usize = 24;
const TURN: usize = 2;
/// A half that is shorter is not worth rewriting.
const WORTHWHILE: usize = 1 << 20;

/// The memory of a journal, to be handed from one process to the next.
#[derive(Debug)]
pub struct JournalFiles {
    pub halves: [OwnedFd; 2],
    pub counters: OwnedFd,
}

#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    #[error("there is no memory for the journal: {0}")]
    Memory(#[from] io::Error),
    #[error(
        "the journal has form {found}, and this program knows form {VERSION}: unmount, then mount with this program"
    )]
    Version { found: u64 },
    #[error("the journal had grown beyond its bounds, and is not complete")]
    Full,
}

impl JournalFiles {
    pub fn create() -> io::Result<Self> {
        let make = |size| -> io::Result<OwnedFd> {
            let file = rustix::fs::memfd_create("weightfs-journal", MemfdFlags::CLOEXEC)?;
            rustix::fs::ftruncate(&file, size)?;
            Ok(file)
        };
        Ok(Self { halves: [make(HALF)?, make(HALF)?], counters: make(u64::from(COUNTERS) * 8)? })
    }
}

#[derive(Debug)]
struct Half {
    file: File,
    mapping: Mapping,
}

impl Half {
    fn word(&self, index: usize) -> &AtomicU64 {
        self.mapping.counter(index)
    }

    /// Writes a header and `records`; it is the current half from here on.
    fn begin(&self, records: &[u8], turn: u64) {
        self.mapping.target(HEADER..HEADER + records.len()).copy_from_slice(records);
        self.word(0).store(MAGIC, Ordering::Release);
        self.word(1).store(u64::from(VERSION), Ordering::Release);
        self.word(TURN).store(turn, Ordering::Release);
    }

    /// All zero again: where the records end, there is nothing.
    fn clear(&self) -> io::Result<()> {
        Ok(rustix::fs::fallocate(&self.file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, 0, HALF)?)
    }
}

#[derive(Debug)]
struct Writer {
    halves: [Half; 2],
    current: usize,
    turn: u64,
    /// Where the next record goes.
    at: usize,
    /// Where it is rewritten.
    rewrite_at: usize,
    one: Vec<u8>,
}

#[derive(Debug, Default)]
struct Slots {
    free: Vec<u32>,
    next: u32,
}

/// Of the counters that count for the daemon as a whole, whichever of its workers counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tally {
    ServedFromRam = 0,
    ServedFromSource,
    /// Read past the engines.
    ReadAside,
    /// Read by the engines.
    Filled,
    Evicted,
    PassthroughOpens,
    StreamOpens,
    /// The sizes of the files opened in passthrough.
    PassthroughBytes,
}

#[derive(Debug)]
pub struct Journal {
    writer: Mutex<Writer>,
    counters: Mapping,
    slots: Mutex<Slots>,
    /// It has grown beyond its bounds: nobody can take over.
    full: AtomicBool,
}

impl Journal {
    /// Opens a journal, a new one or one that another process has written, and says what it comes to.
    pub fn open(files: JournalFiles) -> Result<(Self, State), JournalError> {
        let half = |fd: OwnedFd| -> io::Result<Half> {
            let file = File::from(fd);
            let mapping = Mapping::shared(&file, HALF as usize)?;
            Ok(Half { file, mapping })
        };
        let [first, second] = files.halves;
        let halves = [half(first)?, half(second)?];
        let counters = Mapping::shared(&File::from(files.counters), COUNTERS as usize * 8)?;
        let turns = [0, 1].map(|index| halves[index].word(TURN).load(Ordering::Acquire));
        let last = usize::from(turns[1] > turns[0]);
        let state = match (turns[last], halves[last].word(0).load(Ordering::Acquire)) {
            (0, _) => State::default(),
            (u64::MAX, _) => return Err(JournalError::Full),
            _ => match halves[last].word(1).load(Ordering::Acquire) {
                found if found == u64::from(VERSION) => {
                    State::replay(halves[last].mapping.bytes(HEADER..HALF as usize))
                }
                found => return Err(JournalError::Version { found }),
            },
        };
        let slots = Mutex::new(slots_of(&state));
        let mut writer =
            Writer { halves, current: last, turn: turns[last], at: HEADER, rewrite_at: 0, one: Vec::new() };
        // What is torn at its end goes, and both halves are as they should be.
        writer.rewrite(&state)?;
        let journal = Self { writer: Mutex::new(writer), counters, slots, full: AtomicBool::new(false) };
        journal.forget_ended();
        Ok((journal, state))
    }

    /// Writes a record down. When this returns, the record outlives the process.
    pub fn note(&self, record: &Record<'_>) {
        if self.full.load(Ordering::Acquire) {
            return;
        }
        let mut writer = self.writer.lock();
        if let Err(error) = writer.append(record) {
            tracing::error!(%error, "the end of this process would be the end of its mounts");
            writer.give_up();
            self.full.store(true, Ordering::Release);
        }
    }

    /// A counter that outlives the process, at zero. None where all are taken.
    pub fn take_slot(&self) -> Option<u32> {
        let mut slots = self.slots.lock();
        let slot = slots.free.pop().or_else(|| {
            let next = slots.next;
            (next < UNDERWAY_AT).then(|| {
                slots.next += 1;
                next
            })
        })?;
        self.counter(slot).store(0, Ordering::Release);
        Some(slot)
    }

    pub fn give_slot(&self, slot: u32) {
        self.slots.lock().free.push(slot);
    }

    /// A sum over all workers of the daemon.
    pub fn tally(&self, tally: Tally) -> &AtomicU64 {
        self.counter(tally as u32)
    }

    pub fn counter(&self, slot: u32) -> &AtomicU64 {
        self.counters.counter(slot as usize)
    }

    /// Who is at a change, and at which.
    pub(super) fn underway(&self, entry: u32) -> [&AtomicU64; 2] {
        [0, 1].map(|word| self.counter(UNDERWAY_AT + 2 * entry + word))
    }
}

/// What `state` does not use is free.
fn slots_of(state: &State) -> Slots {
    let nodes = state.mounts.values().flat_map(|mount| mount.nodes.values().map(|node| node.slot));
    let residents = state.mounts.values().flat_map(|mount| mount.residents.values());
    let residents = residents.filter(|resident| !resident.gone).map(|resident| resident.slot);
    let mut used: Vec<u32> = nodes.chain(residents).collect();
    used.sort_unstable();
    let next = used.last().map_or(TALLIES, |last| last + 1);
    let mut free = Vec::new();
    let mut expected = TALLIES;
    for slot in used {
        free.extend(expected..slot);
        expected = slot + 1;
    }
    Slots { free, next }
}

impl Writer {
    fn append(&mut self, record: &Record<'_>) -> Result<(), JournalError> {
        encode(record, &mut self.one);
        if self.at + self.one.len() >= self.rewrite_at {
            let state = State::replay(self.halves[self.current].mapping.bytes(HEADER..self.at));
            self.rewrite(&state)?;
        }
        let end = self.at + self.one.len();
        if end + 8 > HALF as usize {
            return Err(JournalError::Full);
        }
        let target = self.halves[self.current].mapping.target(self.at..end);
        // The length last: before it is there, the journal ends here.
        target[4..].copy_from_slice(&self.one[4..]);
        std::sync::atomic::fence(Ordering::Release);
        target[..4].copy_from_slice(&self.one[..4]);
        self.at = end;
        Ok(())
    }

    fn rewrite(&mut self, state: &State) -> Result<(), JournalError> {
        let records = state.journal();
        if HEADER + records.len() + 8 > HALF as usize {
            return Err(JournalError::Full);
        }
        let other = 1 - self.current;
        self.halves[other].clear()?;
        self.halves[other].begin(&records, self.turn + 1);
        self.halves[self.current].clear()?;
        self.current = other;
        self.turn += 1;
        self.at = HEADER + records.len();
        self.rewrite_at = (2 * self.at).max(WORTHWHILE);
        Ok(())
    }

    /// Nobody may take this for complete.
    fn give_up(&self) {
        self.halves[self.current].word(TURN).store(u64::MAX, Ordering::Release);
    }
}
