//! How much RAM there is, and how much of it this process may have.

use std::path::{Path, PathBuf};
use std::{fs, io};

/// Bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    pub total: u64,
    /// What programs could get now without swapping.
    pub available: u64,
    /// The least limit of the control groups that this process is in.
    pub limit: Option<u64>,
}

#[derive(Debug, thiserror::Error)]
pub enum MemoryError {
    #[error("cannot read /proc/meminfo: {0}")]
    Unreadable(#[from] io::Error),
    #[error("/proc/meminfo does not say how much memory there is")]
    Unknown,
}

impl Memory {
    pub fn read() -> Result<Self, MemoryError> {
        let text = fs::read_to_string("/proc/meminfo")?;
        let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        let limit = limit_files(&groups)
            .iter()
            .filter_map(|file| fs::read_to_string(file).ok())
            .filter_map(|text| parse_limit(&text))
            .min();
        match (meminfo(&text, "MemTotal"), meminfo(&text, "MemAvailable")) {
            (Some(total), Some(available)) => {
                Ok(Self { total, available, limit: limit.filter(|limit| *limit < total) })
            }
            _ => Err(MemoryError::Unknown),
        }
    }

    /// What this process could ever have.
    pub fn most(&self) -> u64 {
        self.limit.unwrap_or(self.total)
    }
}

/// Lines read `MemTotal:       16384 kB`.
fn meminfo(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    line.trim().strip_suffix("kB")?.trim_end().parse::<u64>().ok()?.checked_mul(1024)
}

/// The files with the limits of the groups that `groups`, the text of `/proc/self/cgroup`, names, and of the groups
/// above them. In a container that sees only its own part of the tree, the root of what is seen is among them.
fn limit_files(groups: &str) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for line in groups.lines() {
        let mut fields = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(group)) = (fields.next(), fields.next(), fields.next()) else { continue };
        let (root, file) = if controllers.is_empty() {
            ("/sys/fs/cgroup", "memory.max")
        } else if controllers.split(',').any(|controller| controller == "memory") {
            ("/sys/fs/cgroup/memory", "memory.limit_in_bytes")
        } else {
            continue;
        };
        let below_root = Path::new(group.trim_start_matches('/'));
        files.extend(below_root.ancestors().map(|group| Path::new(root).join(group).join(file)));
    }
    files
}

/// `max` is no limit. The first version writes a very large number instead, more than any machine has.
fn parse_limit(text: &str) -> Option<u64> {
    text.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn meminfo_is_read_in_bytes() {
        let text = "MemTotal:       16384 kB\nMemFree:  1 kB\nMemAvailable:   8192 kB\n";
        assert_eq!(meminfo(text, "MemTotal"), Some(16 << 20));
        assert_eq!(meminfo(text, "MemAvailable"), Some(8 << 20));
        assert_eq!(meminfo(text, "Mem"), None);
        assert_eq!(meminfo("MemTotal: lots kB", "MemTotal"), None);
    }

    #[test]
    fn limits_of_both_versions_are_looked_for_up_to_the_root() {
        let files = limit_files("0::/a/b\n4:cpu,memory:/x\n2:cpu:/y\nodd\n");
        let expected = [
            "/sys/fs/cgroup/a/b/memory.max",
            "/sys/fs/cgroup/a/memory.max",
            "/sys/fs/cgroup/memory.max",
            "/sys/fs/cgroup/memory/x/memory.limit_in_bytes",
            "/sys/fs/cgroup/memory/memory.limit_in_bytes",
        ];
        assert_eq!(files, expected.map(PathBuf::from));
        assert_eq!(parse_limit("max\n"), None);
        assert_eq!(parse_limit("1024\n"), Some(1024));
    }

    #[test]
    fn this_machine_has_memory() {
        let memory = Memory::read().unwrap();
        assert!(memory.available > 0 && memory.most() <= memory.total);
    }
}
