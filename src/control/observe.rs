//! What happens over time: events and samples.

use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

/// Something that happened, as the data of a server-sent event whose name is the kind.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Event {
    pub kind: EventKind,
    /// Seconds since 1970.
    pub at: f64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
    /// For a person.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum EventKind {
    /// A file was opened; the reason says how it is served.
    Opened,
    /// A file has become wholly resident.
    Filled,
    /// Something of a file was taken out of RAM.
    Evicted,
    /// The budget has changed to `bytes`.
    Budget,
    Pinned,
    Unpinned,
    /// A prefetch began or ended.
    Prefetch,
    /// The process that serves the mounts began, or is about to end.
    Worker,
}

impl EventKind {
    pub const ALL: [Self; 8] = [
        Self::Opened,
        Self::Filled,
        Self::Evicted,
        Self::Budget,
        Self::Pinned,
        Self::Unpinned,
        Self::Prefetch,
        Self::Worker,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Self::Opened => "opened",
            Self::Filled => "filled",
            Self::Evicted => "evicted",
            Self::Budget => "budget",
            Self::Pinned => "pinned",
            Self::Unpinned => "unpinned",
            Self::Prefetch => "prefetch",
            Self::Worker => "worker",
        }
    }
}

/// The data of an event named `lost`: the reader was too slow for this many.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Lost {
    pub lost: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct EventsQuery {
    /// Only these kinds, separated by commas.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kinds: Option<String>,
}

/// The last ten minutes, oldest first.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct History {
    pub interval_seconds: f64,
    pub samples: Vec<HistorySample>,
}

/// What was so at a moment, and what happened since the sample before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct HistorySample {
    /// Seconds since 1970.
    pub at: f64,
    /// Answered by the daemon since the sample before: `ram_bytes` and `source_bytes` together.
    pub served_bytes: u64,
    /// Answered out of the arena since the sample before.
    pub ram_bytes: u64,
    /// Answered with bytes that had to be read for it, since the sample before.
    pub source_bytes: u64,
    /// Read from the sources since the sample before, for whatever reason.
    pub source_read_bytes: u64,
    pub evicted_bytes: u64,
    /// Opens since the sample before whose reads cost the daemon nothing, and so are not in `served_bytes`.
    pub passthrough_opens: u64,
    /// The sizes of the files so opened.
    pub passthrough_bytes: u64,
    pub stream_opens: u64,
    pub resident_bytes: u64,
    pub pinned_bytes: u64,
    pub client_held_bytes: u64,
    pub budget_bytes: u64,
    pub mem_available_bytes: u64,
    /// Percent of the last ten seconds in which some process waited for memory.
    pub psi_some_avg10: Option<f64>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_named_as_they_travel() {
        for kind in EventKind::ALL {
            assert_eq!(serde_json::to_value(kind).unwrap(), kind.name());
        }
    }
}
