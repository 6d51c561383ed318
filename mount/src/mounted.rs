//! One mount while it runs: its device, its session, and the threads that go with it.

use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use fuser::Session;
use parking_lot::Mutex;
use weightfs::control::MountStatus;
use weightfs::failpoint;
use weightfs::journal::{MountState, Record};
use weightfs::store::Store;

use crate::backing::Backings;
use crate::daemon::DaemonError;
use crate::detached::Candidate;
use crate::device;
use crate::follow::Follow;
use crate::fs::{Fs, FsOptions};
use crate::fuse::{Adapter, Offered};
use crate::invalidate::{Cause, Invalidator};
use crate::ledger::Ledger;
use crate::mount_table::{Mount as Mounted, MountTable};
use crate::settings::{MountSpec, Settings};
use crate::source::{SourceRoot, proc_path};
use crate::tuning;
use crate::watch::{Change, Watcher};
use crate::worker::session;

/// How long a session that was unmounted may take to notice, in steps of ten milliseconds.
const NOTICE: u32 = 20;

/// How many sessions have ended, and until when the rest is waited for.
#[derive(Default)]
pub struct Ended {
    state: Mutex<Progress>,
    changed: parking_lot::Condvar,
}

#[derive(Default)]
struct Progress {
    ended: usize,
    deadline: Option<Instant>,
    yielding: bool,
}

impl Ended {
    pub fn add(&self) {
        self.state.lock().ended += 1;
        self.changed.notify_all();
    }

    pub fn give_up_after(&self, time: Duration) {
        self.state.lock().deadline.get_or_insert(Instant::now() + time);
        self.changed.notify_all();
    }

    /// Another worker takes over.
    pub fn yield_mounts(&self) {
        self.state.lock().yielding = true;
        self.changed.notify_all();
    }

    /// Waits until `mounts` have ended, or until they are to be left to another worker: then true.
    pub fn wait_for(&self, mounts: usize) -> bool {
        let mut state = self.state.lock();
        while state.ended < mounts && !state.yielding {
            match state.deadline {
                None => self.changed.wait(&mut state),
                Some(deadline) => {
                    if self.changed.wait_until(&mut state, deadline).timed_out() {
                        return false;
                    }
                }
            }
        }
        state.yielding && state.ended < mounts
    }
}

/// What a mount is made of: what the supervisor holds of it, and what an earlier worker has left.
pub struct Taken {
    pub device: OwnedFd,
    pub root: Arc<SourceRoot>,
    pub introduction: Vec<u8>,
    pub state: MountState,
    /// Descriptors of open files, by handle.
    pub handles: HashMap<u64, OwnedFd>,
    pub ledger: Ledger,
}

