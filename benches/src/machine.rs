//! The machine that a result belongs to.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Instant;

use memmap2::MmapMut;
use rustix::fs::OFlags;
use serde::Serialize;

use crate::error::{Doing, Result};
use crate::measure::Spread;

/// Bytes of one direct read.
const DIRECT_READ: usize = 4 << 20;

/// The fastest read of a disk against its slowest.
const NOISY: f64 = 1.5;

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

/// Direct reads of a file, several times.
#[derive(Clone, Debug, Serialize)]
pub struct Probe {
    pub gigabytes_per_second: Spread,
}

impl Probe {
    /// Reads the file at `path` from the disk so many times.
    pub fn of(path: &Path, times: usize) -> Result<Self> {
        let speeds = (0..times).map(|_| direct_read(path)).collect::<Result<Vec<_>>>()?;
        Ok(Self { gigabytes_per_second: Spread::of(&speeds) })
    }

    /// Whether what a disk gives differs by so much that loops over it cannot be told apart.
    pub fn is_noisy(&self) -> bool {
        let Spread { min, max, .. } = self.gigabytes_per_second;
        max > NOISY * min
    }
}

/// In GB a second.
fn direct_read(path: &Path) -> Result<f64> {
    let what = || format!("read {} directly", path.display());
    let file = File::options().read(true).custom_flags(OFlags::DIRECT.bits() as i32).open(path).doing(what)?;
    let mut memory = MmapMut::map_anon(DIRECT_READ).doing(what)?;
    memory.fill(1);
    let (start, mut offset) = (Instant::now(), 0);
    loop {
        match file.read_at(&mut memory, offset).doing(what)? as u64 {
            0 => break,
            length => offset += length,
        }
        // The end of a file that is not a whole number of blocks.
        if offset % DIRECT_READ as u64 != 0 {
            break;
        }
    }
    Ok(offset as f64 / 1e9 / start.elapsed().as_secs_f64())
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
            read_ahead_kib: read_ahead_kib(data),
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

/// How far the kernel reads ahead on the disk below `path`, in KiB: where that is set, if it can be.
pub fn read_ahead_setting(path: &Path) -> Option<PathBuf> {
    queue_of(path).map(|queue| queue.join("read_ahead_kb")).filter(|setting| setting.exists())
}

/// As [`read_ahead_setting`]: what it is now.
pub fn read_ahead_kib(path: &Path) -> Option<u64> {
    word_of(read_ahead_setting(path)?.to_str()?)?.parse().ok()
}

fn queue_of(path: &Path) -> Option<PathBuf> {
    let device = rustix::fs::stat(path).ok()?.st_dev;
    let entry = format!("/sys/dev/block/{}:{}", rustix::fs::major(device), rustix::fs::minor(device));
    // Partitions have no queue of their own: it is their disk's.
    ["queue", "../queue"].iter().map(|name| Path::new(&entry).join(name)).find(|queue| queue.exists())
}
