//! Finds daemons and asks them.
//!
//! A daemon is found by a path inside one of its mounts, or by being the only one that runs. What answers is not
//! trusted: it may take a bounded time and send a bounded reply. The calls block; how they travel is in [`http`].

mod http;

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use rustix::io::Errno;
use serde::Serialize;
use serde::de::DeserializeOwned;
use weightfs::control::{
    BudgetRequest, CONTROL_XATTR, Dashboard, DashboardRequest, Event, EventKind, EventsQuery, EvictRequest, Explained,
    FileQuery, Files, FilesQuery, Findings, FlushRequest, Hinted, History, InUse, InUseHint, Job, JobQuery, Outcome,
    PinRequest, PrefetchRequest, PriorityHint, Problem, ProblemKind, QueueHint, RamStatus, Status, Tensors, TraceStart,
    TraceStatus, TraceSummary, UnmountRequest, UnpinRequest, UpgradeRequest, VramHint,
};

use crate::runtime_dir::{RuntimeDir, daemon_name};
use http::{Call, Stream};

/// How long a look may take.
const LOOK_TIME: Duration = Duration::from_secs(10);
/// How long the end of a mount may take: it waits for fills to stop and files to be closed.
const UNMOUNT_TIME: Duration = Duration::from_secs(60);
/// How long what reads headers of many files, or frees them, may take.
const STEER_TIME: Duration = Duration::from_secs(300);
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
    /// Too long, or no text.
    #[error("{0} cannot be sent: {1}")]
    Unsendable(String, String),
    #[error(transparent)]
    Refused(#[from] Problem),
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
        if let Some(client) = Self::by_name(path, dirs) {
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

    /// The daemon that lives in `dirs` and serves the mount at `mountpoint`, which is not asked. None where there is none,
    /// or none that answers.
    pub fn of_mount(mountpoint: &Path, dirs: &[RuntimeDir]) -> Option<Self> {
        let serves = |client: &Self| {
            client.status().is_ok_and(|status| status.mounts.iter().any(|mount| mount.mountpoint == mountpoint))
        };
        let any = || dirs.iter().flat_map(RuntimeDir::sockets).map(Self::new).find(serves);
        Self::by_name(mountpoint, dirs).or_else(any)
    }

    /// The daemon whose first mountpoint is `mountpoint`.
    fn by_name(mountpoint: &Path, dirs: &[RuntimeDir]) -> Option<Self> {
        let name = daemon_name(mountpoint);
        dirs.iter().map(|dir| Self::new(dir.socket(&name))).find(Self::is_alive)
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
        self.get("/v1/status", &(), LOOK_TIME)
    }

    pub fn files(&self, query: &FilesQuery) -> Result<Files, ClientError> {
        self.get("/v1/files", query, LOOK_TIME)
    }

    /// Every file that the query names, however many answers it takes.
    pub fn all_files(&self, query: &FilesQuery) -> Result<Files, ClientError> {
        let mut query = query.clone();
        let mut all = self.files(&query)?;
        while let Some(next) = all.next.take() {
            query.cursor = Some(next);
            let more = self.files(&query)?;
            all.files.extend(more.files);
            all.next = more.next;
        }
        Ok(all)
    }

    pub fn tensors(&self, path: &Path) -> Result<Tensors, ClientError> {
        self.get("/v1/tensors", &FileQuery { path: path.to_owned() }, LOOK_TIME)
    }

    pub fn explain(&self, path: &Path) -> Result<Explained, ClientError> {
        self.get("/v1/explain", &FileQuery { path: path.to_owned() }, LOOK_TIME)
    }

    pub fn history(&self) -> Result<History, ClientError> {
        self.get("/v1/history", &(), LOOK_TIME)
    }

    pub fn doctor(&self) -> Result<Findings, ClientError> {
        self.get("/v1/doctor", &(), LOOK_TIME)
    }

    /// In the text format of Prometheus.
    pub fn metrics(&self) -> Result<String, ClientError> {
        let body = self.ask(&Call::get("/metrics"), LOOK_TIME)?;
        String::from_utf8(body).map_err(|error| self.not_understood(&error.to_string()))
    }

    /// What happens from now on: all of it, or of these kinds. Whoever takes too long loses some.
    pub fn events(&self, kinds: &[EventKind]) -> Result<Events, ClientError> {
        let names: Vec<_> = kinds.iter().map(|kind| kind.name()).collect();
        let query = EventsQuery { kinds: (!names.is_empty()).then(|| names.join(",")) };
        let call = Call::get(&with_query("/v1/events", &query)?);
        Ok(Events {
            stream: http::open(&self.socket, &call).map_err(|error| self.failed(error))?,
            client: self.clone(),
        })
    }

    pub fn pin(&self, request: &PinRequest) -> Result<Outcome, ClientError> {
        self.post("/v1/pin", request, STEER_TIME)
    }

    pub fn unpin(&self, path: &Path) -> Result<Outcome, ClientError> {
        self.post("/v1/unpin", &UnpinRequest { path: path.to_owned() }, STEER_TIME)
    }

    /// Begins to read files in.
    pub fn prefetch(&self, request: &PrefetchRequest) -> Result<Job, ClientError> {
        self.post("/v1/prefetch", request, STEER_TIME)
    }

    /// How far a prefetch is: when something has changed, or `wait` has passed (at most 30 s).
    pub fn job(&self, id: &str, wait: Duration) -> Result<Job, ClientError> {
        let query = JobQuery { wait_ms: Some(wait.as_millis() as u64) };
        self.get(&format!("/v1/jobs/{id}"), &query, LOOK_TIME + wait)
    }

    /// Ends a prefetch.
    pub fn cancel(&self, id: &str) -> Result<Job, ClientError> {
        self.read(&self.ask(&Call::delete(&format!("/v1/jobs/{id}")), LOOK_TIME)?)
    }

    pub fn evict(&self, request: &EvictRequest) -> Result<Outcome, ClientError> {
        self.post("/v1/evict", request, STEER_TIME)
    }

    pub fn flush(&self) -> Result<Outcome, ClientError> {
        self.post("/v1/flush", &FlushRequest {}, STEER_TIME)
    }

    pub fn budget(&self, request: &BudgetRequest) -> Result<RamStatus, ClientError> {
        self.post("/v1/budget", request, LOOK_TIME)
    }

    pub fn hint_in_use(&self, hint: &InUseHint) -> Result<InUse, ClientError> {
        self.post("/v1/hints/in-use", hint, STEER_TIME)
    }

    pub fn hint_priority(&self, hint: &PriorityHint) -> Result<Hinted, ClientError> {
        self.post("/v1/hints/priority", hint, STEER_TIME)
    }

    pub fn hint_queue(&self, hint: &QueueHint) -> Result<Hinted, ClientError> {
        self.post("/v1/hints/queue", hint, STEER_TIME)
    }

    pub fn hint_vram(&self, hint: &VramHint) -> Result<Hinted, ClientError> {
        self.post("/v1/hints/vram", hint, STEER_TIME)
    }

    pub fn start_trace(&self, file: &Path) -> Result<TraceStatus, ClientError> {
        self.post("/v1/trace/start", &TraceStart { file: file.to_owned() }, LOOK_TIME)
    }

    pub fn stop_trace(&self) -> Result<TraceSummary, ClientError> {
        self.read(&self.ask(&Call::post("/v1/trace/stop", Vec::new()), LOOK_TIME)?)
    }

    /// Returns once the mount is gone. `mountpoint` is one that [`Self::status`] reports.
    pub fn unmount(&self, mountpoint: &Path) -> Result<(), ClientError> {
        self.tell("/v1/unmount", &UnmountRequest { mountpoint: mountpoint.to_owned() }, UNMOUNT_TIME)
    }

    /// Has the daemon go on with another program.
    pub fn upgrade(&self, program: &Path) -> Result<(), ClientError> {
        self.tell("/v1/upgrade", &UpgradeRequest { program: program.to_owned() }, UNMOUNT_TIME)
    }

    /// Has a browser served, and says where.
    pub fn dashboard(&self, listen: Option<&str>) -> Result<Dashboard, ClientError> {
        self.post("/v1/dashboard", &DashboardRequest { listen: listen.map(str::to_owned) }, LOOK_TIME)
    }

    /// Removes the socket of a dead daemon, which only its owner can.
    fn remove_socket(&self) {
        let me = rustix::process::geteuid().as_raw();
        if fs::symlink_metadata(&self.socket).is_ok_and(|found| found.uid() == me) {
            let _ = fs::remove_file(&self.socket);
        }
    }

    fn get<T: DeserializeOwned>(&self, path: &str, query: &impl Serialize, time: Duration) -> Result<T, ClientError> {
        self.read(&self.ask(&Call::get(&with_query(path, query)?), time)?)
    }

    fn post<T: DeserializeOwned>(&self, path: &str, body: &impl Serialize, time: Duration) -> Result<T, ClientError> {
        self.read(&self.ask(&Call::post(path, json(body)?), time)?)
    }

    fn tell(&self, path: &str, body: &impl Serialize, time: Duration) -> Result<(), ClientError> {
        self.ask(&Call::post(path, json(body)?), time).map(drop)
    }

    fn read<T: DeserializeOwned>(&self, body: &[u8]) -> Result<T, ClientError> {
        serde_json::from_slice(body).map_err(|error| self.not_understood(&error.to_string()))
    }

    fn ask(&self, call: &Call, time: Duration) -> Result<Vec<u8>, ClientError> {
        for _ in 1..TRIES {
            match self.ask_once(call, time) {
                Err(ClientError::Refused(problem)) if problem.kind == ProblemKind::Overloaded => thread::sleep(PAUSE),
                Err(ClientError::NoAnswer { error, .. }) if is_without_room(&error) => thread::sleep(PAUSE),
                answer => return answer,
            }
        }
        self.ask_once(call, time)
    }

    fn ask_once(&self, call: &Call, time: Duration) -> Result<Vec<u8>, ClientError> {
        let (status, body) = http::ask(&self.socket, call, time).map_err(|error| self.failed(error))?;
        if status < 400 {
            return Ok(body);
        }
        match serde_json::from_slice::<Problem>(&body) {
            Ok(problem) => Err(problem.into()),
            Err(_) => Err(self.not_understood(&format!("status {status}"))),
        }
    }

    fn failed(&self, error: io::Error) -> ClientError {
        match error.kind() {
            io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound => ClientError::Dead(self.socket.clone()),
            io::ErrorKind::PermissionDenied => ClientError::NotPermitted(self.socket.clone()),
            io::ErrorKind::InvalidData => self.not_understood(&error.to_string()),
            _ => ClientError::NoAnswer { socket: self.socket.clone(), error },
        }
    }

    fn not_understood(&self, reason: &str) -> ClientError {
        ClientError::NotUnderstood { socket: self.socket.clone(), reason: reason.to_owned() }
    }
}

/// A daemon without room answers before it has read the request, and hangs up: so seen while the request was sent.
fn is_without_room(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::ResourceBusy | io::ErrorKind::BrokenPipe)
}

