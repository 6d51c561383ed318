//! The store: model files by identity, their bytes out of the arena or else from their source.
//!
//! It composes what the other modules know. A read looks at the extents ([`extents`]) and is answered at once where
//! they are present ([`read`]); else they are filled ([`filling`]), into the arena as far as the residency policy
//! admits them ([`keeper`]) and into slots that are soon used again where not ([`bypass`]). Nobody who asks waits on the
//! thread that asks: answers are closures, called when the bytes are there.

mod ahead;
mod background;
mod budget;
mod buffers;
mod bypass;
mod cost;
mod error;
mod extents;
mod filling;
mod generation;
mod headers;
mod hints;
mod inventory;
mod keeper;
mod memory;
mod opening;
mod past;
mod predecessors;
mod read;
mod recorder;
mod report;
mod restore;
mod scratch;
mod steer;
mod touched;
mod traced;
mod waiters;
mod writers;

#[cfg(test)]
mod tests;

use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use moka::sync::Cache;
use parking_lot::Mutex;

pub use background::Background;
pub use error::{ReadError, StoreError};
pub use generation::{Generation, Held, identity_of};
pub use hints::{BelowPins, Hint, HintKind, LONGEST_QUEUE, Part, QueueEntry};
pub use inventory::{FileReport, FillReport, StoreEvent, Witness, bytes_within};
pub use opening::{ASSUMED_SPEED, Opened};
pub use recorder::RecordError;
pub use report::{IoReport, RamReport};
pub use restore::Kept;
pub use steer::Evicted;

use crate::arena::{Arena, Pages};
use crate::fill::{Engine, EngineChoice, EngineError, Storage};
use crate::format::TensorMap;
use crate::ids::{FileId, GenerationId, SourceIdentity};
use crate::journal::{Legacy, Tally};
use crate::residency::{PolicyKind, RefetchCost};
use crate::units::EXTENT_SIZE;
use budget::Follower;
use bypass::Bypass;
use hints::Hints;
use keeper::Keeper;
use memory::Memory;
use predecessors::Predecessors;
use scratch::Scratch;
use traced::Traced;

/// Files smaller than this are left to the kernel.
pub const SMALLEST_MODEL: u64 = 1 << 20;

/// Content that changed less than this ago may still change without its times telling: it is served, not kept.
pub const SETTLE: Duration = Duration::from_secs(2);

/// The most bytes that a mount asks for at once: a loader's read of 2 MiB at an odd offset fits into one request, if the
/// kernel's limit allows it.
pub const LARGEST_READ: u64 = 4 << 20;

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
    legacy: Arc<Legacy>,
    arena: Arena,
    /// By the device that a source lies on, and whether that was seen to be what the engine takes it for.
    engines: Mutex<HashMap<u64, (Engine, bool)>>,
    /// By device: held while its engine is started, for which is read from it.
    starting: Mutex<HashMap<u64, Arc<Mutex<()>>>>,
    engine_choice: EngineChoice,
    bypass: Arc<Bypass>,
    scratch: Arc<Scratch>,
    background: Background,
    predecessors: Predecessors,
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
    /// Bytes that engines of earlier processes have read.
    filled_before: u64,
    /// Milliseconds, when what was learned was written down last.
    saved: AtomicU64,
    /// The devices at which somebody is at [`Store::sweep`].
    sweeping: Mutex<HashSet<u64>>,
    started: Instant,
    listener: OnceLock<Listener>,
    witness: OnceLock<Witness>,
}

impl Store {
    /// # Errors
    /// Where there is no memory for an arena, or the engine that was asked for cannot run here.
    pub fn start(config: StoreConfig) -> Result<Arc<Self>, StoreError> {
        let arena = Arena::create(Self::arena_size(config.budget))?;
        let store = Self::start_in(config, arena, Legacy::of_nobody()?, Vec::new(), &[])?;
        store.keep_within_budget()?;
        Ok(store)
    }

    /// The size of the arena that a budget needs, in bytes: what it counts, what is read past it (twice: by a process
    /// and by one before it that is slow to die), and a little for what the kernel rounds up.
    pub fn arena_size(budget: u64) -> u64 {
        budget + budget / 16 + 2 * (slots(budget) * EXTENT_SIZE + Scratch::size(buffers(budget))) + 16 * EXTENT_SIZE
    }

