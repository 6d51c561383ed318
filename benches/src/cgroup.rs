//! A control group with a memory limit, gone with its owner.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::error::{Doing, Result};

const V1: &str = "/sys/fs/cgroup/memory";
const V2: &str = "/sys/fs/cgroup";

/// How long its processes may take to be gone.
const END: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub struct LimitedGroup {
    folder: PathBuf,
}

impl LimitedGroup {
    /// A group that may take `limit` bytes of RAM, its page cache included.
    pub fn new(limit: u64) -> Result<Self> {
        let is_first = Path::new(V1).join("memory.limit_in_bytes").exists();
        let (root, file) = if is_first { (V1, "memory.limit_in_bytes") } else { (V2, "memory.max") };
        let group = Self { folder: Path::new(root).join(format!("weightfs-bench-{}", std::process::id())) };
        fs::create_dir(&group.folder).doing(|| format!("make the control group {}", group.folder.display()))?;
        group.write(file, limit)?;
        Ok(group)
    }

    /// Moves a process here. What it has taken already stays where it is counted.
    pub fn add(&self, pid: u32) -> Result<()> {
        self.write("cgroup.procs", pid.into())
    }

    fn write(&self, file: &str, value: u64) -> Result<()> {
        let path = self.folder.join(file);
        fs::write(&path, value.to_string()).doing(|| format!("write {value} to {}", path.display()))
    }
}

impl Drop for LimitedGroup {
    fn drop(&mut self) {
        let start = Instant::now();
        while self.folder.exists() && fs::remove_dir(&self.folder).is_err() && start.elapsed() < END {
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}
