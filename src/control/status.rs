//! How a daemon is: the JSON that `weightfs status --json` prints.
//!
//! Names and meanings are a contract with scripts: fields may be added, these stay. Sizes are in bytes; counts and
//! sums of bytes run from the start of the daemon.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::lossy;
use crate::gpu::report::GpuReport;

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Status {
    pub mounts: Vec<MountStatus>,
    pub ram: RamStatus,
    pub io: IoStatus,
    pub worker: WorkerStatus,
    /// Of the daemon.
    pub version: String,
    /// What is missing on this machine and what that costs, a sentence each.
    #[serde(default)]
    pub notes: Vec<String>,
    #[serde(default)]
    pub pressure: PressureStatus,
    /// Files that are being read into RAM now.
    #[serde(default)]
    pub fills: Vec<FillStatus>,
    #[serde(default)]
    pub hints: HintStatus,
    /// As it chooses now among its rules.
    #[serde(default)]
    pub policy: String,
    #[serde(default)]
    pub trace: TraceStatus,
    /// Of the process that serves the mounts.
    #[serde(default)]
    pub uptime_seconds: f64,
    /// What the machine can do with GPUs. None where it has none, and until the driver has answered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu: Option<GpuReport>,
}

/// Why the budget is what it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct PressureStatus {
    /// Percent of the last ten seconds in which some process waited for memory.
    pub psi_some_avg10: Option<f64>,
    pub mem_available_bytes: u64,
    /// To be left free for everyone else.
    pub reserve_bytes: u64,
    /// The most that the daemon's control group allows.
    pub cgroup_limit_bytes: Option<u64>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct FillStatus {
    #[serde(serialize_with = "lossy")]
    #[schema(value_type = String)]
    pub path: PathBuf,
    /// Resident.
    pub bytes_done: u64,
    /// Resident and on their way.
    pub bytes_total: u64,
    /// Who it is for: `demand`, `open_wait` or `prefetch`.
    pub class: String,
    /// Of the device that it is read from, lately.
    pub bytes_per_second: u64,
}

/// What programs have said of what comes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct HintStatus {
    /// Marks that files are in use.
    pub in_use: u64,
    /// Files in the queues of what comes.
    pub queued: u64,
    /// Files that are said to be in the memory of a GPU.
    pub in_vram: u64,
}

/// Of the recording.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TraceStatus {
    pub recording: bool,
    /// Where to.
    #[schema(value_type = Option<String>)]
    pub file: Option<PathBuf>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Mounts {
    pub mounts: Vec<MountStatus>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct MountStatus {
    /// Bytes of a name that are not UTF-8 are shown as U+FFFD.
    #[serde(serialize_with = "lossy")]
    #[schema(value_type = String)]
    pub mountpoint: PathBuf,
    /// The folder behind it. The same as `mountpoint` for a folder that is mounted over itself.
    #[serde(serialize_with = "lossy")]
    #[schema(value_type = String)]
    pub source: PathBuf,
    /// Whether resident files can be read without the daemon.
    pub passthrough: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RamStatus {
    /// The most that the arena may hold now.
    pub budget_bytes: u64,
    /// The most that it may ever hold: `--ram`.
    #[serde(default)]
    pub limit_bytes: u64,
    /// What bounds the budget now, for a person.
    #[serde(default)]
    pub budget_reason: String,
    /// Where reclaim starts.
    pub high_watermark_bytes: u64,
    /// Where reclaim stops.
    pub low_watermark_bytes: u64,
    /// What the arena holds, `client_held_bytes` not counted.
    pub resident_bytes: u64,
    /// The part of it that is promised not to be evicted.
    pub pinned_bytes: u64,
    /// Evicted, but kept alive by programs that have it open or mapped. Counts against the budget.
    pub client_held_bytes: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct IoStatus {
    /// What reads the sources: `io_uring`, `threads`, or what a later version has.
    pub engine: String,
    /// Read from the sources, for whatever reason.
    pub source_read_bytes: u64,
    /// Answered by the daemon out of the arena. Reads through passthrough are not seen by it.
    pub served_from_ram_bytes: u64,
    /// Answered by the daemon with bytes that had to be read for it.
    pub served_from_source_bytes: u64,
    /// Opens answered with passthrough, after which reads cost the daemon nothing.
    pub passthrough_opens: u64,
    /// Opens whose reads the daemon answers.
    pub stream_opens: u64,
    /// Taken out of the arena to make room.
    pub evicted_bytes: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct WorkerStatus {
    /// Of the process that serves the mounts.
    pub pid: u32,
    /// How often it had to be replaced.
    pub restarts: u64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;

    #[test]
    fn the_fields_have_the_names_that_scripts_rely_on() {
        let status = Status {
            mounts: vec![MountStatus { mountpoint: "/m".into(), source: "/s".into(), passthrough: true }],
            ram: RamStatus::default(),
            io: IoStatus::default(),
            worker: WorkerStatus::default(),
            version: "1.2.3".into(),
            ..Status::default()
        };
        let expected = serde_json::json!({
            "mounts": [{"mountpoint": "/m", "source": "/s", "passthrough": true}],
            "ram": {
                "budget_bytes": 0, "limit_bytes": 0, "budget_reason": "", "high_watermark_bytes": 0, "low_watermark_bytes": 0,
                "resident_bytes": 0, "pinned_bytes": 0, "client_held_bytes": 0,
            },
            "io": {
                "engine": "", "source_read_bytes": 0, "served_from_ram_bytes": 0, "served_from_source_bytes": 0,
                "passthrough_opens": 0, "stream_opens": 0, "evicted_bytes": 0,
            },
            "worker": {"pid": 0, "restarts": 0},
            "version": "1.2.3",
            "notes": [],
            "pressure": {
                "psi_some_avg10": null, "mem_available_bytes": 0, "reserve_bytes": 0, "cgroup_limit_bytes": null,
            },
            "fills": [],
            "hints": {"in_use": 0, "queued": 0, "in_vram": 0},
            "policy": "",
            "trace": {"recording": false, "file": null},
            "uptime_seconds": 0.0,
        });
        assert_eq!(serde_json::to_value(&status).unwrap(), expected);
        assert_eq!(serde_json::from_value::<Status>(expected).unwrap(), status);
    }

    #[test]
    fn a_mountpoint_that_is_not_text_does_not_stop_the_answer() {
        let mount =
            MountStatus { mountpoint: OsStr::from_bytes(b"/m\xff").into(), source: "/s".into(), passthrough: false };
        let json = serde_json::to_string(&mount).unwrap();
        assert!(json.contains("/m\u{fffd}"), "{json}");
    }
}
