//! Runs the mounts of one daemon: everything is built here, in the order in which it depends on each other, and taken
//! down in the opposite one.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use fuser::{Session, SessionACL};
use nix::sys::signal::{SigSet, Signal};
use parking_lot::Mutex;
use weightfs::control::{ControlError, IoStatus, MountStatus, RamStatus, Reply, Request, Status, WorkerStatus};
use weightfs::fill::EngineChoice;
use weightfs::store::{Store, StoreConfig, StoreError};

use crate::control_server::{Control, ControlServer};
use crate::detached::{Candidate, Detached};
use crate::device::{self, DeviceError, MountFlagsWanted};
use crate::follow::Follow;
use crate::fs::{Fs, FsOptions};
use crate::fuse::{Adapter, Offered};
use crate::invalidate::{Cause, Invalidator};
use crate::places::Place;
use crate::runtime_dir::{self, RuntimeDirError};
use crate::settings::{IoChoice, MountSpec, Settings};
use crate::source::SourceRoot;
use crate::steer::Steering;
use crate::tuning;
use crate::watch::Watcher;

/// Threads that take requests from one mount. None of them waits for storage on a read.
const REQUEST_THREADS: usize = 8;

/// How often a mount that is in use is tried to be ended, before it is left to its users.
const UNMOUNT_TRIES: u32 = 20;

/// How long programs that have files open may take to close them when the daemon is told to end.
const GRACE: Duration = Duration::from_secs(10);