/// What happens at a daemon. Ends with it.
pub struct Events {
    stream: Stream,
    client: ControlClient,
}

/// One word of a daemon.
#[derive(Clone, Debug, PartialEq)]
pub enum Told {
    Event(Event),
    /// So many came too fast.
    Lost(u64),
}

impl Iterator for Events {
    type Item = Result<Told, ClientError>;

    fn next(&mut self) -> Option<Self::Item> {
        let (mut name, mut data) = (String::new(), String::new());
        loop {
            let line = match self.stream.line() {
                Ok(Some(line)) => line,
                Ok(None) => return None,
                Err(error) => return Some(Err(self.client.failed(error))),
            };
            match line.split_once(':') {
                Some(("event", value)) => name = value.trim_start().to_owned(),
                Some(("data", value)) => data.push_str(value.trim_start()),
                // The end of one.
                None if line.is_empty() && !data.is_empty() => break,
                // What a newer daemon may say besides, and what keeps the connection alive.
                _ => {}
            }
        }
        let read = |error: serde_json::Error| self.client.not_understood(&error.to_string());
        Some(match name.as_str() {
            "lost" => {
                let lost = serde_json::from_str::<weightfs::control::Lost>(&data);
                lost.map(|lost| Told::Lost(lost.lost)).map_err(read)
            }
            _ => serde_json::from_str(&data).map(Told::Event).map_err(read),
        })
    }
}

fn json(body: &impl Serialize) -> Result<Vec<u8>, ClientError> {
    serde_json::to_vec(body).map_err(|error| ClientError::Unsendable("the request".to_owned(), error.to_string()))
}

fn with_query(path: &str, query: &impl Serialize) -> Result<String, ClientError> {
    let query = serde_urlencoded::to_string(query)
        .map_err(|error| ClientError::Unsendable("the request".to_owned(), error.to_string()))?;
    Ok(if query.is_empty() { path.to_owned() } else { format!("{path}?{query}") })
}
