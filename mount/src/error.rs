//! What a file operation can fail with, and the one table that turns it into an errno.

use rustix::io::Errno;
use weightfs::store::ReadError;

/// Why a file operation failed.
#[derive(Debug, thiserror::Error)]
pub enum FsError {
    /// What the source's file system said: it is the caller's answer as it stands.
    #[error(transparent)]
    Source(#[from] Errno),
    /// The node is not what the caller thinks any more. The kernel looks the name up again and tries once more.
    #[error("the file is another one now")]
    Stale,
    /// The bytes could not be had.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// A handle that this mount has not given out.
    #[error("no such open file")]
    BadHandle,
}

impl FsError {
    /// The table.
    pub fn errno(&self) -> i32 {
        match self {
            FsError::Source(errno) => errno.raw_os_error(),
            FsError::Stale => Errno::STALE.raw_os_error(),
            FsError::Read(error) => error.errno(),
            FsError::BadHandle => Errno::BADF.raw_os_error(),
        }
    }

    /// Whether somebody should read of it in the log: a missing file is everyday, a failed read is not.
    pub fn is_noteworthy(&self) -> bool {
        match self {
            FsError::Source(errno) => {
                matches!(*errno, Errno::IO | Errno::NOSPC | Errno::DQUOT | Errno::NODEV | Errno::MFILE | Errno::NFILE)
            }
            FsError::Read(_) => true,
            FsError::Stale | FsError::BadHandle => false,
        }
    }
}

impl From<std::io::Error> for FsError {
    fn from(error: std::io::Error) -> Self {
        FsError::Source(Errno::from_io_error(&error).unwrap_or(Errno::IO))
    }
}
