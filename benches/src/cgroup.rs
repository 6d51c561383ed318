//! Control groups with a limit of memory or of reads from a disk, gone with their owners.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::error::{Doing, Result};

const ROOT: &str = "/sys/fs/cgroup";

/// How long its processes may take to be gone.
const END: Duration = Duration::from_secs(5);

/// Control groups of version 1 have a tree for each resource, those of version 2 one for all.
#[derive(Debug)]
struct Group {
    folder: PathBuf,
}

impl Group {
    fn new(resource: &str, name: &str) -> Result<Self> {
        let first = Path::new(ROOT).join(resource);
        let root = if first.exists() { first } else { PathBuf::from(ROOT) };
        let group = Self { folder: root.join(format!("weightfs-bench-{name}-{}", std::process::id())) };
        fs::create_dir(&group.folder).doing(|| format!("make the control group {}", group.folder.display()))?;
        Ok(group)
    }

    fn is_first_version(&self) -> bool {
        self.folder.parent() != Some(Path::new(ROOT))
    }

    fn write(&self, file: &str, value: &str) -> Result<()> {
        let path = self.folder.join(file);
        fs::write(&path, value).doing(|| format!("write {value} to {}", path.display()))
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let start = Instant::now();
        while self.folder.exists() && fs::remove_dir(&self.folder).is_err() && start.elapsed() < END {
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// A limit of memory.
#[derive(Debug)]
pub struct LimitedGroup(Group);

impl LimitedGroup {
    /// A group that may take `limit` bytes of RAM, its page cache included.
    pub fn new(limit: u64) -> Result<Self> {
        let group = Group::new("memory", "memory")?;
        let file = if group.is_first_version() { "memory.limit_in_bytes" } else { "memory.max" };
        group.write(file, &limit.to_string())?;
        Ok(Self(group))
    }

    /// Moves a process here. What it has taken already stays where it is counted.
    pub fn add(&self, pid: u32) -> Result<()> {
        self.0.write("cgroup.procs", &pid.to_string())
    }
}

/// A limit of what this process, and those that it starts, read from the disk under a path, for as long as it lives.
#[derive(Debug)]
pub struct Throttle {
    /// Left before it goes.
    before: PathBuf,
    _group: Group,
}

impl Throttle {
    /// At most so many bytes a second, whoever reads.
    pub fn new(path: &Path, bytes_per_second: u64) -> Result<Self> {
        let group = Group::new("blkio", "reads")?;
        let device = disk_of(path)?;
        if group.is_first_version() {
            group.write("blkio.throttle.read_bps_device", &format!("{device} {bytes_per_second}"))?;
        } else {
            group.write("io.max", &format!("{device} rbps={bytes_per_second}"))?;
        }
        let before = group.folder.parent().map(|root| root.join("cgroup.procs")).unwrap_or_default();
        group.write("cgroup.procs", &std::process::id().to_string())?;
        Ok(Self { before, _group: group })
    }
}

impl Drop for Throttle {
    fn drop(&mut self) {
        if let Err(error) = fs::write(&self.before, std::process::id().to_string()) {
            eprintln!("cannot leave the control group that limits reads: {error}");
        }
    }
}

/// The number of the disk that a path lies on: limits are not for partitions.
fn disk_of(path: &Path) -> Result<String> {
    let device = rustix::fs::stat(path).doing(|| format!("look at {}", path.display()))?.st_dev;
    let number = format!("{}:{}", rustix::fs::major(device), rustix::fs::minor(device));
    let entry = PathBuf::from(format!("/sys/dev/block/{number}"));
    if !entry.join("partition").exists() {
        return Ok(number);
    }
    let whole = entry.join("../dev");
    Ok(fs::read_to_string(&whole).doing(|| format!("read {}", whole.display()))?.trim().to_owned())
}
