//! Brings bytes of source files into memory: which request goes next, how it is retried, and who is told.
//!
//! A [`Job`] asks for one range of a source file in one place of a mapping. The [`Engine`] cuts it into requests
//! (`queue`), lets a driver read them (`ring` with io_uring, `readers` with threads), and answers once, when
//! nothing writes to the job's memory any more. Where the kernel's page cache holds the bytes they are copied from
//! there; else they are read with O_DIRECT; else through the page cache, which is emptied behind (`source`).
//!
//! Nothing here knows extents or who waits: that each byte is filled once is for the caller to see to.

mod completion;
mod engine;
mod piece;
mod queue;
mod readers;
mod ring;
mod source;
mod speed;
mod storage;

#[cfg(test)]
mod faults;
#[cfg(test)]
mod queue_random;
#[cfg(test)]
mod queue_tests;
#[cfg(test)]
mod tests;

use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::sys::mapping::Mapping;

pub use engine::{Engine, EngineChoice, EngineError};
#[cfg(test)]
pub(crate) use faults::{Fault, Faults};
pub use queue::JobId;
pub use source::SourceFile;
pub use speed::Counters;
pub use storage::Storage;

/// What every offset in a source file and in a mapping is a multiple of, except where a file ends.
pub const BLOCK: u64 = 4096;

/// Who waits for a job. A class goes before all that follow it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Class {
    /// A reader waits for these bytes.
    Demand,
    /// An `open` waits until its file is complete.
    OpenWait,
    /// Nobody waits yet.
    Prefetch,
}

impl Class {
    pub(crate) const ALL: [Class; 3] = [Class::Demand, Class::OpenWait, Class::Prefetch];
}

/// The reason for a job, which may go while the job waits.
#[derive(Debug, Default)]
pub struct Cancel(AtomicBool);

impl Cancel {
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    /// Requests that were not yet issued will not be. Jobs with this ticket end with [`FillError::Cancelled`] when
    /// their turn comes and nothing of them is in flight, unless all their bytes have arrived by then.
    pub fn cancel(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    pub fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// Called once for each job, on a thread of the engine that may copy and reply but should not wait for storage.
pub type Done = Box<dyn FnOnce(Result<(), FillError>) + Send>;

/// One range of a source file that is wanted in memory.
pub struct Job {
    pub source: Arc<SourceFile>,
    /// Bytes of the source file. The start is a multiple of [`BLOCK`]; the end is too, or is the end of the file.
    pub bytes: Range<u64>,
    /// Nobody else writes to, or relies on, the memory of this job until `done` was called, whatever its result.
    pub memory: Arc<Mapping>,
    /// Where in `memory` the first byte goes, in bytes: a multiple of [`BLOCK`].
    pub at: usize,
    pub class: Class,
    /// The job ends early when this is cancelled.
    pub ticket: Option<Arc<Cancel>>,
    /// Told `Ok` only when every byte of the job is in memory. Memory past the end of the job was not touched.
    pub done: Done,
}

/// Why the bytes of a job are not there. It concerns this job alone.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FillError {
    #[error("the source cannot be read at byte {offset}: {}", io::Error::from_raw_os_error(*.errno))]
    Io { offset: u64, errno: i32 },
    #[error("the source ends before byte {offset} or there, earlier than expected: it was truncated meanwhile")]
    Truncated { offset: u64 },
    #[error("no longer wanted")]
    Cancelled,
    #[error("the fill engine was shut down")]
    Shutdown,
}
