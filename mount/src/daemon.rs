//! Serves the mounts of one daemon: everything is built here, in the order in which it depends on each other, and taken
//! down in the opposite one.

use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

use nix::sys::signal::{SigSet, Signal};
use parking_lot::Mutex;
use weightfs::arena::Arena;
use weightfs::control::{ControlError, IoStatus, RamStatus, Reply, Request, Status, WorkerStatus};
use weightfs::failpoint;
use weightfs::fill::EngineChoice;
use weightfs::journal::{Journal, JournalError, Legacy, Parked, State, Tally};
use weightfs::store::{Store, StoreConfig, StoreError};

use crate::control_server::{Control, ControlServer};
use crate::detached::Detached;
use crate::device;
use crate::invalidate::Cause;
use crate::ledger::Ledger;
use crate::link::{Link, Report, Setup};
use crate::mounted::{Ended, Mount, Shared, Taken};
use crate::places::Place;
use crate::settings::{IoChoice, Settings};
use crate::source::SourceRoot;
use crate::steer::Steering;
use crate::tuning;
use crate::worker::{Handover, Upgrades, YIELDED, kept_generations};

/// How long a worker that is replaced may take to finish what it has in hand.
const LEAVING: Duration = Duration::from_secs(2);

/// How often a mount that is in use is tried to be ended, before it is left to its users.
const UNMOUNT_TRIES: u32 = 20;

/// How long programs that have files open may take to close them when the daemon is told to end.
const GRACE: Duration = Duration::from_secs(10);

#[derive(Debug, thiserror::Error)]
pub enum DaemonError {
    #[error("the supervisor cannot be understood: {0}")]
    Link(io::Error),
    #[error("cannot open {}: {error}", .path.display())]
    Source { path: PathBuf, error: io::Error },
    #[error(transparent)]
    Journal(#[from] JournalError),
    #[error("the kernel does not agree on {}: {error}", .mountpoint.display())]
    Session { mountpoint: PathBuf, error: io::Error },
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("cannot start a thread: {0}; raise the limit on processes (ulimit -u)")]
    Thread(io::Error),
}

/// Serves what was handed over until the last mount is gone.
pub fn run(handover: Handover) -> Result<(), DaemonError> {
    // Before there is any thread that could get them.
    let mut signals = SigSet::empty();
    signals.add(Signal::SIGTERM);
    signals.add(Signal::SIGINT);
    signals.thread_block().map_err(|error| DaemonError::Thread(error.into()))?;
    // Modes of new files are the caller's business: the kernel has applied the caller's mask.
    rustix::process::umask(rustix::fs::Mode::empty());
    tuning::raise_descriptor_limit();
    let Handover { setup, devices, sources, arena, listener, journal, mut parked, link } = handover;
    let Setup { settings, pages, introductions, restarts, mut notes } = setup;
    let ended = Arc::new(Ended::default());
    let upgrades = Upgrades::start(Arc::clone(&link), Arc::clone(&ended)).map_err(DaemonError::Link)?;
    let (journal, state) = Journal::open(journal)?;
    failpoint::pass("takeover.journal");
    let State { mounts: mut states, generations } = state;
    let legacy = Legacy::new(journal, Arc::<Link>::clone(&link), restarts);
    let kept = kept_generations(generations, &mut parked, &legacy);
    let store = Store::start_in(
        StoreConfig {
            budget: settings.ram,
            reserve: Some(settings.reserve),
            high_watermark: settings.high_watermark,
            low_watermark: settings.low_watermark,
            engine: engine_choice(settings.io),
            history: Some(settings.state_dir.join("history.json")),
        },
        Arena::within(arena, pages),
        Arc::clone(&legacy),
        kept,
    )?;
    notes.extend(tuning::of_store(&store));
    let mut handles: HashMap<u8, HashMap<u64, OwnedFd>> = HashMap::new();
    for (what, descriptor) in parked {
        if let Parked::Handle { mount, handle } = what {
            handles.entry(mount).or_default().insert(handle, descriptor);
        }
    }
    let mut taken = Vec::new();
    let parts = devices.into_iter().zip(sources).zip(introductions).zip(&settings.mounts);
    for (mount, (((device, source), introduction), spec)) in (0..).zip(parts) {
        let failed = |error: rustix::io::Errno| DaemonError::Source { path: spec.source.clone(), error: error.into() };
        taken.push(Taken {
            device,
            root: Arc::new(SourceRoot::of(source).map_err(failed)?),
            introduction,
            state: states.remove(&mount).unwrap_or_default(),
            handles: handles.remove(&mount).unwrap_or_default(),
            ledger: Ledger { legacy: Arc::clone(&legacy), mount },
        });
    }
    serve_all(&settings, taken, &store, listener, (notes, restarts), signals, (link, ended, upgrades))
}

