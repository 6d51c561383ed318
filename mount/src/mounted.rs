//! One mount while it runs: its device, its session, and the threads that go with it.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use fuser::{Session, SessionACL};
use parking_lot::Mutex;
use weightfs::control::MountStatus;
use weightfs::store::Store;

use crate::aside::REQUEST_THREADS;
use crate::daemon::DaemonError;
use crate::detached::Candidate;
use crate::device::{self, MountFlagsWanted};
use crate::follow::Follow;
use crate::fs::{Fs, FsOptions};
use crate::fuse::{Adapter, Offered};
use crate::invalidate::{Cause, Invalidator};
use crate::settings::{MountSpec, Settings};
use crate::source::SourceRoot;
use crate::tuning;
use crate::watch::Watcher;

/// How long a session that was unmounted may take to notice, in steps of ten milliseconds.
const NOTICE: u32 = 20;

/// How many sessions have ended, and until when the rest is waited for.
#[derive(Default)]
pub struct Ended {
    state: Mutex<(usize, Option<Instant>)>,
    changed: parking_lot::Condvar,
}

impl Ended {
    pub fn add(&self) {
        self.state.lock().0 += 1;
        self.changed.notify_all();
    }

    pub fn give_up_after(&self, time: Duration) {
        self.state.lock().1.get_or_insert(Instant::now() + time);
        self.changed.notify_all();
    }

    pub fn wait_for(&self, mounts: usize) {
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
pub struct Mount {
    pub shared: Arc<Shared>,
    pub session: JoinHandle<()>,
    pub invalidator: Invalidator,
    pub watcher: Option<(Watcher, JoinHandle<()>)>,
    pub notes: Vec<String>,
    /// Kept so that the device outlives the threads that serve it.
    _device: OwnedFd,
}

pub struct Shared {
    pub spec: MountSpec,
    pub fs: Arc<Fs>,
    /// Nobody can use it any more.
    pub ended: AtomicBool,
    /// Its threads have ended.
    pub served: AtomicBool,
}

impl Mount {
    pub fn start(
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
    pub fn candidate(&self, ended: &Arc<Ended>) -> Option<Candidate> {
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

    pub fn shared(&self) -> Arc<Shared> {
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

impl Shared {
    pub fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    /// Until a session that was unmounted has noticed.
    pub fn wait_a_moment(&self) {
        for _ in 0..NOTICE {
            if self.served.load(Ordering::Acquire) {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Ends the mount: politely as long as `lazy` is not set.
    pub fn unmount(&self, lazy: bool) -> bool {
        match device::unmount(&self.spec.mountpoint, lazy) {
            Ok(()) => true,
            Err(error) => {
                tracing::warn!(%error, mountpoint = %self.spec.mountpoint.display(), "cannot unmount");
                false
            }
        }
    }

    pub fn status(&self) -> MountStatus {
        MountStatus {
            mountpoint: self.spec.mountpoint.clone(),
            source: self.spec.source.clone(),
            passthrough: self.fs.has_passthrough(),
        }
    }
}
