//! The worker's process.

use std::ffi::OsString;
use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::fs::OFlags;
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};

use super::holdings::Holdings;
use crate::link::{Link, Report, form};

/// How long threads that are killed may take to end, unless they are stuck.
const DYING: Duration = Duration::from_millis(25);

/// Of Linux 6.9: a descriptor of one thread, which is ready when that ends.
const PIDFD_THREAD: PidfdFlags = PidfdFlags::from_bits_retain(OFlags::EXCL.bits());

/// How long a program may take to say what it is.
const EXAMINATION: Duration = Duration::from_secs(5);

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
        let mut command = new.command();
        command.args(["worker", "--journal-version"]).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        let said = command.spawn().and_then(first_words);
        match said.map_err(|error| cannot(format!("it cannot be run ({error})")))?.trim().parse::<u32>() {
            Ok(version) if version == form() => Ok(()),
            Ok(version) => Err(cannot(format!(
                "its journal has form {version} and the running one form {}: unmount, then mount with it",
                form()
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

/// What a program says that is to say little and end soon. It is ended if it does not.
fn first_words(mut program: Child) -> io::Result<String> {
    let until = Instant::now() + EXAMINATION;
    while program.try_wait()?.is_none() && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(5));
    }
    // It may just have ended.
    let _ = program.kill();
    program.wait()?;
    let mut words = [0; 64];
    let stdout = program.stdout.take().expect("it was piped");
    rustix::fs::fcntl_setfl(&stdout, OFlags::NONBLOCK)?;
    // Whoever has inherited the pipe and says nothing is not waited for.
    let length = rustix::io::read(&stdout, &mut words[..]).unwrap_or(0);
    Ok(String::from_utf8_lossy(&words[..length]).into_owned())
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
    /// Of a thread that ends when the process is ended.
    canary: Option<OwnedFd>,
    /// The other end has closed the socket.
    silent: bool,
}

/// How a worker has ended. Without a status no thread of it will do anything any more, but some are stuck in the kernel:
/// on a source that does not answer, or on a lock of a client that waits for an answer of this very mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gone(pub Option<ExitStatus>);

impl fmt::Display for Gone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(status) => status.fmt(f),
            None => f.write_str("some of its threads are stuck in the kernel"),
        }
    }
}

impl Worker {
    /// `lingering`: processes of earlier workers that may not have ended.
    pub fn start(launch: &Launch, holdings: &mut Holdings, restarts: u64, lingering: Vec<u32>) -> io::Result<Self> {
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
        // Before it can do anything: whoever goes on after us has to know of it.
        let process = pidfd_open(Pid::from_child(&child), PidfdFlags::empty()).ok();
        if let Err(error) = holdings.note_worker(child.id(), restarts, &link, process.as_ref()) {
            tracing::warn!(%error, "nobody can go on with the mounts after this process");
        }
        if let Err(error) = holdings.hand_over(&link, restarts, lingering) {
            // It has died already, which is seen when it is waited for.
            tracing::warn!(%error, "the worker does not take what it is given");
        }
        Ok(Self { child, link, canary: None, silent: false })
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

    /// As [`Worker::next`], where there is something already.
    pub fn next_now(&self) -> Option<(Report, Vec<OwnedFd>)> {
        self.link.receive_now::<Report>().ok().flatten()
    }

    /// It has told which of its threads to look at.
    pub fn watch_canary(&mut self, thread: i32) {
        let Some(thread) = Pid::from_raw(thread) else { return };
        match pidfd_open(thread, PIDFD_THREAD) {
            Ok(canary) => self.canary = Some(canary),
            Err(error) => tracing::debug!(%error, "a worker that is stuck when it is killed will not be noticed"),
        }
    }

    pub fn canary(&self) -> Option<BorrowedFd<'_>> {
        self.canary.as_ref().map(AsFd::as_fd)
    }

    /// How it has ended, if it has. `dying`: its canary has.
    pub fn gone(&mut self, dying: bool) -> io::Result<Option<Gone>> {
        if let Some(status) = self.child.try_wait()? {
            return Ok(Some(Gone(Some(status))));
        }
        if !dying {
            return Ok(None);
        }
        self.signal(Signal::KILL);
        let until = Instant::now() + DYING;
        while Instant::now() < until {
            std::thread::sleep(Duration::from_millis(1));
            if let Some(status) = self.child.try_wait()? {
                return Ok(Some(Gone(Some(status))));
            }
        }
        Ok(are_stuck(self.child.id()).then_some(Gone(None)))
    }

    /// What is to be waited for some day.
    pub fn into_child(self) -> Child {
        self.child
    }

    pub fn signal(&self, signal: Signal) {
        // It has not been waited for, so that the number is still its own.
        let _ = kill_process(Pid::from_child(&self.child), signal);
    }
}

/// Whether every thread of a process that is being killed waits in the kernel for something that cannot be interrupted,
/// or has ended.
pub(super) fn are_stuck(process: u32) -> bool {
    let Ok(threads) = std::fs::read_dir(format!("/proc/{process}/task")) else { return true };
    let state = |thread: std::fs::DirEntry| {
        let text = std::fs::read_to_string(thread.path().join("stat")).ok()?;
        // Behind the name, which may have parentheses itself.
        text.rsplit_once(") ")?.1.chars().next()
    };
    threads.flatten().filter_map(state).all(|state| matches!(state, 'D' | 'I' | 'Z' | 'X'))
}
