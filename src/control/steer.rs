//! What changes something.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::lossy;
use crate::format::Component;
use crate::pattern::Pattern;
use crate::residency::Priority;

/// Keep files in RAM for good.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PinRequest {
    /// Names in it may have `*` and `?`: then files that come later are pinned too.
    #[schema(value_type = String)]
    pub path: PathBuf,
    /// Only what this pattern names of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub tensors: Option<Pattern>,
    /// Of the files, besides.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<Priority>,
}

/// Take pins back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct UnpinRequest {
    #[schema(value_type = String)]
    pub path: PathBuf,
}

/// Read files into RAM, as far as the policy keeps them; or into the memory of a GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PrefetchRequest {
    /// Names may have wildcards.
    #[schema(value_type = Vec<String>, min_items = 1, max_items = 1000)]
    pub paths: Vec<PathBuf>,
    /// Only what this pattern names of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub tensors: Option<Pattern>,
    /// Only this part of a checkpoint.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub component: Option<Component>,
    /// The device whose memory it goes to, such as `cuda:0`, instead of RAM. Without `into`, it is held there for ten
    /// minutes, for a program that loads it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
    /// The asker's own memory on that device, for one file. Then nothing is read through RAM, and it is refused where
    /// that is impossible.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub into: Option<DeviceMemory>,
}

/// Memory of a device that belongs to who asks, and stays as it is until the job has ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct DeviceMemory {
    /// By which other processes open it (CUipcMemHandle), 64 bytes in hexadecimal.
    pub handle: String,
    pub size_bytes: u64,
    /// What of the file goes where: start in the file, bytes, place in the memory.
    pub spans: Vec<(u64, u64, u64)>,
}

/// Free what files take of the RAM.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct EvictRequest {
    /// Names may have wildcards.
    #[schema(value_type = String)]
    pub path: PathBuf,
    /// Only what this pattern names of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub tensors: Option<Pattern>,
}

/// Free everything that is neither pinned nor in use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct FlushRequest {}

/// What was pinned, unpinned or freed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Outcome {
    pub files: u64,
    /// What of it concerns this request.
    pub bytes: u64,
    /// Bytes that were to go and had to stay.
    pub left_bytes: u64,
}

/// Change the budget of the running daemon.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct BudgetRequest {
    /// The most that the arena may hold: at most `--ram`, which is also what null stands for.
    #[serde(default)]
    pub limit_bytes: Option<u64>,
    /// For how long; without it, until it is changed again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 0)]
    pub seconds: Option<f64>,
}

/// End one mount.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct UnmountRequest {
    /// As the status reports it.
    #[schema(value_type = String)]
    pub mountpoint: PathBuf,
}

/// Go on with another program, without an interruption for clients.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct UpgradeRequest {
    /// An executable file.
    #[schema(value_type = String)]
    pub program: PathBuf,
}

/// Record what is opened, read and decided.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TraceStart {
    /// A new file outside of the mounts, which the daemon writes.
    #[schema(value_type = String)]
    pub file: PathBuf,
}

/// What a recording came to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TraceSummary {
    #[serde(serialize_with = "lossy")]
    #[schema(value_type = String)]
    pub file: PathBuf,
    pub events: u64,
    /// Events that came faster than they could be written.
    pub lost: u64,
}

/// Serve the page, and this interface, to a browser.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct DashboardRequest {
    /// Where to listen: an address of this machine and a port, 0 for any that is free. Without it where the daemon
    /// listens already, else on 127.0.0.1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub listen: Option<String>,
}

/// Where the page is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Dashboard {
    /// Opens the page with the right to change things: not to be given away.
    pub url: String,
    /// Address and port.
    pub listen: String,
    /// What a request with the header `Authorization: Bearer TOKEN` may change things with.
    pub token: String,
}
