//! What a daemon answers and does when it is asked past the file system: the meaning of the control interface, of which
//! `api` is the form.

mod doctor;
mod explain;
mod files;
mod gpu;
mod hints;
mod history;
pub mod hub;
mod pins;
mod places;
mod prefetch;
pub mod rights;
mod standing;
mod steer;
mod tensors;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use rustix::io::Errno;
use weightfs::control::{
    ControlError, EventKind, FillStatus, History, IoStatus, Job, Mounts, PressureStatus, RamStatus, Status,
    WorkerStatus,
};
use weightfs::fill::Class;
use weightfs::gpu::process::Gds;
use weightfs::gpu::report::GpuReport;
use weightfs::journal::{Legacy, Tally};
use weightfs::pressure::BudgetReason;
use weightfs::store::{Generation, RamReport, Store, StoreEvent};

use crate::device;
use crate::mounted::Shared;
use hints::Owners;
use history::Samples;
use hub::{Hub, event, unix_time};
use pins::Pins;
use places::Places;
use prefetch::Jobs;
use rights::{Peer, Rights};
pub use standing::Standing;

/// How often a mount that is in use is tried to be ended, before it is left to its users.
const UNMOUNT_TRIES: u32 = 20;

/// What a [`Control`] is made of.
pub struct Parts {
    pub store: Arc<Store>,
    pub mounts: Vec<Arc<Shared>>,
    /// What is missing on this machine and what it costs, a sentence each.
    pub notes: Vec<String>,
    /// For what outlives the daemon.
    pub state_dir: PathBuf,
    /// Whose members may steer.
    pub group: Option<u32>,
    /// Whether others than the daemon's user may use the mounts.
    pub open: bool,
    /// Where browsers are served, besides the socket.
    pub listen: Option<SocketAddr>,
    /// How often the process that serves the mounts was replaced.
    pub restarts: u64,
    /// Counts for all workers.
    pub legacy: Arc<Legacy>,
    /// What was hinted to them.
    pub standing: Standing,
    /// Goes on with another program. None where nobody watches over this process.
    pub upgrade: Option<Upgrade>,
}

pub type Upgrade = Box<dyn Fn(&Path) -> Result<(), ControlError> + Send + Sync>;

/// Everything that can be asked of a daemon. Its methods may block, and are called from several threads at once.
pub struct Control {
    store: Arc<Store>,
    mounts: Vec<Arc<Shared>>,
    notes: Vec<String>,
    state_dir: PathBuf,
    listen: Option<SocketAddr>,
    places: Arc<Places>,
    pins: Pins,
    jobs: Jobs,
    gds: Arc<Gds>,
    gpus: Arc<OnceLock<GpuReport>>,
    owners: Owners,
    standing: Standing,
    samples: Samples,
    hub: Arc<Hub>,
    rights: Rights,
    restarts: u64,
    legacy: Arc<Legacy>,
    upgrade: Option<Upgrade>,
    sampler: Sampler,
}