#[derive(Debug, thiserror::Error)]
pub enum DaemonError {
    #[error("cannot open {}: {error}", .path.display())]
    Source { path: PathBuf, error: io::Error },
    #[error(transparent)]
    Device(#[from] DeviceError),
    #[error("the kernel does not agree on {}: {error}", .mountpoint.display())]
    Session { mountpoint: PathBuf, error: io::Error },
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Socket(#[from] RuntimeDirError),
    #[error("cannot start a thread: {0}; raise the limit on processes (ulimit -u)")]
    Thread(io::Error),
}

/// What runs once every mount answers.
#[derive(Debug)]
pub struct Started {
    /// What is missing on this machine and what it costs, a sentence each.
    pub notes: Vec<String>,
}

/// Mounts, calls `ready` once every mount answers, and serves until the last mount is gone.
pub fn run(settings: Settings, ready: impl FnOnce(&Started)) -> Result<(), DaemonError> {
    // Before there is any thread that could get them.
    let mut signals = SigSet::empty();
    signals.add(Signal::SIGTERM);
    signals.add(Signal::SIGINT);
    signals.thread_block().map_err(|error| DaemonError::Thread(error.into()))?;
    // Modes of new files are the caller's business: the kernel has applied the caller's mask.
    rustix::process::umask(rustix::fs::Mode::empty());
    tuning::raise_descriptor_limit();
    let mut notes: Vec<String> = tuning::before_mounting().into_iter().collect();
    // Opened before anything is mounted over them.
    let roots = settings.mounts.iter().map(open_root).collect::<Result<Vec<_>, _>>()?;
    let store = Store::start(StoreConfig {
        budget: settings.ram,
        reserve: Some(settings.reserve),
        high_watermark: settings.high_watermark,
        low_watermark: settings.low_watermark,
        engine: engine_choice(settings.io),
        history: Some(settings.state_dir.join("history.json")),
    })?;
    notes.extend(tuning::of_store(&store));
    let listener = runtime_dir::listen(&settings.control_socket)?;

    let served = mount_all(&settings, roots, &store, listener, notes, signals, ready);
    // It is ours, and nobody answers there any more.
    let _ = std::fs::remove_file(&settings.control_socket);
    served
}

/// Mounts and serves; whatever comes of it, nothing is mounted afterwards.
fn mount_all(
    settings: &Settings,
    roots: Vec<Arc<SourceRoot>>,
    store: &Arc<Store>,
    listener: UnixListener,
    mut notes: Vec<String>,
    signals: SigSet,
    ready: impl FnOnce(&Started),
) -> Result<(), DaemonError> {
    let ended = Arc::new(Ended::default());
    let mut mounts = Vec::new();
    for (spec, root) in settings.mounts.iter().zip(roots) {
        match Mount::start(settings, spec, root, store, &ended) {
            Ok(mount) => mounts.push(mount),
            Err(error) => {
                take_down(mounts, store);
                return Err(error);
            }
        }
    }
    notes.extend(mounts.iter().flat_map(|mount| mount.notes.clone()));
    for note in &notes {
        tracing::warn!("{note}");
    }
    let served = Daemon::new(&mounts, store, notes, &settings.state_dir)
        .and_then(|daemon| serve(&mounts, store, listener, Arc::new(daemon), &ended, signals, ready));
    take_down(mounts, store);
    served
}

/// Everything between the mounts' start and their end.
fn serve(
    mounts: &[Mount],
    store: &Arc<Store>,
    listener: UnixListener,
    daemon: Arc<Daemon>,
    ended: &Arc<Ended>,
    signals: SigSet,
    ready: impl FnOnce(&Started),
) -> Result<(), DaemonError> {
    let senders: Vec<Sender<Cause>> = mounts.iter().map(|mount| mount.invalidator.sender()).collect();
    let senders = Mutex::new(senders);
    store.listen(Box::new(move |generation| {
        for sender in senders.lock().iter() {
            // A mount that has ended hears nothing more.
            let _ = sender.send(Cause::Residency(Arc::clone(generation)));
        }
    }));
    let (all, notes) = (daemon.mounts.clone(), daemon.notes.clone());
    let _server = ControlServer::start(listener, daemon).map_err(DaemonError::Thread)?;
    let candidates = mounts.iter().filter_map(|mount| mount.candidate(ended)).collect();
    let _detached = Detached::start(candidates).map_err(DaemonError::Thread)?;
    let end = Arc::clone(ended);
    std::thread::Builder::new()
        .name("signals".to_owned())
        .spawn(move || end_on_signal(signals, all, &end))
        .map_err(DaemonError::Thread)?;
    ready(&Started { notes });
    ended.wait_for(mounts.len());
    Ok(())
}

/// Waits for SIGTERM or SIGINT, then ends every mount.
fn end_on_signal(signals: SigSet, mounts: Vec<Arc<Shared>>, ended: &Ended) {
    loop {
        match signals.wait() {
            Ok(signal) => tracing::info!(%signal, "ending"),
            Err(error) => return tracing::error!(%error, "signals cannot be waited for"),
        }
        for mount in mounts.iter().filter(|mount| !mount.has_ended()) {
            if !mount.unmount(false) {
                // In use: out of sight now, and gone when its users are, or when they have had their time.
                mount.unmount(true);
            }
        }
        ended.give_up_after(GRACE);
    }
}

fn open_root(spec: &MountSpec) -> Result<Arc<SourceRoot>, DaemonError> {
    SourceRoot::open(&spec.source)
        .map(Arc::new)
        .map_err(|error| DaemonError::Source { path: spec.source.clone(), error: error.into() })
}

fn engine_choice(io: IoChoice) -> EngineChoice {
    match io {
        IoChoice::Auto => EngineChoice::Auto,
        IoChoice::Uring => EngineChoice::Uring,
        IoChoice::Threads => EngineChoice::Threads,
    }
}

/// How many sessions have ended, and until when the rest is waited for.
#[derive(Default)]
struct Ended {
    state: Mutex<(usize, Option<Instant>)>,
    changed: parking_lot::Condvar,
}

impl Ended {
    fn add(&self) {
        self.state.lock().0 += 1;
        self.changed.notify_all();
    }

    fn give_up_after(&self, time: Duration) {
        self.state.lock().1.get_or_insert(Instant::now() + time);
        self.changed.notify_all();
    }

    fn wait_for(&self, mounts: usize) {
        let mut state = self.state.lock();
        while state.0 < mounts {
            let deadline = state.1;
            match deadline {
                None => self.changed.wait(&mut state),
                Some(deadline) => {
                    if self.changed.wait_until(&mut state, deadline).timed_out() {
                        return;
                    }
                }
            }
        }
    }
}

/// One mount, while it runs.
struct Mount {
    shared: Arc<Shared>,
    session: JoinHandle<()>,
    invalidator: Invalidator,
    watcher: Option<(Watcher, JoinHandle<()>)>,
    notes: Vec<String>,
    /// Kept so that the device outlives the threads that serve it.
    _device: OwnedFd,
}

struct Shared {
    spec: MountSpec,
    fs: Arc<Fs>,
    /// Nobody can use it any more.
    ended: AtomicBool,
    /// Its threads have ended.
    served: AtomicBool,
}

impl Mount {
    fn start(
        settings: &Settings,
        spec: &MountSpec,
        root: Arc<SourceRoot>,
        store: &Arc<Store>,
        ended: &Arc<Ended>,
    ) -> Result<Self, DaemonError> {
        let watched = Watcher::new(root.as_fd());
        let (watcher, changes) = watched.map_or((None, None), |(watcher, changes)| (Some(watcher), Some(changes)));
        let follow = settings.follow_symlinks.then(|| {
            let paths = settings.mounts.iter().flat_map(|spec| [spec.source.clone(), spec.mountpoint.clone()]);
            Follow::new(rustix::process::geteuid().as_raw(), paths.collect())
        });
        let options = FsOptions { open_wait: settings.open_wait, control_socket: settings.control_socket.clone() };
        let fs = Fs::new(root, Arc::clone(store), options, follow, watcher.clone()).map_err(DaemonError::Thread)?;
        let fs = Arc::new(fs);
        let wanted = MountFlagsWanted { read_only: settings.read_only, allow_other: settings.allow_other };
        let device = device::mount(&spec.source, &spec.mountpoint, wanted)?;
        let failed = |error| DaemonError::Session { mountpoint: spec.mountpoint.clone(), error };
        let undo = Undo(&spec.mountpoint);
        let offered = Arc::new(Mutex::new(Offered::default()));
        let session = Session::from_fd(
            Adapter::new(Arc::clone(&fs), Arc::clone(&offered)),
            device.try_clone().map_err(failed)?,
            SessionACL::All,
            session_config(),
        )
        .map_err(failed)?;
        let (passthrough, mut notes) =
            tuning::after_mounting(*offered.lock(), settings.passthrough, device.as_fd(), store, &spec.mountpoint);
        fs.set_passthrough(passthrough);
        let invalidator = Invalidator::start(Arc::clone(&fs), session.notifier()).map_err(DaemonError::Thread)?;
        if watcher.is_none() {
            notes.push(format!(
                "{} lies on a file system that does not tell of changes made elsewhere: names and attributes are asked for again every second",
                spec.source.display()
            ));
        }
        let changes = changes.map(|changes| {
            let causes = invalidator.sender();
            std::thread::Builder::new().name("watch".to_owned()).spawn(move || {
                changes.run(|change| {
                    // The mount may have ended: then nobody needs to know.
                    let _ = causes.send(Cause::Changed(change));
                });
            })
        });
        let watcher = watcher.zip(changes.transpose().map_err(DaemonError::Thread)?);
        let shared =
            Arc::new(Shared { spec: spec.clone(), fs, ended: AtomicBool::new(false), served: AtomicBool::new(false) });
        let (ending, counted) = (Arc::clone(&shared), Arc::clone(ended));
        let session = std::thread::Builder::new()
            .name("session".to_owned())
            .spawn(move || {
                if let Err(error) = session.run() {
                    tracing::error!(%error, mountpoint = %ending.spec.mountpoint.display(), "the mount has ended with an error");
                }
                if !ending.ended.swap(true, Ordering::AcqRel) {
                    counted.add();
                }
                ending.served.store(true, Ordering::Release);
            })
            .map_err(DaemonError::Thread)?;
        std::mem::forget(undo);
        tracing::info!(mountpoint = %spec.mountpoint.display(), source = %spec.source.display(), passthrough, "mounted");
        Ok(Self { shared, session, invalidator, watcher, notes, _device: device })
    }

    /// For who notices that the mount is gone although the kernel keeps it. None where the kernel's name for it cannot
    /// be found: then it ends when its last user does.
    fn candidate(&self, ended: &Arc<Ended>) -> Option<Candidate> {
        let device = tuning::device_number(&self.shared.spec.mountpoint).ok()?;
        let (busy, gone, ended) = (self.shared(), self.shared(), Arc::clone(ended));
        Some(Candidate {
            device,
            busy: Box::new(move || busy.has_ended() || busy.fs.open_handles() > 0),
            ended: Box::new(move || {
                if !gone.ended.swap(true, Ordering::AcqRel) {
                    tracing::info!(mountpoint = %gone.spec.mountpoint.display(), "unmounted; programs keep what they have mapped");
                    ended.add();
                }
            }),
        })
    }

    fn shared(&self) -> Arc<Shared> {
        Arc::clone(&self.shared)
    }
}

/// Unmounts again if what comes after mounting fails.
struct Undo<'a>(&'a Path);

impl Drop for Undo<'_> {
    fn drop(&mut self) {
        if let Err(error) = device::unmount(self.0, true) {
            tracing::error!(%error, mountpoint = %self.0.display(), "cannot unmount after a failed start");
        }
    }
}

