//! The program under test: mounted, asked how it is, and unmounted whatever happens.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use serde::Serialize;
use weightfs::control::Status;
use weightfs_mount::runtime_dir::daemon_name;

use crate::error::{BenchError, Doing, Result};
use crate::process;

/// Where root's daemons keep what outlives them, a directory each.
const STATE: &str = "/var/lib/weightfs";

/// How long a daemon may take to give back its memory.
const END: Duration = Duration::from_secs(20);

/// How long a worker may take to be replaced.
const REPLACEMENT: Duration = Duration::from_secs(20);

/// How long bytes that were read may take to be counted as resident.
const SETTLE: Duration = Duration::from_secs(10);

/// The program and what it mounts.
#[derive(Clone, Debug)]
pub struct Weightfs {
    pub binary: PathBuf,
    pub source: PathBuf,
    pub mountpoint: PathBuf,
    /// Options that every mount of the run gets.
    pub options: Vec<String>,
}

/// A daemon that serves. Dropped, it is unmounted.
#[derive(Debug)]
pub struct Mounted<'a> {
    program: &'a Weightfs,
    pub pid: u32,
    is_over: bool,
}

/// What a daemon had done at some moment, or between two.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Work {
    pub cpu_seconds: f64,
    pub source_read_bytes: u64,
    pub served_from_ram_bytes: u64,
    pub served_from_source_bytes: u64,
    pub passthrough_opens: u64,
    pub stream_opens: u64,
}

impl Work {
    /// What a daemon says that it did, for so much CPU.
    pub fn of(status: &Status, cpu_seconds: f64) -> Self {
        let io = &status.io;
        Self {
            cpu_seconds,
            source_read_bytes: io.source_read_bytes,
            served_from_ram_bytes: io.served_from_ram_bytes,
            served_from_source_bytes: io.served_from_source_bytes,
            passthrough_opens: io.passthrough_opens,
            stream_opens: io.stream_opens,
        }
    }

    pub fn since(self, before: Self) -> Self {
        Self {
            cpu_seconds: self.cpu_seconds - before.cpu_seconds,
            source_read_bytes: self.source_read_bytes - before.source_read_bytes,
            served_from_ram_bytes: self.served_from_ram_bytes - before.served_from_ram_bytes,
            served_from_source_bytes: self.served_from_source_bytes - before.served_from_source_bytes,
            passthrough_opens: self.passthrough_opens - before.passthrough_opens,
            stream_opens: self.stream_opens - before.stream_opens,
        }
    }

    /// Bytes that the daemon itself handed out.
    pub fn served(self) -> u64 {
        self.served_from_ram_bytes + self.served_from_source_bytes
    }
}

impl Weightfs {
    pub fn version(&self) -> Result<String> {
        let output = self.run(&["--version"])?;
        Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    }

    /// Mounts with the options of the run and these.
    pub fn mount(&self, options: &[&str]) -> Result<Mounted<'_>> {
        let mut words = vec!["mount"];
        words.extend(self.options.iter().map(String::as_str));
        words.extend(options);
        let (source, mountpoint) = (text(&self.source)?, text(&self.mountpoint)?);
        words.extend([source, mountpoint]);
        self.run(&words)?;
        let mut mounted = Mounted { program: self, pid: 0, is_over: false };
        mounted.pid = mounted.status()?.worker.pid;
        Ok(mounted)
    }

    /// Takes from the next daemon what earlier ones have learned.
    pub fn forget_history(&self) -> Result<()> {
        let state = Path::new(STATE).join(daemon_name(&self.mountpoint));
        match std::fs::remove_dir_all(&state) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(error).doing(|| format!("remove {}", state.display()))
            }
            _ => Ok(()),
        }
    }

    /// Whatever is mounted there, whether its daemon lives or not, and whether it is in use or not.
    pub fn clear(&self) {
        if !self.is_mounted() {
            return;
        }
        let ended = text(&self.mountpoint).and_then(|mountpoint| self.run(&["unmount", mountpoint]));
        if ended.is_err()
            && let Err(error) = nix::mount::umount2(&self.mountpoint, nix::mount::MntFlags::MNT_DETACH)
        {
            eprintln!("{} is still mounted: {error}", self.mountpoint.display());
        }
    }

    fn is_mounted(&self) -> bool {
        mounts_below(&self.mountpoint).contains(&self.mountpoint)
    }

    fn run(&self, words: &[&str]) -> Result<Output> {
        let command = format!("{} {}", self.binary.display(), words.join(" "));
        let output = Command::new(&self.binary).args(words).output().doing(|| format!("run {command}"))?;
        if output.status.success() {
            return Ok(output);
        }
        Err(BenchError::Program { command, words: String::from_utf8_lossy(&output.stderr).trim().to_owned() })
    }
}