/// Serves the mounts; unless another worker is to go on with them, nothing is mounted afterwards.
fn serve_all(
    settings: &Settings,
    taken: Vec<Taken>,
    store: &Arc<Store>,
    listener: UnixListener,
    (mut notes, restarts): (Vec<String>, u64),
    signals: SigSet,
    (link, ended, upgrades): (Arc<Link>, Arc<Ended>, Upgrades),
) -> Result<(), DaemonError> {
    let legacy = Arc::clone(&taken.first().expect("a daemon has a mount").ledger.legacy);
    let mut mounts = Vec::new();
    for (spec, taken) in settings.mounts.iter().zip(taken) {
        mounts.push(Mount::start(settings, spec, taken, store, &ended)?);
    }
    notes.extend(mounts.iter().flat_map(|mount| mount.notes.clone()));
    for note in &notes {
        tracing::warn!("{note}");
    }
    let daemon = Daemon::new(&mounts, store, notes, &settings.state_dir, (restarts, upgrades), legacy)?;
    let yielded = serve(&mounts, store, listener, Arc::new(daemon), &ended, signals, &link)?;
    if yielded {
        leave(&mounts, store);
    }
    take_down(mounts, store);
    Ok(())
}

/// Ends this process and nothing else: what is in hand is finished, as far as that does not take long, and the rest is
/// the next worker's.
fn leave(mounts: &[Mount], store: &Arc<Store>) -> ! {
    let (done, finished) = channel();
    let (all, store) = (mounts.iter().map(Mount::shared).collect::<Vec<_>>(), Arc::clone(store));
    let finishing = std::thread::Builder::new().name("leaving".to_owned()).spawn(move || {
        all.iter().for_each(|mount| mount.fs.finish_writes());
        store.finish_trace();
        store.save();
        // Nobody may be waiting any more.
        let _ = done.send(());
    });
    if finishing.is_err() || finished.recv_timeout(LEAVING).is_err() {
        tracing::warn!("something in hand takes long and is left to the next worker");
    }
    tracing::info!("another worker goes on");
    // Nothing is dropped: what is noted stays noted.
    std::process::exit(YIELDED.into())
}

/// Everything between the mounts' start and their end.
fn serve(
    mounts: &[Mount],
    store: &Arc<Store>,
    listener: UnixListener,
    daemon: Arc<Daemon>,
    ended: &Arc<Ended>,
    signals: SigSet,
    link: &Link,
) -> Result<bool, DaemonError> {
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
    link.send(&Report::Ready { notes }, &[]).map_err(DaemonError::Link)?;
    Ok(ended.wait_for(mounts.len()))
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

struct Daemon {
    store: Arc<Store>,
    mounts: Vec<Arc<Shared>>,
    notes: Vec<String>,
    steering: Steering,
    restarts: u64,
    upgrades: Upgrades,
    legacy: Arc<Legacy>,
}

impl Daemon {
    fn new(
        mounts: &[Mount],
        store: &Arc<Store>,
        notes: Vec<String>,
        state_dir: &Path,
        (restarts, upgrades): (u64, Upgrades),
        legacy: Arc<Legacy>,
    ) -> Result<Self, DaemonError> {
        let mounts: Vec<Arc<Shared>> = mounts.iter().map(Mount::shared).collect();
        let place =
            |mount: &Arc<Shared>| Place { mountpoint: mount.spec.mountpoint.clone(), fs: Arc::clone(&mount.fs) };
        let places = mounts.iter().map(place).collect();
        let steering = Steering::start(Arc::clone(store), places, state_dir).map_err(DaemonError::Thread)?;
        Ok(Self { store: Arc::clone(store), mounts, notes, steering, restarts, upgrades, legacy })
    }
}

impl Control for Daemon {
    fn status(&self) -> Status {
        let (ram, io) = (self.store.ram_report(), self.store.io_report());
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
                passthrough_opens: self.legacy.sum(Tally::PassthroughOpens),
                stream_opens: self.legacy.sum(Tally::StreamOpens),
                evicted_bytes: io.evicted,
            },
            worker: WorkerStatus { pid: std::process::id(), restarts: self.restarts },
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
        match request {
            Request::Upgrade { program } => self.upgrades.ask(program).map(|()| Reply::Done),
            other => self.steering.carry_out(other),
        }
    }
}
