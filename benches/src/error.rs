//! What can stop a run.

use std::io;
use std::path::PathBuf;

#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    #[error("cannot {what}: {error}")]
    Io { what: String, error: io::Error },
    #[error("'{command}' failed: {words}")]
    Program { command: String, words: String },
    #[error("{0}")]
    Unfit(String),
    #[error("{} through the mount has other bytes than in the folder", .0.display())]
    WrongBytes(PathBuf),
}

pub type Result<T> = std::result::Result<T, BenchError>;

/// Says of an error what was being done.
pub trait Doing<T> {
    fn doing(self, what: impl FnOnce() -> String) -> Result<T>;
}

impl<T, E: Into<io::Error>> Doing<T> for std::result::Result<T, E> {
    fn doing(self, what: impl FnOnce() -> String) -> Result<T> {
        self.map_err(|error| BenchError::Io { what: what(), error: error.into() })
    }
}
