//! What programs know of what comes, and tell.
//!
//! Hints of one owner (a name that the program chooses, such as `comfyui-8188`) replace its former ones.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::format::Component;
use crate::pattern::Pattern;
use crate::residency::Priority;

/// These files are used now: nothing of them goes before anything else.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct InUseHint {
    #[schema(value_type = Vec<String>, max_items = 1000)]
    pub paths: Vec<PathBuf>,
    /// How long, unless it is said again.
    #[schema(minimum = 0, maximum = 86400)]
    pub seconds: f64,
    #[schema(min_length = 1, max_length = 200)]
    pub owner: String,
}

/// A mark that ends by itself.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct InUse {
    /// By which it can be taken back: the owner.
    pub id: String,
    pub expires_seconds: f64,
    /// Files that were understood and can be kept.
    pub files: u64,
    /// Paths that lead to no file that can be kept, or to one that whoever asks may not read.
    pub unknown: Vec<String>,
}

/// How much a file matters to its owner.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PriorityHint {
    /// Who says so: of several owners the highest priority counts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(min_length = 1, max_length = 200)]
    pub owner: Option<String>,
    /// How long; without it, until it is said otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 0)]
    pub seconds: Option<f64>,
    /// Names may have wildcards.
    #[schema(value_type = String)]
    pub path: PathBuf,
    pub priority: Priority,
}

/// What will be loaded, in this order.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct QueueHint {
    #[schema(min_length = 1, max_length = 200)]
    pub owner: String,
    /// None: what this owner said is forgotten.
    #[schema(max_items = 1000)]
    pub entries: Vec<QueueEntry>,
    /// How long this is true, unless it is said again: 600 without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 0, maximum = 86400)]
    pub seconds: Option<f64>,
}

/// One piece of work, such as a prompt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct QueueEntry {
    /// As its owner calls it.
    #[schema(max_length = 200)]
    pub id: String,
    #[schema(max_items = 100)]
    pub paths: Vec<QueueItem>,
}

/// One file that it needs, or a part of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct QueueItem {
    #[schema(value_type = String)]
    pub path: PathBuf,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub tensors: Option<Pattern>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub component: Option<Component>,
}

/// What came of a hint.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Hinted {
    /// Files that were understood and can be kept.
    pub files: u64,
    /// Paths that lead to no file that can be kept, or to one that whoever asks may not read.
    pub unknown: Vec<String>,
    /// None: until it is said otherwise.
    pub expires_seconds: Option<f64>,
}

/// What is wholly in the memory of a GPU now, and so the first to leave RAM.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct VramHint {
    #[schema(min_length = 1, max_length = 200)]
    pub owner: String,
    /// Such as `cuda:0`.
    #[schema(min_length = 1, max_length = 40)]
    pub device: String,
    /// None: what this owner said of this device is forgotten.
    #[schema(value_type = Vec<String>, max_items = 1000)]
    pub paths: Vec<PathBuf>,
    /// How long this is true, unless it is said again: 600 without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 0, maximum = 86400)]
    pub seconds: Option<f64>,
}
