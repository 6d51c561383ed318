//! Serves the mounts of one daemon: everything is built here, in the order in which it depends on each other, and taken
//! down in the opposite one.

use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

use nix::sys::signal::{SigSet, Signal};
use parking_lot::Mutex;
use weightfs::arena::Arena;
use weightfs::failpoint;
use weightfs::fill::EngineChoice;
use weightfs::journal::{Journal, JournalError, Legacy, Parked, State};
use weightfs::store::{Store, StoreConfig, StoreError};

use crate::api::{ControlServer, StartError};
use crate::control::{Control, Parts, Standing};
use crate::detached::Detached;
use crate::invalidate::Cause;
use crate::ledger::Ledger;
use crate::link::{Link, Report, Setup};
use crate::mounted::{Ended, Mount, Shared, Taken};
use crate::settings::{IoChoice, Settings};
use crate::source::SourceRoot;
use crate::tuning;
use crate::worker::{Handover, Upgrades, YIELDED, kept_generations};

/// How long a worker that is replaced may take to finish what it has in hand.
const LEAVING: Duration = Duration::from_secs(2);

/// How long programs that have files open may take to close them when the daemon is told to end.
const GRACE: Duration = Duration::from_secs(10);

#[derive(Debug, thiserror::Error)]
pub enum DaemonError {
    #[error("the supervisor cannot be understood: {0}")]
    Link(io::Error),
    #[error(transparent)]
    Journal(#[from] JournalError),
    #[error("the kernel does not agree on {}: {error}", .mountpoint.display())]
    Session { mountpoint: PathBuf, error: io::Error },
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Control(#[from] StartError),
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
    let Setup { settings, pages, introductions, facts, restarts, lingering, mut notes } = setup;
    let ended = Arc::new(Ended::default());
    let upgrades = Upgrades::start(Arc::clone(&link), Arc::clone(&ended)).map_err(DaemonError::Link)?;
    let (journal, state) = Journal::open(journal)?;
    failpoint::pass("takeover.journal");
    let State { mounts: mut states, generations } = state;
    let legacy = Legacy::new(journal, Arc::<Link>::clone(&link), restarts);
    let standing = Standing::new(parked.remove(&Parked::Hints), &legacy).map_err(DaemonError::Link)?;
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
        &lingering,
    )?;
    notes.extend(tuning::of_store(&store));
    let mut handles: HashMap<u8, HashMap<u64, OwnedFd>> = HashMap::new();
    for (what, descriptor) in parked {
        if let Parked::Handle { mount, handle } = what {
            handles.entry(mount).or_default().insert(handle, descriptor);
        }
    }
    let mut taken = Vec::new();
    let parts = devices.into_iter().zip(sources).zip(introductions).zip(facts);
    for (mount, (((device, source), introduction), facts)) in (0..).zip(parts) {
        taken.push(Taken {
            device,
            root: Arc::new(SourceRoot::known(source, facts)),
            introduction,
            state: states.remove(&mount).unwrap_or_default(),
            handles: handles.remove(&mount).unwrap_or_default(),
            ledger: Ledger { legacy: Arc::clone(&legacy), mount },
        });
    }
    let served = serve_all(
        &settings,
        taken,
        &store,
        listener,
        (notes, restarts, standing),
        signals,
        (Arc::clone(&link), ended, upgrades),
    );
    if link.is_alone() {
        // What the supervisor would have done. Nobody answers there any more.
        let _ = std::fs::remove_file(&settings.control_socket);
    }
    served
}

/// Serves the mounts; unless another worker is to go on with them, nothing is mounted afterwards.
fn serve_all(
    settings: &Settings,
    taken: Vec<Taken>,
    store: &Arc<Store>,
    listener: UnixListener,
    (mut notes, restarts, standing): (Vec<String>, u64, Standing),
    signals: SigSet,
    (link, ended, upgrades): (Arc<Link>, Arc<Ended>, Upgrades),
) -> Result<(), DaemonError> {
    let legacy = Arc::clone(&taken.first().expect("a daemon has a mount").ledger.legacy);
    let mut mounts = Vec::new();
    for (spec, taken) in settings.mounts.iter().zip(taken) {
        mounts.push(Mount::start(settings, spec, taken, store, &ended)?);
    }
    store.keep_within_budget()?;
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
        legacy,
        standing,
        restarts,
        upgrade: Some(Box::new(move |program| upgrades.ask(program))),
    });
    let control = control.map_err(DaemonError::Thread)?;
    let yielded = serve(&mounts, store, (listener, Arc::clone(&control)), notes, &ended, signals, &link)?;
    if yielded {
        leave(&mounts, store);
    }
    control.stop();
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
    (listener, control): (UnixListener, Arc<Control>),
    notes: Vec<String>,
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
    let all = mounts.iter().map(Mount::shared).collect();
    let _server = ControlServer::start(listener, control)?;
    let candidates = mounts.iter().filter_map(|mount| mount.candidate(ended)).collect();
    let _detached = Detached::start(candidates).map_err(DaemonError::Thread)?;
    let end = Arc::clone(ended);
    std::thread::Builder::new()
        .name("signals".to_owned())
        .spawn(move || end_on_signal(signals, all, &end))
        .map_err(DaemonError::Thread)?;
    if let Err(error) = link.send(&Report::Ready { notes }, &[]) {
        tracing::warn!(%error, "the supervisor does not hear that the mounts answer");
    }
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
