//! Runs the mounts of one daemon: everything is built here, in the order in which it depends on each other, and taken
//! down in the opposite one.

use std::io;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::Sender;
use std::time::Duration;

use nix::sys::signal::{SigSet, Signal};
use parking_lot::Mutex;
use weightfs::fill::EngineChoice;
use weightfs::store::{Store, StoreConfig, StoreError};

use crate::api::{ControlServer, StartError};
use crate::control::{Control, Parts};
use crate::detached::Detached;
use crate::device::DeviceError;
use crate::invalidate::Cause;
use crate::mounted::{Ended, Mount, Shared};
use crate::runtime_dir::{self, RuntimeDirError};
use crate::settings::{IoChoice, MountSpec, Settings};
use crate::source::SourceRoot;
use crate::tuning;

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
    #[error(transparent)]
    Control(#[from] StartError),
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
    let control = Control::start(Parts {
        store: Arc::clone(store),
        mounts: mounts.iter().map(Mount::shared).collect(),
        notes: notes.clone(),
        state_dir: settings.state_dir.clone(),
        group: settings.control_group,
        open: settings.allow_other,
        listen: settings.listen,
        restarts: 0,
        upgrade: None,
    });
    let served = control.map_err(DaemonError::Thread).and_then(|control| {
        let served = serve(&mounts, store, listener, (Arc::clone(&control), notes), &ended, signals, ready);
        control.stop();
        served
    });
    take_down(mounts, store);
    served
}

/// Everything between the mounts' start and their end.
fn serve(
    mounts: &[Mount],
    store: &Arc<Store>,
    listener: UnixListener,
    (control, notes): (Arc<Control>, Vec<String>),
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
    let all = mounts.iter().map(Mount::shared).collect();
    let _server = ControlServer::start(listener, control)?;
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