/// One mount, while it runs.
pub struct Mount {
    pub shared: Arc<Shared>,
    pub session: JoinHandle<()>,
    pub invalidator: Invalidator,
    pub watcher: Option<(Watcher, JoinHandle<()>)>,
    pub notes: Vec<String>,
    /// The source, and what was mounted below it when this began.
    below: (PathBuf, Vec<Mounted>),
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
        taken: Taken,
        store: &Arc<Store>,
        ended: &Arc<Ended>,
    ) -> Result<Self, DaemonError> {
        let Taken { device, root, introduction, mut state, handles, ledger } = taken;
        // As the kernel has it, which is not asked of the source.
        let source = std::fs::read_link(proc_path(root.as_fd())).unwrap_or_else(|_| spec.source.clone());
        // Before anybody is answered.
        let below = MountTable::read().unwrap_or_default().below(&source);
        let watched = Watcher::new(&root);
        let (watcher, changes) = watched.map_or((None, None), |(watcher, changes)| (Some(watcher), Some(changes)));
        let follow = settings.follow_symlinks.then(|| {
            let paths = settings.mounts.iter().flat_map(|spec| [spec.source.clone(), spec.mountpoint.clone()]);
            Follow::new(rustix::process::geteuid().as_raw(), paths.collect())
        });
        let options = FsOptions { open_wait: settings.open_wait, control_socket: settings.control_socket.clone() };
        let fs = Fs::new(root, Arc::clone(store), options, follow, watcher.clone(), ledger.clone())
            .map_err(DaemonError::Thread)?;
        let fs = Arc::new(fs);
        let failed = |error| DaemonError::Session { mountpoint: spec.mountpoint.clone(), error };
        let backings = Arc::new(Backings::new(device.try_clone().map_err(failed)?, ledger.clone()));
        let (known, agreed) = state.mounted.take().unzip();
        fs.set_passthrough(known == Some(true) && settings.passthrough);
        fs.restore(state, handles, &backings);
        let offered = Arc::new(Mutex::new(Offered::default()));
        let adapter = Adapter::new(Arc::clone(&fs), Arc::clone(&offered), backings);
        let session::Begun { session, answer, rehearsal } =
            session::begin(adapter, &introduction, agreed.as_deref()).map_err(failed)?;
        let notifier = session.notifier();
        let shared = Arc::new(Shared {
            spec: spec.clone(),
            fs: Arc::clone(&fs),
            ended: AtomicBool::new(false),
            served: AtomicBool::new(false),
        });
        let session = run(session, Arc::clone(&shared), Arc::clone(ended)).map_err(DaemonError::Thread)?;
        let can_be_taken_over = session::can_be_taken_over(&introduction);
        rehearsal.perform(&device, &answer, can_be_taken_over).map_err(failed)?;
        failpoint::pass("takeover.session");
        let (passthrough, mut notes) = tuning::after_mounting(
            *offered.lock(),
            settings.passthrough,
            device.as_fd(),
            store,
            &spec.mountpoint,
            known,
        );
        fs.set_passthrough(passthrough);
        ledger.note(&Record::Mounted { mount: ledger.mount, passthrough, reply: &answer });
        if !can_be_taken_over {
            notes.push(
                "the kernel cannot hand a mount to another process (Linux 6.9): a crash of weightfs would end it"
                    .to_owned(),
            );
        }
        failpoint::pass("takeover.resend");
        let writing = device.try_clone().map_err(DaemonError::Thread)?;
        let invalidator = Invalidator::start(Arc::clone(&fs), notifier, writing).map_err(DaemonError::Thread)?;
        let causes = invalidator.sender();
        fs.watch_writes(Box::new(move |node| {
            // The mount may have ended: then nobody keeps anything.
            let _ = causes.send(Cause::Written(node));
        }));
        if agreed.is_some() {
            // What changed meanwhile was told to nobody. Its own end of the channel is there.
            let _ = invalidator.sender().send(Cause::Changed(Change::Everything));
        }
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
        tracing::info!(mountpoint = %spec.mountpoint.display(), source = %spec.source.display(), passthrough, "mounted");
        Ok(Self { shared, session, invalidator, watcher, notes, below: (source, below), _device: device })
    }

    /// For who notices that the mount is gone although the kernel keeps it. None where the kernel's name for it cannot
    /// be found: then it ends when its last user does.
    pub fn candidate(&self, ended: &Arc<Ended>) -> Option<Candidate> {
        let device = tuning::device_number(&self.shared.spec.mountpoint).ok()?;
        let (busy, gone, ended) = (self.shared(), self.shared(), Arc::clone(ended));
        let ((source, mut before), causes) = (self.below.clone(), self.invalidator.sender());
        Some(Candidate {
            device,
            busy: Box::new(move || busy.has_ended() || busy.fs.open_handles() > 0),
            seen: Box::new(move |table| {
                let now = table.below(&source);
                if now != before {
                    // No directory has told of it. Nobody hears it where the mount has ended.
                    let _ = causes.send(Cause::Changed(Change::Everything));
                    before = now;
                }
            }),
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

/// Serves a session on a thread of its own.
fn run(session: Session<Adapter>, shared: Arc<Shared>, ended: Arc<Ended>) -> std::io::Result<JoinHandle<()>> {
    std::thread::Builder::new().name("session".to_owned()).spawn(move || {
        if let Err(error) = session.run() {
            tracing::error!(%error, mountpoint = %shared.spec.mountpoint.display(), "the mount has ended with an error");
        }
        if !shared.ended.swap(true, Ordering::AcqRel) {
            ended.add();
        }
        shared.served.store(true, Ordering::Release);
    })
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