    /// As [`Store::start`], in an arena that outlives this process, with what an earlier one has left there. `lingering`
    /// are the numbers of earlier processes that may not have ended yet. Nothing is evicted before
    /// [`Store::keep_within_budget`].
    pub fn start_in(
        config: StoreConfig,
        arena: Arena,
        legacy: Arc<Legacy>,
        kept: Vec<Kept>,
        lingering: &[u32],
    ) -> Result<Arc<Self>, StoreError> {
        let engine_choice = usable(config.engine)?;
        let slots = slots(config.budget);
        let memory = arena.file(GenerationId(0), slots * EXTENT_SIZE)?;
        let scratch = arena.file(GenerationId(0), Scratch::size(buffers(config.budget)))?;
        let store = Arc::new(Self {
            bypass: Arc::new(Bypass::new(memory, slots as usize)),
            scratch: Arc::new(Scratch::new(scratch)),
            engine_choice,
            engines: Mutex::default(),
            starting: Mutex::default(),
            background: Background::start("source").map_err(StoreError::Thread)?,
            predecessors: Predecessors::of(lingering),
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
            next_generation: AtomicU64::new(legacy.first_number()),
            ended: Mutex::default(),
            occupied: Arc::default(),
            filled_before: legacy.sum(Tally::Filled),
            saved: AtomicU64::new(0),
            sweeping: Mutex::default(),
            started: Instant::now(),
            listener: OnceLock::new(),
            witness: OnceLock::new(),
            config,
            legacy,
            arena,
        });
        store.residency.lock().set_budget(store.keepable());
        store.restore(kept);
        Ok(store)
    }

    /// From here on the arena is kept within its marks, and the budget follows the machine: what clients of an earlier
    /// process hold must be known by now.
    pub fn keep_within_budget(self: &Arc<Self>) -> Result<(), StoreError> {
        self.keeper.start(self).map_err(StoreError::Thread)?;
        if let Some(reserve) = self.config.reserve {
            self.follower.start(self, reserve).map_err(StoreError::Thread)?;
        }
        Ok(())
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
        self.finish_trace();
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
        for (device, (engine, _)) in self.engines.lock().iter() {
            if let Some(speed) = engine.counters().bytes_per_second {
                self.memory.note_speed(*device, speed);
            }
        }
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
        self.budget.load(Ordering::Acquire) * u64::from(self.config.high_watermark) / 100
    }

    fn low_mark(&self) -> u64 {
        self.budget.load(Ordering::Acquire) * u64::from(self.config.low_watermark) / 100
    }

    /// Bytes that count against the budget, whoever holds them.
    fn taken(&self) -> u64 {
        self.occupied.load(Ordering::Acquire) * EXTENT_SIZE + self.passing()
    }

    /// Bytes for what is read past the arena.
    fn passing(&self) -> u64 {
        self.bypass.capacity() + self.scratch.capacity()
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
        if generation.is_complete() {
            self.happened(StoreEvent::Filled(Arc::clone(generation)));
        }
        self.look_again(generation);
    }

    /// Has the names of a generation looked up again.
    fn look_again(&self, generation: &Arc<Generation>) {
        if let Some(listener) = self.listener.get() {
            listener(generation);
        }
    }
}

/// Extents that are read past the arena at a time, for small reads.
fn slots(budget: u64) -> u64 {
    (budget / EXTENT_SIZE / 128).clamp(2, 32)
}

/// Large reads that are answered past the arena at a time.
fn buffers(budget: u64) -> u64 {
    (budget / LARGEST_READ / 128).clamp(1, 16)
}

/// Finds out once which engine runs here; the engines of all devices are of that kind.
fn usable(choice: EngineChoice) -> Result<EngineChoice, EngineError> {
    let tried = Engine::start(choice, Storage::Fast)?;
    let choice = if tried.kind() == "io_uring" { EngineChoice::Uring } else { EngineChoice::Threads };
    tried.shutdown();
    Ok(choice)
}
