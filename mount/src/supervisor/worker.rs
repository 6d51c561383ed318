//! The worker's process.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use weightfs::journal::VERSION;

use super::holdings::Holdings;
use crate::link::{Link, Report};

/// What protects a supervisor from the kernel when memory runs out, and a worker a little less.
const SUPERVISOR_SCORE: &str = "-900";
const WORKER_SCORE: &str = "-500";

/// The program, and how it is told to be a worker.
#[derive(Debug)]
pub struct Launch {
    path: PathBuf,
    /// Open, so that it is there when its file has been replaced.
    file: File,
    arguments: Vec<OsString>,
}

impl Launch {
    /// `arguments` make a worker of `program`.
    pub fn new(program: PathBuf, arguments: Vec<OsString>) -> io::Result<Self> {
        Ok(Self { file: File::open(&program)?, path: program, arguments })
    }

    /// By its name where that still leads to it, so that lists of processes show it.
    fn command(&self) -> Command {
        let same = |a: std::fs::Metadata, b: std::fs::Metadata| (a.dev(), a.ino()) == (b.dev(), b.ino());
        let is_there =
            std::fs::metadata(&self.path).ok().zip(self.file.metadata().ok()).is_some_and(|(a, b)| same(a, b));
        let program =
            if is_there { self.path.clone() } else { format!("/proc/self/fd/{}", self.file.as_raw_fd()).into() };
        let mut command = Command::new(program);
        command.arg0("weightfs");
        command
    }

    /// Whether `program` is a worker that can go on with the journal of this one; a reason where not.
    pub fn examine(&self, program: &Path) -> Result<(), String> {
        let cannot = |reason: String| format!("{} cannot take over: {reason}", program.display());
        let new = Self::new(program.to_owned(), Vec::new()).map_err(|error| cannot(error.to_string()))?;
        let output = new
            .command()
            .args(["worker", "--journal-version"])
            .stdin(Stdio::null())
            .output()
            .map_err(|error| cannot(format!("it cannot be run ({error})")))?;
        let words = String::from_utf8_lossy(&output.stdout);
        match words.trim().parse::<u32>() {
            Ok(version) if version == VERSION => Ok(()),
            Ok(version) => Err(cannot(format!(
                "its journal has form {version} and the running one form {VERSION}: unmount, then mount with it"
            ))),
            Err(_) => Err(cannot("it is no weightfs that knows how to".to_owned())),
        }
    }

    /// From here on workers are this program.
    pub fn replace(&mut self, program: &Path) {
        match File::open(program) {
            Ok(file) => (self.path, self.file) = (program.to_owned(), file),
            Err(error) => tracing::error!(%error, program = %program.display(), "the new program has gone"),
        }
    }
}

/// The kernel is to end somebody else when memory runs out. Needs rights that a user does not have.
pub fn protect() {
    if let Err(error) = std::fs::write("/proc/self/oom_score_adj", SUPERVISOR_SCORE) {
        tracing::debug!(%error, "the supervisor is not protected from running out of memory");
    }
}

pub struct Worker {
    child: Child,
    pub link: Link,
    /// The other end has closed the socket.
    silent: bool,
}

impl Worker {
    pub fn start(launch: &Launch, holdings: &mut Holdings, restarts: u64) -> io::Result<Self> {
        let (link, theirs) = Link::pair()?;
        let mut command = launch.command();
        command.arg("worker").args(&launch.arguments).stdin(Stdio::from(theirs)).stdout(Stdio::null());
        let child = command.spawn()?;
        // Its end of the socket is closed here with the command.
        drop(command);
        let score = format!("/proc/{}/oom_score_adj", child.id());
        if let Err(error) = std::fs::write(score, WORKER_SCORE) {
            tracing::debug!(%error, "the worker is not protected from running out of memory");
        }
        if let Err(error) = holdings.hand_over(&link, restarts) {
            // It has died already, which is seen when it is waited for.
            tracing::warn!(%error, "the worker does not take what it is given");
        }
        Ok(Self { child, link, silent: false })
    }

    pub fn hears(&self) -> bool {
        !self.silent
    }

    /// What it says next, once there is something.
    pub fn next(&mut self) -> Option<(Report, Vec<OwnedFd>)> {
        match self.link.receive::<Report>() {
            Ok(Some(report)) => Some(report),
            Ok(None) => {
                self.silent = true;
                None
            }
            Err(error) => {
                tracing::error!(%error, "a report of the worker is not understood");
                None
            }
        }
    }

    /// Takes in what a dead worker has said.
    pub fn drain(&mut self, holdings: &mut Holdings) {
        while !self.silent {
            if let Some((report, descriptors)) = self.next() {
                holdings.keep(report, descriptors);
            }
        }
    }

    pub fn ended(&mut self) -> io::Result<Option<ExitStatus>> {
        self.child.try_wait()
    }

    pub fn signal(&self, signal: Signal) {
        // It has not been waited for, so that the number is still its own.
        let _ = kill_process(Pid::from_child(&self.child), signal);
    }
}
