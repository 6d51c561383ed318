//! The machine that a result belongs to.

use std::fs;
use std::path::{Path, PathBuf};

use serde::Serialize;

#[derive(Clone, Debug, Serialize)]
pub struct Machine {
    pub processor: String,
    pub processors: usize,
    pub memory_bytes: u64,
    pub kernel: String,
    pub storage: Storage,
    /// Pages in one FUSE request at most.
    pub fuse_pages_limit: Option<String>,
}

/// What the data lies on.
#[derive(Clone, Debug, Serialize)]
pub struct Storage {
    pub file_system: String,
    pub device: String,
    /// What the kernel says, which virtual disks say whatever they are.
    pub rotational: Option<bool>,
    pub read_ahead_kib: Option<u64>,
}

impl Machine {
    /// `data` is where the files of the run are.
    pub fn look(data: &Path) -> Self {
        let uname = rustix::system::uname();
        let memory =
            line_of("/proc/meminfo", "MemTotal").and_then(|text| text.strip_suffix(" kB")?.parse::<u64>().ok());
        Self {
            processor: line_of("/proc/cpuinfo", "model name").unwrap_or_else(|| "unknown".to_owned()),
            processors: std::thread::available_parallelism().map_or(1, usize::from),
            memory_bytes: memory.unwrap_or(0) * 1024,
            kernel: format!("{} {}", uname.sysname().to_string_lossy(), uname.release().to_string_lossy()),
            storage: Storage::of(data),
            fuse_pages_limit: word_of("/proc/sys/fs/fuse/max_pages_limit"),
        }
    }
}

impl Storage {
    fn of(data: &Path) -> Self {
        let (file_system, device) = mount_of(data).unwrap_or_else(|| ("unknown".to_owned(), "unknown".to_owned()));
        let queue = queue_of(data);
        let setting = |name: &str| word_of(queue.as_ref()?.join(name).to_str()?);
        Self {
            file_system,
            device,
            rotational: setting("rotational").map(|value| value == "1"),
            read_ahead_kib: setting("read_ahead_kb").and_then(|value| value.parse().ok()),
        }
    }
}

/// The load of the last minute (proc_loadavg(5)): what else the machine was doing.
pub fn load() -> Option<f64> {
    word_of("/proc/loadavg")?.split(' ').next()?.parse().ok()
}

fn word_of(path: &str) -> Option<String> {
    Some(fs::read_to_string(path).ok()?.trim().to_owned())
}

fn line_of(path: &str, name: &str) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    let value = |line: &str| Some(line.strip_prefix(name)?.trim_start().strip_prefix(':')?.trim().to_owned());
    text.lines().find_map(value)
}

/// The type and the device of the file system that a path lies on.
fn mount_of(path: &Path) -> Option<(String, String)> {
    let path = path.canonicalize().ok()?;
    let table = fs::read_to_string("/proc/self/mountinfo").ok()?;
    let mounts = table.lines().filter_map(|line| {
        let (left, right) = line.split_once(" - ")?;
        let point = PathBuf::from(left.split(' ').nth(4)?);
        let mut right = right.split(' ');
        path.starts_with(&point).then_some((point, right.next()?.to_owned(), right.next()?.to_owned()))
    });
    mounts.max_by_key(|(point, ..)| point.as_os_str().len()).map(|(_, kind, device)| (kind, device))
}

fn queue_of(path: &Path) -> Option<PathBuf> {
    let device = rustix::fs::stat(path).ok()?.st_dev;
    let entry = format!("/sys/dev/block/{}:{}", rustix::fs::major(device), rustix::fs::minor(device));
    // Partitions have no queue of their own: it is their disk's.
    ["queue", "../queue"].iter().map(|name| Path::new(&entry).join(name)).find(|queue| queue.exists())
}
