//! The names of things that more than one module speaks of. They live here so that no module has to import another
//! for its identifiers alone.

use std::fmt;

/// A model file, while this daemon knows it. Dense, never reused within one daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
pub struct FileId(pub u64);

/// One content of a model file. Unique within one arena, also across workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
pub struct GenerationId(pub u64);

/// The index of a 2 MiB extent in its file.
pub type ExtentIndex = u32;

/// A point in time as file systems keep it: seconds and nanoseconds since the epoch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
pub struct Timestamp {
    pub seconds: i64,
    pub nanoseconds: u32,
}

/// What tells one content of a source file from another without reading it. Equal identities mean equal bytes for
/// content that was last changed at least two seconds before the identity was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub struct SourceIdentity {
    pub device: u64,
    pub inode: u64,
    /// Bytes.
    pub size: u64,
    pub modified: Timestamp,
    pub changed: Timestamp,
}

impl fmt::Display for FileId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "file {}", self.0)
    }
}

impl fmt::Display for GenerationId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "generation {}", self.0)
    }
}
