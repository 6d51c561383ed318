//! How a daemon is: the JSON that `weightfs status --json` prints.
//!
//! Names and meanings are a contract with scripts: fields may be added, these stay. Sizes are in bytes; counts and
//! sums of bytes run from the start of the daemon.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize, Serializer};

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
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
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MountStatus {
    /// Bytes of a name that are not UTF-8 are shown as U+FFFD.
    #[serde(serialize_with = "lossy")]
    pub mountpoint: PathBuf,
    /// The folder behind it. The same as `mountpoint` for a folder that is mounted over itself.
    #[serde(serialize_with = "lossy")]
    pub source: PathBuf,
    /// Whether resident files can be read without the daemon.
    pub passthrough: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
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

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
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

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerStatus {
    /// Of the process that serves the mounts.
    pub pid: u32,
    /// How often it had to be replaced.
    pub restarts: u64,
}

fn lossy<S: Serializer>(path: &Path, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&path.display())
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
            notes: vec![],
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