#[derive(Default)]
struct Sampler {
    stopping: Arc<(Mutex<bool>, Condvar)>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Control {
    /// # Errors
    /// Where no thread can be started.
    pub fn start(parts: Parts) -> std::io::Result<Arc<Self>> {
        let Parts { store, mounts, notes, state_dir, group, open, listen, restarts, legacy, standing, upgrade } = parts;
        let places = Arc::new(Places::new(mounts.clone()));
        let hub = Arc::<Hub>::default();
        let pins = Pins::start(Arc::clone(&store), Arc::clone(&places), state_dir.join("pins.json"))?;
        let rights = Rights {
            daemon_uid: rustix::process::geteuid().as_raw(),
            owners: mounts.iter().map(|mount| mount.fs.source().owner()).collect(),
            group,
            open,
        };
        let control = Arc::new(Self {
            store,
            mounts,
            notes,
            state_dir,
            listen,
            places,
            pins,
            jobs: Jobs::default(),
            gds: gpu::gds(),
            gpus: gpu::look(),
            owners: Owners::default(),
            standing,
            samples: Samples::default(),
            hub,
            rights,
            restarts,
            legacy,
            upgrade,
            sampler: Sampler::default(),
        });
        control.watch();
        control.say_again()?;
        let (sampled, stopping) = (Arc::downgrade(&control), Arc::clone(&control.sampler.stopping));
        let thread =
            std::thread::Builder::new().name("sampler".to_owned()).spawn(move || sample(&sampled, &stopping))?;
        *control.sampler.thread.lock() = Some(thread);
        Ok(control)
    }

    /// Has what happens in the store and on the mounts told.
    fn watch(&self) {
        // Weakly: the places lead to the mounts, and these to the store.
        let path_of = |places: Weak<Places>| {
            move |generation: &Generation| places.upgrade().map(|places| places.path_of(generation)).unwrap_or_default()
        };
        let (hub, path) = (Arc::clone(&self.hub), path_of(Arc::downgrade(&self.places)));
        self.store.watch(Box::new(move |happened| {
            hub.tell(|| match &happened {
                StoreEvent::Filled(generation) => {
                    event(EventKind::Filled, Some(&path(generation)), Some(generation.size), None)
                }
                StoreEvent::Evicted { generation, bytes, reason } => {
                    let reason = reason.map_or_else(|| "asked for".to_owned(), |reason| reason.to_string());
                    event(EventKind::Evicted, Some(&path(generation)), Some(*bytes), Some(reason))
                }
                StoreEvent::Budget { bytes, reason } => {
                    event(EventKind::Budget, None, Some(*bytes), Some(reason.to_string()))
                }
            });
        }));
        for mount in &self.mounts {
            let (hub, path) = (Arc::clone(&self.hub), path_of(Arc::downgrade(&self.places)));
            mount.fs.watch_opens(Box::new(move |generation, how| {
                hub.tell(|| {
                    event(EventKind::Opened, Some(&path(generation)), Some(generation.size), Some(how.to_owned()))
                });
            }));
        }
    }

    /// Refuses those who could not read the file themselves.
    fn must_read(&self, peer: &Peer, path: &Path) -> Result<(), ControlError> {
        let Some(reader) = self.rights.reader(peer) else { return Ok(()) };
        match self.places.may_read(path, &reader)? {
            true => Ok(()),
            false => Err(ControlError::NotPermitted(format!("uid {} may not read {}", reader.uid, path.display()))),
        }
    }

    pub fn rights(&self) -> &Rights {
        &self.rights
    }

    pub fn hub(&self) -> &Hub {
        &self.hub
    }

    /// The number of the mount that a path lies in.
    pub fn mount_of(&self, path: &Path) -> Result<usize, ControlError> {
        self.places.number(path)
    }

    /// How often the process that serves was replaced.
    pub fn restarts(&self) -> u64 {
        self.restarts
    }

    /// Where browsers are to be served from the start.
    pub fn listen(&self) -> Option<SocketAddr> {
        self.listen
    }

    /// For what outlives the daemon.
    pub fn state_dir(&self) -> &Path {
        &self.state_dir
    }

    pub fn mounts(&self) -> Mounts {
        let mounts = self.mounts.iter().filter(|mount| !mount.has_ended()).map(|mount| mount.status()).collect();
        Mounts { mounts }
    }

    pub fn status(&self) -> Status {
        let (ram, io) = (self.store.ram_report(), self.store.io_report());
        Status {
            mounts: self.mounts().mounts,
            ram: RamStatus {
                budget_bytes: ram.budget,
                limit_bytes: ram.limit,
                budget_reason: self.budget_reason(&ram),
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
            pressure: self.pressure(),
            fills: self.fills(),
            hints: self.hint_status(),
            policy: self.store.policy(),
            trace: self.trace(),
            uptime_seconds: self.store.uptime().as_secs_f64(),
            gpu: self.gpus.get().cloned(),
        }
    }

    fn budget_reason(&self, ram: &RamReport) -> String {
        match self.store.limit() {
            Some((limit, _)) if ram.reason == BudgetReason::Ram && limit < ram.limit => {
                "as much as was set while it runs".to_owned()
            }
            _ => ram.reason.to_string(),
        }
    }

    fn pressure(&self) -> PressureStatus {
        let reading = self.store.machine();
        PressureStatus {
            psi_some_avg10: reading.as_ref().and_then(|reading| reading.psi).map(|psi| psi.some),
            mem_available_bytes: reading.as_ref().map_or(0, |reading| reading.available),
            reserve_bytes: self.store.reserve(),
            cgroup_limit_bytes: reading.and_then(|reading| reading.group).map(|group| group.limit),
        }
    }

    fn fills(&self) -> Vec<FillStatus> {
        let class = |class| match class {
            Class::Demand => "demand",
            Class::OpenWait => "open_wait",
            Class::Prefetch => "prefetch",
        };
        let fills = self.store.fills().into_iter().map(|fill| FillStatus {
            path: self.places.path_of(&fill.generation),
            bytes_done: fill.resident,
            bytes_total: fill.resident + fill.filling,
            class: class(fill.class).to_owned(),
            bytes_per_second: fill.speed.unwrap_or(0),
        });
        fills.collect()
    }

    pub fn history(&self) -> History {
        self.samples.all()
    }

    pub fn job(&self, id: &str) -> Result<Job, ControlError> {
        self.jobs.get(id)
    }

    pub fn jobs_running(&self) -> usize {
        self.jobs.running()
    }

    /// Ends the mount at `mountpoint`, exactly as it was reported, and returns once it is gone.
    pub fn unmount(&self, mountpoint: &Path) -> Result<(), ControlError> {
        let running = |mount: &&Arc<Shared>| mount.spec.mountpoint == mountpoint && !mount.has_ended();
        if self.mounts.iter().find(running).is_none() {
            return Err(ControlError::NotMounted(mountpoint.to_owned()));
        }
        for _ in 0..UNMOUNT_TRIES {
            match device::unmount(mountpoint, false) {
                Ok(()) => return Ok(()),
                // Programs that have just ended are let go of in a moment.
                Err(error) if Errno::from_io_error(&error) == Some(Errno::BUSY) => {
                    std::thread::sleep(Duration::from_millis(50));
                }
                Err(error) => return Err(ControlError::Failed(error.to_string())),
            }
        }
        Err(ControlError::Busy(mountpoint.to_owned()))
    }

    pub fn upgrade(&self, program: &Path) -> Result<(), ControlError> {
        match &self.upgrade {
            Some(upgrade) => upgrade(program),
            None => Err(ControlError::Failed(
                "nobody watches over this daemon, so that it cannot be replaced while it serves; unmount, and mount again"
                    .to_owned(),
            )),
        }
    }

    /// Ends what goes on by itself.
    pub fn stop(&self) {
        *self.sampler.stopping.0.lock() = true;
        self.sampler.stopping.1.notify_one();
        if let Some(thread) = self.sampler.thread.lock().take()
            && thread.thread().id() != std::thread::current().id()
            && thread.join().is_err()
        {
            tracing::error!("the thread that takes samples panicked");
        }
        self.jobs.stop();
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        self.stop();
    }
}

fn sample(control: &Weak<Control>, (stopping, changed): &(Mutex<bool>, Condvar)) {
    loop {
        {
            let Some(control) = control.upgrade() else { return };
            let passthrough = control.legacy.sum(Tally::PassthroughBytes);
            control.samples.add(unix_time(), &control.status(), passthrough);
            control.jobs.look().iter().for_each(|job| control.tell_job(job));
        }
        let mut stopping = stopping.lock();
        if !*stopping {
            changed.wait_for(&mut stopping, history::INTERVAL);
        }
        if *stopping {
            return;
        }
    }
}
