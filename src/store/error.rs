//! What a store can fail with.

use crate::arena::ArenaError;
use crate::fill::EngineError;
use crate::journal::JournalError;

/// Why bytes of a model file could not be read. It concerns the one who asked, nobody else.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ReadError {
    #[error("the source cannot be read at byte {offset}: {}", std::io::Error::from_raw_os_error(*.errno))]
    Source { offset: u64, errno: i32 },
    #[error("the mount is going away")]
    Stopped,
}

impl ReadError {
    /// What the reader is told.
    pub fn errno(&self) -> i32 {
        match self {
            ReadError::Source { errno, .. } => *errno,
            ReadError::Stopped => rustix::io::Errno::IO.raw_os_error(),
        }
    }
}

/// Why a store could not be started.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    #[error(transparent)]
    Arena(#[from] ArenaError),
    #[error(transparent)]
    Engine(#[from] EngineError),
    #[error(transparent)]
    Journal(#[from] JournalError),
    #[error("cannot start a thread: {0}; raise the limit on processes (ulimit -u)")]
    Thread(std::io::Error),
}
