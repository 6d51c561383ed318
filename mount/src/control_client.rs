//! Finds daemons and asks them.
//!
//! A daemon is found by a path inside one of its mounts, or by being the only one that runs. What answers is not
//! trusted: it may take a bounded time and send a bounded reply.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use weightfs::control::{
    CONTROL_XATTR, Explained, MAX_REPLY, MAX_REQUEST, Outcome, Refusal, RefusalKind, Reply, Request, Status,
    TraceSummary,
};

use crate::control_line::{LineError, read_line, write_line};
use crate::runtime_dir::{RuntimeDir, daemon_name};

/// How long a look may take.
const STATUS_TIME: Duration = Duration::from_secs(10);
/// How long the end of a mount may take: it waits for fills to stop and files to be closed.
const UNMOUNT_TIME: Duration = Duration::from_secs(60);
/// How long what may read whole models may take.
const STEER_TIME: Duration = Duration::from_secs(3600);
/// How often, and how long apart, a daemon is asked again that has no room.
const TRIES: u32 = 5;
const PAUSE: Duration = Duration::from_millis(200);

#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// Nobody listens: the daemon is gone.
    #[error("no daemon answers at {}: it has ended", .0.display())]
    Dead(PathBuf),
    #[error("uid {} may not connect to {}: ask as root or as the user of the daemon", rustix::process::geteuid().as_raw(), .0.display())]
    NotPermitted(PathBuf),
    #[error("the daemon at {} does not answer: {error}; its log may say why", socket.display())]
    NoAnswer { socket: PathBuf, error: io::Error },
    #[error("the daemon at {} answers what this version does not understand: {reason}", socket.display())]
    NotUnderstood { socket: PathBuf, reason: String },
    #[error("{} has a name that cannot be sent", .0.display())]
    Unsendable(PathBuf),
    #[error(transparent)]
    Refused(#[from] Refusal),
}

#[derive(Debug, thiserror::Error)]
pub enum FindError {
    #[error("no weightfs daemon is running (or none that you can see); start one with 'weightfs mount SOURCE'")]
    NoneRunning,
    #[error("several weightfs daemons are running; say which by a path:{}", list(.0))]
    Several(Vec<(PathBuf, Vec<PathBuf>)>),
    #[error("{} is not in a weightfs mount", .0.display())]
    NotInMount(PathBuf),
    #[error("the daemon of {} has died and left a dead mount; remove it with 'weightfs unmount {}'", .0.display(), .0.display())]
    DeadMount(PathBuf),
    #[error("cannot look at {}: {error}", path.display())]
    Path { path: PathBuf, error: io::Error },
}

fn list(daemons: &[(PathBuf, Vec<PathBuf>)]) -> String {
    daemons.iter().flat_map(|(_, mounts)| mounts).map(|mount| format!("\n  {}", mount.display())).collect()
}

/// A daemon's socket. Every request is a connection of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ControlClient {
    socket: PathBuf,
}

impl ControlClient {
    pub fn new(socket: PathBuf) -> Self {
        Self { socket }
    }

    /// The daemon in whose mount `path`, an absolute path, lies.
    ///
    /// The first mountpoint of a daemon is found by its name in `dirs`, also while the mount itself hangs or is dead;
    /// any other path by asking the filesystem.
    pub fn of_path(path: &Path, dirs: &[RuntimeDir]) -> Result<Self, FindError> {
        let name = daemon_name(path);
        let by_name = dirs.iter().map(|dir| Self::new(dir.socket(&name))).find(Self::is_alive);
        if let Some(client) = by_name {
            return Ok(client);
        }
        let mut value = [0; 4096];
        match rustix::fs::getxattr(path, CONTROL_XATTR, &mut value[..]) {
            Ok(length) => Ok(Self::new(OsString::from_vec(value[..length].to_vec()).into())),
            Err(Errno::NODATA | Errno::OPNOTSUPP) => Err(FindError::NotInMount(path.to_owned())),
            Err(Errno::NOTCONN) => Err(FindError::DeadMount(path.to_owned())),
            Err(error) => Err(FindError::Path { path: path.to_owned(), error: error.into() }),
        }
    }

    /// The one daemon that lives in `dirs`. Sockets that dead daemons of this user left there are removed.
    pub fn only_one(dirs: &[RuntimeDir]) -> Result<Self, FindError> {
        let mut alive = Vec::new();
        for client in dirs.iter().flat_map(RuntimeDir::sockets).map(Self::new) {
            match client.status() {
                Ok(status) => alive.push((client, status)),
                Err(ClientError::Dead(_)) => client.remove_socket(),
                // It lives, but is not for us, or not well: a path finds it, and then says what is wrong.
                Err(error) => tracing::debug!(%error, "daemon passed over"),
            }
        }
        match alive.len() {
            0 => Err(FindError::NoneRunning),
            1 => Ok(alive.remove(0).0),
            _ => {
                let mounts = |status: Status| status.mounts.into_iter().map(|mount| mount.mountpoint).collect();
                Err(FindError::Several(
                    alive.into_iter().map(|(client, status)| (client.socket, mounts(status))).collect(),
                ))
            }
        }
    }

    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Whether somebody listens. False too for who may not connect.
    pub fn is_alive(&self) -> bool {
        UnixStream::connect(&self.socket).is_ok()
    }

