//! What a worker leaves to the next one: a journal in memory, and descriptors in the hands of the supervisor.
//!
//! Whatever the kernel may still hold after an answer, and whatever is in the arena, is noted before the answer is sent:
//! node numbers with their lookups, open handles, the kernel's references to arena files, extents that are complete, and
//! changes of names that have begun. A process that is killed between two instructions leaves a journal that tells the
//! truth ([`log`]); what it comes to is computed without touching anything ([`state`]).

mod log;
mod record;
mod state;

#[cfg(test)]
mod tests;

use std::fmt;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use serde::{Deserialize, Serialize};

pub use log::{Journal, JournalError, JournalFiles, Tally, VERSION};
pub use record::{FileKey, HandleKind, Record};
pub use state::{GenerationState, HandleState, MountState, NodeState, ResidentState, State, StepState};

use crate::ids::GenerationId;

/// A descriptor that outlives its worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Parked {
    ArenaFile(GenerationId),
    Source(GenerationId),
    /// The source of an open file or directory.
    Handle {
        mount: u8,
        handle: u64,
    },
    /// Memory with what was hinted.
    Hints,
}

/// Where descriptors are kept.
pub trait Parking: Send + Sync {
    /// When this returns, the descriptor outlives the process.
    fn park(&self, what: Parked, descriptor: BorrowedFd<'_>) -> io::Result<()>;
    fn unpark(&self, what: Parked);
}

/// Everything that outlives a worker.
pub struct Legacy {
    journal: Journal,
    parking: Option<Arc<dyn Parking>>,
    /// Workers before this one: numbers that it gives out begin beyond all of theirs.
    epoch: u64,
}

impl fmt::Debug for Legacy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Legacy").field("epoch", &self.epoch).finish_non_exhaustive()
    }
}

impl Legacy {
    pub fn new(journal: Journal, parking: Arc<dyn Parking>, epoch: u64) -> Arc<Self> {
        Arc::new(Self { journal, parking: Some(parking), epoch })
    }

    /// For a process that nobody succeeds.
    pub fn of_nobody() -> Result<Arc<Self>, JournalError> {
        let (journal, _) = Journal::open(JournalFiles::create()?)?;
        Ok(Arc::new(Self { journal, parking: None, epoch: 0 }))
    }

    pub fn journal(&self) -> &Journal {
        &self.journal
    }

    pub fn add(&self, tally: Tally, more: u64) {
        self.journal.tally(tally).fetch_add(more, Ordering::Relaxed);
    }

    pub fn sum(&self, tally: Tally) -> u64 {
        self.journal.tally(tally).load(Ordering::Relaxed)
    }

    /// See [`Journal::note`].
    pub fn note(&self, record: &Record<'_>) {
        self.journal.note(record);
    }

    /// The first number that this worker may give out, of any kind.
    pub fn first_number(&self) -> u64 {
        self.epoch << 40 | 1
    }

    pub fn park(&self, what: Parked, descriptor: BorrowedFd<'_>) -> io::Result<()> {
        self.parking.as_ref().map_or(Ok(()), |parking| parking.park(what, descriptor))
    }

    pub fn unpark(&self, what: Parked) {
        if let Some(parking) = &self.parking {
            parking.unpark(what);
        }
    }
}
