//! The wire types of the control interface: the JSON that a daemon takes and gives.
//!
//! They say nothing of how they travel: that is HTTP on a Unix socket, and `mount/openapi.json`, which is made from these
//! types, says the rest. Sizes are in bytes, times in seconds, paths absolute and as clients of a mount see them. What
//! is asked may not have fields that nobody knows; what is answered may get more of them.

mod doctor;
mod explain;
mod files;
mod hints;
mod jobs;
mod observe;
mod problem;
mod status;
mod steer;

use std::path::Path;

use serde::Serializer;

pub use doctor::{Check, CheckState, Findings};
pub use explain::{Explained, NextToGo};
pub use files::{
    ComponentStatus, FileQuery, FileSort, FileState, FileStatus, Files, FilesQuery, FormatName, GroupStatus, LoadKind,
    TensorStatus, Tensors, Totals,
};
pub use hints::{Hinted, InUse, InUseHint, PriorityHint, QueueEntry, QueueHint, QueueItem, VramHint};
pub use jobs::{Job, JobQuery, JobState};
pub use observe::{Event, EventKind, EventsQuery, History, HistorySample, Lost};
pub use problem::{ControlError, Problem, ProblemKind};
pub use status::{
    FillStatus, HintStatus, IoStatus, MountStatus, Mounts, PressureStatus, RamStatus, Status, TraceStatus, WorkerStatus,
};
pub use steer::{
    BudgetRequest, Dashboard, DashboardRequest, DeviceMemory, EvictRequest, FlushRequest, Outcome, PinRequest,
    PrefetchRequest, TraceStart, TraceSummary, UnmountRequest, UnpinRequest, UpgradeRequest,
};

pub use crate::format::Component;
pub use crate::residency::Priority;

/// The extended attribute that answers, on every path of a mount, with the path of the daemon's control socket.
pub const CONTROL_XATTR: &str = "user.weightfs.control";

/// The most bytes of a request's body.
pub const MAX_BODY: usize = 1 << 20;

/// The most bytes of a request's head.
pub const MAX_HEAD: usize = 16 << 10;

/// The longest that an answer may be asked to wait, in milliseconds.
pub const LONGEST_WAIT_MS: u64 = 30_000;

/// The most entries of one answer that lists something.
pub const MOST_LISTED: u32 = 10_000;

/// Bytes of a name that are not UTF-8 are shown as U+FFFD: an answer that lists many names must not fail for one.
fn lossy<S: Serializer>(path: &Path, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&path.display())
}
