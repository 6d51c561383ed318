//! Why a file is or is not in RAM: the JSON that `weightfs explain --json` prints.
//!
//! Names and meanings are a contract with scripts, as those of the status.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::lossy;

/// Sizes are in bytes, of whole extents of 2 MiB except for `size_bytes` and `resident_bytes`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Explained {
    #[serde(serialize_with = "lossy")]
    #[schema(value_type = String)]
    pub path: PathBuf,
    pub size_bytes: u64,
    pub resident_bytes: u64,
    pub pinned_bytes: u64,
    /// What the policy would keep of it, resident or not.
    pub kept_bytes: u64,
    /// For how long something of it has been resident.
    pub resident_seconds: Option<f64>,
    /// How long ago it was used last.
    pub unused_seconds: Option<f64>,
    /// Programs have it open or mapped, so that evicting a part of it would free nothing.
    pub held: bool,
    /// Why it stays or does not, for a person.
    pub why: String,
    /// What of it goes first when room is needed. None if nothing of it may go, or nothing is there.
    pub next: Option<NextToGo>,
    /// With the rule in force, if it chooses among several.
    pub policy: String,
    pub budget_bytes: u64,
    /// What bounds the budget, for a person.
    pub budget_reason: String,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct NextToGo {
    pub bytes: u64,
    /// For a person.
    pub reason: String,
    /// Of other files, that go before it.
    pub bytes_before: u64,
}
