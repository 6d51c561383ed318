//! A control group with a memory limit that goes away again.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::mount::unique;
use crate::system::wait_until;

const V1: &str = "/sys/fs/cgroup/memory";
const V2: &str = "/sys/fs/cgroup";

/// A child of the root group. Dropping it removes it, once the processes in it are gone.
pub struct LimitedGroup {
    folder: PathBuf,
}

impl LimitedGroup {
    /// # Errors
    /// Where this process may not make one: the reason to skip a test.
    pub fn new(limit: u64) -> Result<LimitedGroup, String> {
        let name = format!("weightfs-test-{}-{}", std::process::id(), unique());
        let (root, file) = if Path::new(V1).join("memory.limit_in_bytes").exists() {
            (V1, "memory.limit_in_bytes")
        } else {
            (V2, "memory.max")
        };
        let group = LimitedGroup { folder: Path::new(root).join(name) };
        let made = fs::create_dir(&group.folder).and_then(|()| group.write(file, &limit.to_string()));
        made.map(|()| group)
            .map_err(|error| format!("no control group with a memory limit can be made in {root}: {error}"))
    }

    /// Moves a process here with all its threads. What it has allocated already stays where it is counted.
    pub fn add(&self, pid: u32) -> Result<(), String> {
        self.write("cgroup.procs", &pid.to_string()).map_err(|error| format!("process {pid} cannot be moved: {error}"))
    }

    fn write(&self, file: &str, text: &str) -> io::Result<()> {
        fs::write(self.folder.join(file), text)
    }
}

impl Drop for LimitedGroup {
    fn drop(&mut self) {
        wait_until(Duration::from_secs(5), || !self.folder.exists() || fs::remove_dir(&self.folder).is_ok());
    }
}
