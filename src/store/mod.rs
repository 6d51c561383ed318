//! The store: model files by identity, their bytes out of the arena or else from their source.
//!
//! It composes what the other modules know. A read looks at the extents ([`extents`]) and is answered at once where
//! they are present ([`read`]); else they are filled ([`filling`]), into the arena as far as the residency policy
//! admits them ([`keeper`]) and into slots that are soon used again where not ([`bypass`]). Nobody who asks waits on the
//! thread that asks: answers are closures, called when the bytes are there.

mod ahead;
mod background;
mod budget;
mod bypass;
mod cost;
mod error;
mod extents;
mod filling;
mod generation;
mod hints;
mod keeper;
mod memory;
mod opening;
mod read;
mod recorder;
mod report;
mod steer;
mod touched;
mod traced;
mod waiters;

#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use moka::sync::Cache;
use parking_lot::Mutex;

pub use background::Background;
pub use error::{ReadError, StoreError};
pub use generation::{Generation, Held, identity_of};
pub use hints::{BelowPins, Hint, HintKind, LONGEST_QUEUE, Part, QueueEntry};
pub use opening::{ASSUMED_SPEED, Opened};
pub use recorder::RecordError;
pub use report::{IoReport, RamReport};
pub use steer::Evicted;

use crate::arena::{Arena, Pages};
use crate::fill::{Engine, EngineChoice, EngineError, Storage};
use crate::format::TensorMap;
use crate::ids::{FileId, GenerationId, SourceIdentity};
use crate::residency::{PolicyKind, RefetchCost};
use crate::units::EXTENT_SIZE;
use budget::Follower;
use bypass::Bypass;
use hints::Hints;
use keeper::Keeper;
use memory::Memory;
use report::Counters;
use traced::Traced;

/// Files smaller than this are left to the kernel.
pub const SMALLEST_MODEL: u64 = 1 << 20;

/// Content that changed less than this ago may still change without its times telling: it is served, not kept.
pub const SETTLE: Duration = Duration::from_secs(2);

/// What a store may use.
#[derive(Clone, Debug)]
pub struct StoreConfig {
    /// The most that the arena may ever hold, in bytes.
    pub budget: u64,
    /// Bytes to leave free for everyone else, for which the budget follows the machine. None: it stays as it is.
    pub reserve: Option<u64>,
    /// Percent of the budget.
    pub high_watermark: u8,
    /// Percent of the budget.
    pub low_watermark: u8,
    pub engine: EngineChoice,
    /// Where what is learned of opens is kept, if it is to outlive the store.
    pub history: Option<PathBuf>,
}

/// Told when a generation became complete, or stopped being so.
pub type Listener = Box<dyn Fn(&Arc<Generation>) + Send + Sync>;

type SourceFileKey = (u64, u64);

pub struct Store {
    config: StoreConfig,
    /// Bytes that the arena may hold now.
    budget: AtomicU64,
    follower: Follower,
    arena: Arena,
    /// By the device that a source lies on, and whether that was seen to be what the engine takes it for.
    engines: Mutex<HashMap<u64, (Engine, bool)>>,
    /// Held while an engine is started.
    starting: Mutex<()>,
    engine_choice: EngineChoice,
    bypass: Arc<Bypass>,
    background: Background,
    keeper: Keeper,
    residency: Mutex<Traced>,
    hints: Hints,
    memory: Memory,
    /// The current generation of each source file that is open or has something in the arena.
    generations: Mutex<HashMap<SourceFileKey, Arc<Generation>>>,
    /// Content of which nothing is kept, and the name under which the policy knows it.
    resting: Mutex<HashMap<SourceFileKey, (SourceIdentity, FileId)>>,
    /// By device, what reading from it is taken to cost.
    costs: Mutex<HashMap<u64, RefetchCost>>,
    headers: Cache<SourceIdentity, Arc<TensorMap>>,
    next_generation: AtomicU64,
    /// Generations that are no longer current, as long as clients hold something of them.
    ended: Mutex<Vec<Arc<Generation>>>,
    /// Extents that are present or being filled.
    occupied: Arc<AtomicU64>,
    counters: Counters,
    /// Milliseconds, when what was learned was written down last.
    saved: AtomicU64,
    /// Somebody is at [`Store::sweep`].
    sweeping: AtomicBool,
    started: Instant,
    listener: OnceLock<Listener>,
}