fn session_config() -> fuser::Config {
    let mut config = fuser::Config::default();
    config.acl = SessionACL::All;
    config.n_threads = Some(REQUEST_THREADS);
    // Requests that were read through a cloned descriptor are lost with the process that cloned it.
    config.clone_fd = false;
    config
}

/// In the order in which they depend on each other: first who asks, last who answers.
fn take_down(mounts: Vec<Mount>, store: &Arc<Store>) {
    for mount in &mounts {
        if !mount.shared.has_ended() {
            mount.shared.unmount(true);
        }
        mount.shared.wait_a_moment();
    }
    if mounts.iter().any(|mount| !mount.shared.served.load(Ordering::Acquire)) {
        // The kernel keeps a mount that is out of sight: its threads end with this process. Files that programs still
        // have open give errors from then on; what they have mapped of resident files stays.
        store.save();
        return;
    }
    for mount in mounts {
        let Mount { session, invalidator, watcher, .. } = mount;
        if session.join().is_err() {
            tracing::error!("a session panicked");
        }
        if let Some((watcher, thread)) = watcher {
            watcher.stop();
            if thread.join().is_err() {
                tracing::error!("the watch thread panicked");
            }
        }
        drop(invalidator);
    }
    store.stop();
}

impl Shared {
    fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    /// Until a session that was unmounted has noticed.
    fn wait_a_moment(&self) {
        for _ in 0..UNMOUNT_TRIES {
            if self.served.load(Ordering::Acquire) {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Ends the mount: politely as long as `lazy` is not set.
    fn unmount(&self, lazy: bool) -> bool {
        match device::unmount(&self.spec.mountpoint, lazy) {
            Ok(()) => true,
            Err(error) => {
                tracing::warn!(%error, mountpoint = %self.spec.mountpoint.display(), "cannot unmount");
                false
            }
        }
    }
}

struct Daemon {
    store: Arc<Store>,
    mounts: Vec<Arc<Shared>>,
    notes: Vec<String>,
    steering: Steering,
}

impl Daemon {
    fn new(mounts: &[Mount], store: &Arc<Store>, notes: Vec<String>, state_dir: &Path) -> Result<Self, DaemonError> {
        let mounts: Vec<Arc<Shared>> = mounts.iter().map(Mount::shared).collect();
        let place =
            |mount: &Arc<Shared>| Place { mountpoint: mount.spec.mountpoint.clone(), fs: Arc::clone(&mount.fs) };
        let places = mounts.iter().map(place).collect();
        let steering = Steering::start(Arc::clone(store), places, state_dir).map_err(DaemonError::Thread)?;
        Ok(Self { store: Arc::clone(store), mounts, notes, steering })
    }
}

impl Control for Daemon {
    fn status(&self) -> Status {
        let (ram, io) = (self.store.ram_report(), self.store.io_report());
        let opens = |count: fn(&Fs) -> u64| self.mounts.iter().map(|mount| count(&mount.fs)).sum();
        Status {
            mounts: self.mounts.iter().filter(|mount| !mount.has_ended()).map(|mount| mount.status()).collect(),
            ram: RamStatus {
                budget_bytes: ram.budget,
                limit_bytes: ram.limit,
                budget_reason: ram.reason.to_string(),
                high_watermark_bytes: ram.high_watermark,
                low_watermark_bytes: ram.low_watermark,
                resident_bytes: ram.resident,
                pinned_bytes: ram.pinned,
                client_held_bytes: ram.client_held,
            },
            io: IoStatus {
                engine: io.engine.to_owned(),
                source_read_bytes: io.source_read,
                served_from_ram_bytes: io.served_from_ram,
                served_from_source_bytes: io.served_from_source,
                passthrough_opens: opens(|fs| fs.counters.passthrough.load(Ordering::Relaxed)),
                stream_opens: opens(|fs| fs.counters.stream.load(Ordering::Relaxed)),
                evicted_bytes: io.evicted,
            },
            worker: WorkerStatus { pid: std::process::id(), restarts: 0 },
            version: env!("CARGO_PKG_VERSION").to_owned(),
            notes: self.notes.clone(),
        }
    }

    fn unmount(&self, mountpoint: &Path) -> Result<(), ControlError> {
        let running = |mount: &&Arc<Shared>| mount.spec.mountpoint == mountpoint && !mount.has_ended();
        let Some(mount) = self.mounts.iter().find(running) else {
            return Err(ControlError::NotMounted(mountpoint.to_owned()));
        };
        for attempt in 1..=UNMOUNT_TRIES {
            match device::unmount(mountpoint, false) {
                Ok(()) => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::ResourceBusy && attempt < UNMOUNT_TRIES => {
                    // Programs that have just ended are let go of in a moment.
                    std::thread::sleep(Duration::from_millis(50));
                }
                Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {
                    return Err(ControlError::Busy(mountpoint.to_owned()));
                }
                Err(error) => return Err(ControlError::Failed(error.to_string())),
            }
        }
        Err(ControlError::Busy(mount.spec.mountpoint.clone()))
    }

    fn carry_out(&self, request: &Request) -> Result<Reply, ControlError> {
        self.steering.carry_out(request)
    }
}

impl Shared {
    fn status(&self) -> MountStatus {
        MountStatus {
            mountpoint: self.spec.mountpoint.clone(),
            source: self.spec.source.clone(),
            passthrough: self.fs.has_passthrough(),
        }
    }
}