    pub fn status(&self) -> Result<Status, ClientError> {
        match self.ask(&Request::Status, STATUS_TIME)? {
            Reply::Status(status) => Ok(*status),
            _ => Err(self.not_understood("no status")),
        }
    }

    /// Returns once the mount is gone. `mountpoint` is one that [`Self::status`] reports.
    pub fn unmount(&self, mountpoint: &Path) -> Result<(), ClientError> {
        match self.ask(&Request::Unmount { mountpoint: mountpoint.to_owned() }, UNMOUNT_TIME)? {
            Reply::Done => Ok(()),
            _ => Err(self.not_understood("no word on whether it is done")),
        }
    }

    pub fn explain(&self, path: &Path) -> Result<Explained, ClientError> {
        match self.ask(&Request::Explain { path: path.to_owned() }, STATUS_TIME)? {
            Reply::Explained(explained) => Ok(*explained),
            _ => Err(self.not_understood("no explanation")),
        }
    }

    /// Pins, prefetches, evicts: what has an outcome in files and bytes.
    pub fn steer(&self, request: &Request) -> Result<Outcome, ClientError> {
        match self.ask(request, STEER_TIME)? {
            Reply::Outcome(outcome) => Ok(outcome),
            _ => Err(self.not_understood("no outcome")),
        }
    }

    pub fn start_trace(&self, file: &Path) -> Result<(), ClientError> {
        match self.ask(&Request::StartTrace { file: file.to_owned() }, STATUS_TIME)? {
            Reply::Done => Ok(()),
            _ => Err(self.not_understood("no word on whether it is done")),
        }
    }

    pub fn stop_trace(&self) -> Result<TraceSummary, ClientError> {
        match self.ask(&Request::StopTrace, STATUS_TIME)? {
            Reply::Trace(summary) => Ok(summary),
            _ => Err(self.not_understood("no summary")),
        }
    }

    /// Returns when `program`, an absolute path, is about to take over.
    pub fn upgrade(&self, program: &Path) -> Result<(), ClientError> {
        match self.ask(&Request::Upgrade { program: program.to_owned() }, UNMOUNT_TIME)? {
            Reply::Done => Ok(()),
            _ => Err(self.not_understood("no word on whether it is done")),
        }
    }

    /// Removes the socket of a dead daemon, which only its owner can.
    fn remove_socket(&self) {
        let me = rustix::process::geteuid().as_raw();
        if fs::symlink_metadata(&self.socket).is_ok_and(|found| found.uid() == me) {
            let _ = fs::remove_file(&self.socket);
        }
    }

    fn ask(&self, request: &Request, time: Duration) -> Result<Reply, ClientError> {
        for _ in 1..TRIES {
            match self.ask_once(request, time) {
                Err(ClientError::Refused(refusal)) if refusal.kind == RefusalKind::Overloaded => thread::sleep(PAUSE),
                answer => return answer,
            }
        }
        self.ask_once(request, time)
    }

    fn ask_once(&self, request: &Request, time: Duration) -> Result<Reply, ClientError> {
        let until = Instant::now() + time;
        let line = match (serde_json::to_vec(request), request) {
            (Ok(line), _) if line.len() < MAX_REQUEST => line,
            (_, Request::Unmount { mountpoint }) => return Err(ClientError::Unsendable(mountpoint.clone())),
            (
                _,
                Request::Explain { path }
                | Request::Pin { path, .. }
                | Request::Unpin { path }
                | Request::Prefetch { path, .. }
                | Request::Evict { path }
                | Request::StartTrace { file: path }
                | Request::Upgrade { program: path },
            ) => return Err(ClientError::Unsendable(path.clone())),
            (_, Request::Status | Request::StopTrace) => unreachable!("a request without arguments is short text"),
        };
        let stream = UnixStream::connect(&self.socket).map_err(|error| match error.kind() {
            io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound => ClientError::Dead(self.socket.clone()),
            io::ErrorKind::PermissionDenied => ClientError::NotPermitted(self.socket.clone()),
            _ => self.no_answer(error),
        })?;
        match write_line(&stream, line, until) {
            // A daemon without room closes at once: its reply says so.
            Err(LineError::Io(error)) if error.kind() == io::ErrorKind::BrokenPipe => {}
            sent => sent.map_err(|error| self.no_answer(io::Error::other(error)))?,
        }
        let line = read_line(&stream, MAX_REPLY, until).map_err(|error| match error {
            LineError::TooLong(_) => self.not_understood(&error.to_string()),
            LineError::Io(error) => self.no_answer(error),
            LineError::TimedOut => self.no_answer(io::ErrorKind::TimedOut.into()),
        })?;
        if line.is_empty() {
            return Err(self.no_answer(io::ErrorKind::UnexpectedEof.into()));
        }
        match serde_json::from_slice(&line) {
            Ok(Reply::Error(refusal)) => Err(refusal.into()),
            Ok(reply) => Ok(reply),
            Err(error) => Err(self.not_understood(&error.to_string())),
        }
    }

    fn no_answer(&self, error: io::Error) -> ClientError {
        ClientError::NoAnswer { socket: self.socket.clone(), error }
    }

    fn not_understood(&self, reason: &str) -> ClientError {
        ClientError::NotUnderstood { socket: self.socket.clone(), reason: reason.to_owned() }
    }
}
