//! What goes on for a while: prefetches.

use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

/// A prefetch. It is known for ten minutes after its end.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Job {
    pub id: String,
    pub state: JobState,
    pub files: u64,
    /// Resident of what was asked for.
    pub bytes_done: u64,
    /// Of what was asked for. Where the job has ended with less, the rest does not fit, or is worth less than what is
    /// there.
    pub bytes_total: u64,
    /// Lately, while it runs; all in all once it has ended.
    pub bytes_per_second: u64,
    /// Why it failed or left something out, for a person.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum JobState {
    Running,
    Done,
    Failed,
    Cancelled,
}

impl JobState {
    pub fn has_ended(self) -> bool {
        self != Self::Running
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct JobQuery {
    /// Answer when something has changed, or after this many milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[param(maximum = 30000)]
    pub wait_ms: Option<u64>,
}