/// Detaches whatever is mounted in a folder: what scenarios mounted that did not come to their end.
pub fn detach_below(folder: &Path) {
    for mountpoint in mounts_below(folder).iter().rev() {
        if let Err(error) = nix::mount::umount2(mountpoint, nix::mount::MntFlags::MNT_DETACH) {
            eprintln!("{} is still mounted: {error}", mountpoint.display());
        }
    }
}

fn mounts_below(folder: &Path) -> Vec<PathBuf> {
    let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let points = table.lines().filter_map(|line| line.split(' ').nth(4));
    let points = points.map(|point| PathBuf::from(point.replace("\\040", " ").replace("\\134", "\\")));
    points.filter(|point| point.starts_with(folder)).collect()
}

impl Mounted<'_> {
    pub fn status(&self) -> Result<Status> {
        let output = self.program.run(&["status", text(&self.program.mountpoint)?, "--json"])?;
        serde_json::from_slice(&output.stdout).doing(|| "read the status of the daemon".to_owned())
    }

    pub fn work(&self) -> Result<Work> {
        Ok(Work::of(&self.status()?, process::cpu_seconds(self.pid)?))
    }

    pub fn memory(&self) -> Result<process::Memory> {
        process::memory(self.pid)
    }

    /// Waits until the arena holds `bytes`.
    pub fn wait_resident(&self, bytes: u64) -> Result<()> {
        let start = Instant::now();
        loop {
            let resident = self.status()?.ram.resident_bytes;
            if resident >= bytes {
                return Ok(());
            }
            if start.elapsed() > SETTLE {
                return Err(BenchError::Unfit(format!(
                    "of {bytes} bytes that were read only {resident} became resident: is --ram too small?"
                )));
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Reads files into RAM, and returns when they are there.
    pub fn prefetch(&self, paths: &[PathBuf]) -> Result<()> {
        let mut words = vec!["prefetch", "--wait"];
        words.extend(paths.iter().map(|path| text(path)).collect::<Result<Vec<_>>>()?);
        self.program.run(&words).map(drop)
    }

    /// Kills the process that serves, and waits until another does. Gives the time that took.
    pub fn kill_worker(&mut self) -> Result<Duration> {
        let before = self.pid;
        let start = Instant::now();
        let pid = nix::unistd::Pid::from_raw(before as i32);
        nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL).doing(|| format!("kill the worker {before}"))?;
        loop {
            // Until there is another nobody answers.
            if let Ok(status) = self.status()
                && status.worker.pid != before
            {
                self.pid = status.worker.pid;
                return Ok(start.elapsed());
            }
            if start.elapsed() > REPLACEMENT {
                return Err(BenchError::Unfit(format!("the killed worker {before} was not replaced")));
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Ends the mount and waits until its daemon is gone, and its memory with it.
    pub fn unmount(mut self) -> Result<()> {
        self.end()
    }

    fn end(&mut self) -> Result<()> {
        self.is_over = true;
        self.program.run(&["unmount", text(&self.program.mountpoint)?])?;
        if self.pid != 0 && !process::wait_for_end(self.pid, END) {
            return Err(BenchError::Unfit(format!("the daemon {} lives on {END:?} after its mount", self.pid)));
        }
        Ok(())
    }
}

impl Drop for Mounted<'_> {
    fn drop(&mut self) {
        if !self.is_over
            && let Err(error) = self.end()
        {
            eprintln!("{error}");
            self.program.clear();
        }
    }
}

fn text(path: &Path) -> Result<&str> {
    path.to_str().ok_or_else(|| BenchError::Unfit(format!("{} is not UTF-8", path.display())))
}
