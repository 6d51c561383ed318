//! What a process costs and how the machine's memory is used, from /proc.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde::Serialize;

use crate::error::{BenchError, Doing, Result};

/// Ticks a second in /proc/PID/stat, on every architecture that matters (proc_pid_stat(5), USER_HZ).
const TICKS: f64 = 100.0;

/// Memory of a process in bytes.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Memory {
    pub anonymous: u64,
    /// Mapped files: the program itself.
    pub file: u64,
    /// Mapped pages of tmpfs: of a daemon, its arena.
    pub shared: u64,
}

impl Memory {
    /// What the process takes besides the arena.
    pub fn own(self) -> u64 {
        self.anonymous + self.file
    }
}

pub fn memory(pid: u32) -> Result<Memory> {
    let table = Table::read(&format!("/proc/{pid}/status"))?;
    Ok(Memory { anonymous: table.bytes("RssAnon")?, file: table.bytes("RssFile")?, shared: table.bytes("RssShmem")? })
}

/// Seconds of CPU that a process has used so far, in user and kernel mode, to within a tick of 10 ms.
pub fn cpu_seconds(pid: u32) -> Result<f64> {
    let path = format!("/proc/{pid}/stat");
    let stat = fs::read_to_string(&path).doing(|| format!("read {path}"))?;
    seconds_of(&stat).ok_or_else(|| BenchError::Unfit(format!("{path} reads '{stat}'")))
}

fn seconds_of(stat: &str) -> Option<f64> {
    // The name of the program may have spaces and parentheses in it.
    let fields: Vec<&str> = stat.rsplit_once(") ")?.1.split(' ').collect();
    let ticks = |index: usize| fields.get(index)?.parse::<f64>().ok();
    Some((ticks(11)? + ticks(12)?) / TICKS)
}

/// The page cache of the machine in bytes. `cached` has the pages of tmpfs in it.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct PageCache {
    pub cached: u64,
    pub shared: u64,
}

pub fn page_cache() -> Result<PageCache> {
    let table = Table::read("/proc/meminfo")?;
    Ok(PageCache { cached: table.bytes("Cached")?, shared: table.bytes("Shmem")? })
}

/// All that programs and files take of the machine's memory, in bytes: the page cache, in which every arena is counted,
/// memory of programs, and the tables by which they see both.
pub fn used_memory() -> Result<u64> {
    let table = Table::read("/proc/meminfo")?;
    ["Cached", "AnonPages", "PageTables"].iter().map(|name| table.bytes(name)).sum()
}

/// Waits for a process to be gone. Says whether it is.
pub fn wait_for_end(pid: u32, most: Duration) -> bool {
    let start = Instant::now();
    let path = format!("/proc/{pid}");
    while Path::new(&path).exists() {
        if start.elapsed() > most {
            return false;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    true
}

/// Asks every process that runs the program at `path` to end.
pub fn end_all_of(path: &Path) {
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    for pid in processes.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok()) {
        if fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|program| program == path) {
            // One that has ended meanwhile is what is wanted.
            let _ = kill(Pid::from_raw(pid), Signal::SIGTERM);
        }
    }
}

/// Lines of the form `Name:   123 kB`.
struct Table {
    path: String,
    text: String,
}

impl Table {
    fn read(path: &str) -> Result<Self> {
        let text = fs::read_to_string(path).doing(|| format!("read {path}"))?;
        Ok(Self { path: path.to_owned(), text })
    }

    fn bytes(&self, name: &str) -> Result<u64> {
        let value = |line: &str| line.strip_prefix(name)?.strip_prefix(':')?.trim().strip_suffix(" kB")?.parse().ok();
        let kilobytes: u64 = self
            .text
            .lines()
            .find_map(value)
            .ok_or_else(|| BenchError::Unfit(format!("{} says nothing of {name}", self.path)))?;
        Ok(kilobytes * 1024)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_with_an_odd_name_is_understood() {
        let stat = "7 (a ) b) S 1 7 7 0 -1 4194304 100 0 0 0 150 50 0 0 20 0 1 0 5 1000 10";
        assert_eq!(seconds_of(stat), Some(2.0));
        assert_eq!(seconds_of("7 (a) S 1"), None);
    }

    #[test]
    fn names_are_matched_whole() {
        let table = Table { path: "t".into(), text: "SwapCached: 1 kB\nCached:   20 kB\nCachedX: 3 kB\n".into() };
        assert_eq!(table.bytes("Cached").unwrap(), 20 << 10);
        assert!(table.bytes("Shmem").is_err());
    }
}