impl Store {
    /// # Errors
    /// Where there is no memory for an arena, or the engine that was asked for cannot run here.
    pub fn start(config: StoreConfig) -> Result<Arc<Self>, StoreError> {
        let engine_choice = usable(config.engine)?;
        let slots = (config.budget / EXTENT_SIZE / 64).clamp(4, 64);
        // What the budget counts, what is read past it, and a little for what the kernel rounds up.
        let arena = Arena::create(config.budget + config.budget / 16 + (slots + 16) * EXTENT_SIZE)?;
        let memory = arena.file(GenerationId(0), slots * EXTENT_SIZE)?;
        let reserve = config.reserve;
        let store = Arc::new(Self {
            bypass: Arc::new(Bypass::new(memory, slots as usize)),
            engine_choice,
            engines: Mutex::default(),
            starting: Mutex::default(),
            background: Background::start("source", 4).map_err(StoreError::Thread)?,
            keeper: Keeper::default(),
            residency: Mutex::new(Traced::new(PolicyKind::Auto)),
            hints: Hints::default(),
            budget: AtomicU64::new(config.budget),
            follower: Follower::default(),
            memory: Memory::open(config.history.clone()),
            generations: Mutex::default(),
            resting: Mutex::default(),
            costs: Mutex::default(),
            headers: Cache::builder()
                .weigher(|_, map: &Arc<TensorMap>| map.heap_bytes().try_into().unwrap_or(u32::MAX))
                .max_capacity(16 << 20)
                .build(),
            next_generation: AtomicU64::new(1),
            ended: Mutex::default(),
            occupied: Arc::default(),
            counters: Counters::default(),
            saved: AtomicU64::new(0),
            sweeping: AtomicBool::new(false),
            started: Instant::now(),
            listener: OnceLock::new(),
            config,
            arena,
        });
        store.residency.lock().set_budget(store.keepable());
        store.keeper.start(&store).map_err(StoreError::Thread)?;
        if let Some(reserve) = reserve {
            store.follower.start(&store, reserve).map_err(StoreError::Thread)?;
        }
        Ok(store)
    }

    /// Who is told of changes of residency; the first call counts. It is called from threads of the store and must not
    /// wait for any of them.
    pub fn listen(&self, listener: Listener) {
        // A second listener has no meaning: there is one adapter for a store.
        let _ = self.listener.set(listener);
    }

    /// Ends the threads: reads that still wait are answered with an error.
    pub fn stop(&self) {
        self.follower.stop();
        match self.stop_trace() {
            Ok(_) | Err(RecordError::NotRunning) => {}
            Err(error) => tracing::error!(%error, "the trace is not complete"),
        }
        self.keeper.stop();
        self.forget_hints();
        // Before the engines: none is started after that.
        self.background.stop();
        // They stay in the table, where late reads are turned away by them. Not under its lock: whoever they answer may
        // look at it.
        let engines: Vec<Engine> = self.engines.lock().values().map(|(engine, _)| engine.clone()).collect();
        engines.into_iter().for_each(Engine::shutdown);
        self.save();
    }

    /// Writes down what is to outlive the store.
    pub fn save(&self) {
        self.memory.save();
    }

    /// What the arena is made of.
    pub fn pages(&self) -> Pages {
        self.arena.pages()
    }

    /// A file of the arena, to try out what the kernel does with one.
    pub fn arena_probe(&self) -> &std::fs::File {
        self.bypass.file()
    }

    /// How many bytes could be locked in memory, where that is needed to keep pages from being swapped.
    pub fn lock_limit(&self) -> u64 {
        self.arena.lock_limit()
    }

    fn now(&self) -> Duration {
        self.started.elapsed()
    }

    fn milliseconds(&self) -> u64 {
        self.now().as_millis() as u64
    }

    fn high_mark(&self) -> u64 {
        self.budget.load(Ordering::Acquire) / 100 * u64::from(self.config.high_watermark)
    }

    fn low_mark(&self) -> u64 {
        self.budget.load(Ordering::Acquire) / 100 * u64::from(self.config.low_watermark)
    }

    /// Bytes that count against the budget, whoever holds them.
    fn taken(&self) -> u64 {
        self.occupied.load(Ordering::Acquire) * EXTENT_SIZE + self.bypass.capacity()
    }

    /// Bytes that may be filled into the arena now.
    pub fn room(&self) -> u64 {
        self.high_mark().saturating_sub(self.taken())
    }

    /// `io_uring` or `threads`.
    fn engine_kind(&self) -> &'static str {
        if self.engine_choice == EngineChoice::Uring { "io_uring" } else { "threads" }
    }

    fn tell(&self, generation: &Arc<Generation>) {
        if let Some(listener) = self.listener.get() {
            listener(generation);
        }
    }
}

/// Finds out once which engine runs here; the engines of all devices are of that kind.
fn usable(choice: EngineChoice) -> Result<EngineChoice, EngineError> {
    let tried = Engine::start(choice, Storage::Fast)?;
    let choice = if tried.kind() == "io_uring" { EngineChoice::Uring } else { EngineChoice::Threads };
    tried.shutdown();
    Ok(choice)
}
