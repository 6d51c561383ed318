//! The wire types of the control protocol: what a daemon is asked and what it answers, as JSON.
//!
//! An exchange is one line each way on a Unix stream socket, after which the daemon closes the connection. The types
//! say nothing of how they travel.

mod explain;
mod status;

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::pattern::Pattern;

pub use explain::{Explained, NextToGo};
pub use status::{IoStatus, MountStatus, RamStatus, Status, WorkerStatus};

/// The extended attribute that answers, on every path of a mount, with the path of the daemon's control socket.
pub const CONTROL_XATTR: &str = "user.weightfs.control";

/// The most bytes of a request line, its newline included.
pub const MAX_REQUEST: usize = 64 << 10;

/// The most bytes of a reply line, its newline included.
pub const MAX_REPLY: usize = 4 << 20;

/// What a daemon can be asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "snake_case", deny_unknown_fields)]
pub enum Request {
    /// How the daemon is. For whoever can connect.
    Status,
    /// Why a file is or is not in RAM. For whoever can connect.
    Explain {
        path: PathBuf,
    },
    /// End one mount. For root and the daemon's user, as all that follows.
    Unmount {
        mountpoint: PathBuf,
    },
    /// Keep files in RAM for good, or what `tensors` names of them. Names in `path` may have wildcards: then files that
    /// come later are pinned too.
    Pin {
        path: PathBuf,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        tensors: Option<Pattern>,
    },
    /// Take pins back.
    Unpin {
        path: PathBuf,
    },
    /// Read a file into RAM, as far as the policy keeps it; with `wait`, answer when that is done.
    Prefetch {
        path: PathBuf,
        #[serde(default)]
        wait: bool,
    },
    /// Free what a file takes of the RAM.
    Evict {
        path: PathBuf,
    },
    /// Record what is opened, read and decided in a new file.
    StartTrace {
        file: PathBuf,
    },
    StopTrace,
    /// Let `program`, an absolute path, serve the mounts from here on.
    Upgrade {
        program: PathBuf,
    },
}

impl Request {
    /// Whether this changes anything, which is for root and the daemon's user.
    pub fn steers(&self) -> bool {
        !matches!(self, Request::Status | Request::Explain { .. })
    }
}

/// What was pinned, unpinned, filled or freed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outcome {
    pub files: u64,
    /// What of it concerns this request.
    pub bytes: u64,
    /// Bytes that were to go and had to stay, or were to be resident and are not.
    pub left_bytes: u64,
}

/// What a recording came to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TraceSummary {
    pub file: PathBuf,
    pub events: u64,
    /// Events that came faster than they could be written.
    pub lost: u64,
}

/// What a daemon answers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reply {
    Status(Box<Status>),
    Explained(Box<Explained>),
    Outcome(Outcome),
    Trace(TraceSummary),
    /// What was asked for is done.
    Done,
    Error(Refusal),
}

/// A request that was not carried out, as it travels.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{message}")]
pub struct Refusal {
    pub kind: RefusalKind,
    /// For a person: what is wrong, and what to do about it.
    pub message: String,
}

/// What programs tell refusals apart by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RefusalKind {
    BadRequest,
    NotPermitted,
    NotMounted,
    NoFile,
    NoRoom,
    Busy,
    Overloaded,
    /// Anything else, and what a newer daemon may say.
    #[serde(other)]
    Failed,
}

/// Why the daemon does not do what it was asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ControlError {
    #[error("the request is not understood: {0}")]
    BadRequest(String),
    #[error("only root and the user of the daemon (uid {daemon_uid}) may do this, not uid {uid}")]
    NotPermitted { uid: u32, daemon_uid: u32 },
    #[error("{} is not mounted by this daemon; 'weightfs status' shows what is", .0.display())]
    NotMounted(PathBuf),
    #[error("{} cannot be kept in RAM: {reason}", .path.display())]
    NoFile { path: PathBuf, reason: String },
    /// Says what is pinned already.
    #[error("{0}")]
    NoRoom(String),
    #[error("{} is in use; close what is open there, or take it out of sight with 'weightfs unmount --lazy'", .0.display())]
    Busy(PathBuf),
    #[error("the daemon answers as many requests as it will at a time; try again")]
    Overloaded,
    #[error("{0}")]
    Failed(String),
}

impl From<&ControlError> for Refusal {
    fn from(error: &ControlError) -> Self {
        let kind = match error {
            ControlError::BadRequest(_) => RefusalKind::BadRequest,
            ControlError::NotPermitted { .. } => RefusalKind::NotPermitted,
            ControlError::NotMounted(_) => RefusalKind::NotMounted,
            ControlError::NoFile { .. } => RefusalKind::NoFile,
            ControlError::NoRoom(_) => RefusalKind::NoRoom,
            ControlError::Busy(_) => RefusalKind::Busy,
            ControlError::Overloaded => RefusalKind::Overloaded,
            ControlError::Failed(_) => RefusalKind::Failed,
        };
        Self { kind, message: error.to_string() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_have_the_form_that_scripts_write() {
        let read = |text: &str| serde_json::from_str::<Request>(text);
        assert_eq!(read(r#"{"request":"status"}"#).unwrap(), Request::Status);
        assert_eq!(
            read(r#"{"request":"unmount","mountpoint":"/m"}"#).unwrap(),
            Request::Unmount { mountpoint: "/m".into() }
        );
        for wrong in [
            "{}",
            "[]",
            r#""status""#,
            r#"{"request":"reboot"}"#,
            r#"{"request":"unmount"}"#,
            r#"{"request":"unmount","mountpoint":"/m","force":true}"#,
        ] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_refusal_of_a_newer_daemon_is_still_a_refusal() {
        let reply: Reply = serde_json::from_str(r#"{"error":{"kind":"on_fire","message":"run"}}"#).unwrap();
        assert_eq!(reply, Reply::Error(Refusal { kind: RefusalKind::Failed, message: "run".into() }));
    }

    #[test]
    fn every_error_keeps_its_kind_and_words_on_the_wire() {
        let error = ControlError::Busy("/m".into());
        let refusal = Refusal::from(&error);
        assert_eq!(refusal.kind, RefusalKind::Busy);
        assert_eq!(refusal.message, error.to_string());
        assert_eq!(
            serde_json::to_string(&Reply::Error(Refusal::from(&ControlError::Failed("no".into())))).unwrap(),
            r#"{"error":{"kind":"failed","message":"no"}}"#
        );
        assert_eq!(serde_json::to_string(&Reply::Done).unwrap(), r#""done""#);
    }
}
