//! What a daemon is to do, checked and complete: no defaults are left to find and no text to parse.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// The type of a mount in the kernel's tables, by which tools tell it from others.
pub const FS_TYPE: &str = "fuse.weightfs";

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settings {
    /// At least one. Paths are absolute and free of links.
    pub mounts: Vec<MountSpec>,
    /// Bytes that the arena may hold at most.
    pub ram: u64,
    /// Percent of the budget at which reclaim starts. Not below `low_watermark`.
    pub high_watermark: u8,
    /// Percent of the budget at which reclaim stops.
    pub low_watermark: u8,
    /// Bytes of RAM to leave free for everyone else.
    pub reserve: u64,
    pub read_only: bool,
    /// Whether other users than the daemon's may use the mounts.
    pub allow_other: bool,
    /// Whether links that lead out of a source are presented as what they point to.
    pub follow_symlinks: bool,
    pub io: IoChoice,
    /// Whether resident files may be served without the daemon, where the kernel allows it.
    pub passthrough: bool,
    /// How long an open may wait for a file to become resident. Zero: it does not wait.
    pub open_wait: Duration,
    /// Where the control socket is to be.
    #[serde(with = "path_bytes")]
    pub control_socket: PathBuf,
    /// Whose members may steer the daemon, besides its user and the owner of the source.
    pub control_group: Option<u32>,
    /// Where browsers are served, besides the socket.
    pub listen: Option<SocketAddr>,
    /// A directory of this daemon alone for what outlives it. It need not exist.
    #[serde(with = "path_bytes")]
    pub state_dir: PathBuf,
}

/// A folder and where it is mounted. The two are equal for a folder that is mounted over itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MountSpec {
    #[serde(with = "path_bytes")]
    pub source: PathBuf,
    #[serde(with = "path_bytes")]
    pub mountpoint: PathBuf,
}

/// Paths are bytes, and need not be text.
pub mod path_bytes {
    use std::ffi::OsString;
    use std::os::unix::ffi::{OsStrExt, OsStringExt};
    use std::path::{Path, PathBuf};

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub fn serialize<S: Serializer>(path: &Path, serializer: S) -> Result<S::Ok, S::Error> {
        path.as_os_str().as_bytes().serialize(serializer)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<PathBuf, D::Error> {
        Vec::deserialize(deserializer).map(|bytes| PathBuf::from(OsString::from_vec(bytes)))
    }
}

/// What reads the sources.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum IoChoice {
    /// io_uring where it works, else threads.
    #[default]
    Auto,
    Uring,
    Threads,
}

impl IoChoice {
    pub const ALL: [Self; 3] = [Self::Auto, Self::Uring, Self::Threads];

    pub fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Uring => "uring",
            Self::Threads => "threads",
        }
    }
}

impl fmt::Display for IoChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is not a way to read: use auto, uring or threads")]
pub struct IoChoiceError(String);

impl FromStr for IoChoice {
    type Err = IoChoiceError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::ALL.into_iter().find(|choice| choice.name() == text).ok_or_else(|| IoChoiceError(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_way_to_read_is_found_by_its_name() {
        for choice in IoChoice::ALL {
            assert_eq!(choice.to_string().parse(), Ok(choice));
        }
        assert!("uringg".parse::<IoChoice>().is_err());
    }
}
