//! Filling: which extents a read brings, where they go, and what happens when they are there.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::extents::Begin;
use super::generation::Look;
use super::past::{goes_on, is_divided, is_read_alone};
use super::waiters::Waiter;
use super::{Generation, Store};
use crate::extent::{Plan, Window, plan};
use crate::failpoint;
use crate::fill::{Class, Engine, EngineError, FillError, Job, JobId, Storage};
use crate::format::TensorMap;
use crate::ids::ExtentIndex;
use crate::residency::UseKind;
use crate::units::{EXTENT_SIZE, extent_bytes, extents_of};

/// A tensor up to this is read whole when it is touched; beyond it, what follows is read ahead. Sixteen requests of the
/// engine and more: the queue of a fast device stays full.
const WINDOW: Window = Window { demand: 32 << 20, ahead: 64 << 20 };

/// The same where the last look ahead brought nothing that is kept: the slots are few, and to ask for the rest again with
/// every read costs more than it may bring. Every so often the wide window is tried.
const NARROW: Window = Window { demand: BYPASS_AHEAD as u64 * EXTENT_SIZE, ahead: EXTENT_SIZE };
const WIDE_AGAIN: u32 = 16;

/// Bytes from which a file shows what its device is like.
const TELLING: u64 = 64 << 20;

/// Extents in one job of the engine.
const JOB: ExtentIndex = 2;

/// How far past a read the slots are filled ahead of it: they are few. In the tensor that is read; what comes after that
/// may be read by another thread, and not soon.
const BYPASS_AHEAD: usize = 4;
const BYPASS_BEYOND: usize = 1;

/// How extents are wanted.
#[derive(Clone, Copy)]
struct Wish {
    class: Class,
    kind: UseKind,
    /// How many of those that are not admitted are read past the arena.
    past: usize,
    /// Whether these may be such as are divided between tensors.
    divided: bool,
}

impl Store {
    /// Starts to fill what a read of `range` needs and what is likely to follow.
    pub(super) fn bring(self: &Arc<Self>, generation: &Arc<Generation>, range: &Range<u64>, kind: UseKind) {
        let needed = extents_of(range);
        let past = if is_read_alone(range) { 0 } else { usize::MAX };
        let divided = goes_on(generation, range);
        self.fill_as(generation, std::slice::from_ref(&needed), Wish { class: Class::Demand, kind, past, divided });
        if !generation.filling_whole.load(Ordering::Relaxed) {
            let is_wide = generation.passed_over.load(Ordering::Relaxed).is_multiple_of(WIDE_AGAIN);
            let planned = self.plan(generation, Some(range), if is_wide { WINDOW } else { NARROW });
            // What was read past the arena is as absent as what will be: only what comes after is read there ahead.
            let [before, after] = split(&planned.demand, needed.end);
            let beyond = if is_read_alone(range) { 0 } else { BYPASS_BEYOND };
            let wish = |class, past| Wish { class, kind, past, divided: false };
            let all = self.fill_as(generation, &after, wish(Class::OpenWait, BYPASS_AHEAD))
                & self.fill_as(generation, &before, wish(Class::OpenWait, 0))
                & self.fill_as(generation, &planned.prefetch, wish(Class::Prefetch, beyond));
            match all {
                true => generation.passed_over.store(0, Ordering::Relaxed),
                false => _ = generation.passed_over.fetch_add(1, Ordering::Relaxed),
            }
        }
    }

    /// Starts to fill the whole file if an open has asked for that and nobody has begun.
    pub(super) fn fill_anticipated(self: &Arc<Self>, generation: &Arc<Generation>) {
        // Whoever was to load it may have closed it by now.
        if generation.anticipated.swap(false, Ordering::AcqRel) && generation.handles.load(Ordering::Acquire) > 0 {
            self.fill_whole(generation);
        }
    }

    /// Starts to fill the whole file, in the order in which it was read last time.
    pub(super) fn fill_whole(self: &Arc<Self>, generation: &Arc<Generation>) {
        let everything = Window { demand: WINDOW.demand, ahead: generation.size };
        let planned = self.plan(generation, None, everything);
        let all = 0..generation.extents.count();
        self.residency.lock().expected(generation.file_id(), self.now());
        let whole = self.fill(generation, &planned.demand, Class::Prefetch, UseKind::Load)
            & self.fill(generation, &planned.prefetch, Class::Prefetch, UseKind::Load)
            // What lies between the tensors.
            & self.fill(generation, std::slice::from_ref(&all), Class::Prefetch, UseKind::Load);
        generation.filling_whole.store(whole, Ordering::Relaxed);
    }

    /// What a touch of `range` asks for; without one, what a load of the whole file does.
    fn plan(self: &Arc<Self>, generation: &Arc<Generation>, range: Option<&Range<u64>>, window: Window) -> Plan {
        let Some(map) = self.tensors(generation) else {
            let touch = range.map_or(0..1, Range::clone);
            return plan(&TensorMap::opaque(generation.size), touch, &[], window);
        };
        let learned = generation.learned.get_or_init(|| self.memory.order(generation));
        let first = || {
            let tensors = map.tensors();
            let first = learned.first().and_then(|index| tensors.get(*index as usize)).or(tensors.first());
            first.map_or(0..1, |tensor| tensor.bytes.start..tensor.bytes.start + 1)
        };
        plan(map, range.map_or_else(first, Range::clone), learned, window)
    }

    /// Fills what is missing of the whole file as far as the policy admits it: somebody waits for all of it.
    pub fn complete(self: &Arc<Self>, generation: &Arc<Generation>) {
        self.register(generation);
        let all = 0..generation.extents.count();
        self.fill(generation, std::slice::from_ref(&all), Class::OpenWait, UseKind::Load);
    }

    /// Calls `then` when none of `extents` is being filled: at once, on this thread, if that is so already. Fills of a
    /// lower class than `class` move up to it.
    pub fn when_settled(
        &self,
        generation: &Arc<Generation>,
        extents: Range<ExtentIndex>,
        class: Class,
        then: impl FnOnce() + Send + 'static,
    ) {
        let waiter = Waiter::new(Box::new(then));
        for extent in extents {
            let waits = generation.waiters.wait_if(extent, &waiter, class, || generation.extents.is_filling(extent));
            if waits && let Some((job, engine)) = generation.job_of(extent) {
                engine.promote(job, class);
            }
        }
        waiter.settle();
    }

    /// Starts to fill those of `extents` that are absent and that nobody fills yet, as far as they are admitted. Whether
    /// all of them are.
    pub(super) fn fill(
        self: &Arc<Self>,
        generation: &Arc<Generation>,
        extents: &[Range<ExtentIndex>],
        class: Class,
        kind: UseKind,
    ) -> bool {
        self.fill_as(generation, extents, Wish { class, kind, past: 0, divided: false })
    }

    fn fill_as(self: &Arc<Self>, generation: &Arc<Generation>, extents: &[Range<ExtentIndex>], wish: Wish) -> bool {
        // Nothing of what is over is kept, so nothing of it is read.
        if generation.is_dead() {
            return true;
        }
        let started = claim(generation, extents);
        if started.is_empty() {
            return true;
        }
        // It may have ended before the claim, after which it is not let go of any more.
        if generation.is_dead() {
            started.iter().for_each(|run| self.give_up(generation, run));
            return true;
        }
        // What an earlier process is still to write could land in a complete extent, of which somebody may hold a
        // snapshot by then. Until it has ended, what is missing is read past the arena.
        let lingers = generation.is_inherited() && !self.predecessors.are_gone();
        // Neither is what somebody writes at this moment. Who begins to after this moves the times, which are looked at
        // when the bytes are there.
        if lingers || generation.is_written() {
            started.iter().for_each(|run| self.give_up(generation, run));
            return false;
        }
        if self.known_engine(generation).is_some() {
            return self.fill_claimed(generation, &started, wish);
        }
        // What its device is like is found out by reading, for which nobody who asks must wait.
        let (store, filled) = (Arc::clone(self), Arc::clone(generation));
        self.background.spawn(generation.device(), move |runs| {
            if runs {
                // Here, and not where room is made for it: that is done for all devices. Why it failed is said there.
                let _ = store.engine_of(&filled);
                store.fill_claimed(&filled, &started, wish);
            } else {
                started.iter().for_each(|run| store.give_up(&filled, run));
            }
        });
        false
    }

    /// As [`Store::fill`], for extents whose fill has begun here.
    fn fill_claimed(
        self: &Arc<Self>,
        generation: &Arc<Generation>,
        started: &[Range<ExtentIndex>],
        Wish { class, kind, past, divided }: Wish,
    ) -> bool {
        let (file, now) = (generation.file_id(), self.now());
        let mut left = Vec::new();
        let decision = {
            let mut residency = self.residency.lock();
            let decision = residency.want(file, started, kind, self.room(), now);
            // Of what it takes for resident the policy wants nothing. It is mistaken: it is being filled here.
            let is_wanted =
                |extent: &ExtentIndex| decision.admit.contains(*extent) || decision.bypass.contains(*extent);
            for extent in started.iter().cloned().flatten().filter(|extent| !is_wanted(extent)) {
                residency.evicted(file, extent..extent + 1);
                left.push(extent..extent + 1);
            }
            // Under the same lock as the decision: the next one sees what this one has taken.
            self.occupied.fetch_add(decision.admit.count(), Ordering::AcqRel);
            decision
        };
        left.iter().for_each(|run| self.give_up(generation, run));
        tracing::trace!(%file, ?class, reason = %decision.reason, admitted = ?decision.admit.runs(), "missed");
        if decision.evict.is_empty() {
            for run in decision.admit.runs() {
                self.submit(generation, run.clone(), class);
            }
        } else if !self.keeper.make_room(generation, decision.evict, decision.admit.runs().to_vec(), class) {
            decision.admit.runs().iter().for_each(|run| self.turn_away(generation, run));
        }
        let mut ahead = 0;
        for extent in decision.bypass.runs().iter().cloned().flatten() {
            ahead += 1;
            let wanted = ahead <= past && (divided || !is_divided(generation, extent));
            match wanted.then(|| self.bypass.claim(generation.id, extent, class != Class::Demand)).flatten() {
                Some(slot) => self.submit_past(generation, extent, slot, class),
                None => self.give_up(generation, &(extent..extent + 1)),
            }
        }
        decision.bypass.is_empty()
    }

    /// Reads admitted extents into the arena. They are counted as occupied already.
    pub(super) fn submit(self: &Arc<Self>, generation: &Arc<Generation>, extents: Range<ExtentIndex>, class: Class) {
        // It has waited for its turn, and nobody has the file open any more.
        if class == Class::Prefetch && generation.handles.load(Ordering::Acquire) == 0 {
            return self.turn_away(generation, &extents);
        }
        let ready = generation
            .arena_or(|| self.arena.file(generation.id, generation.size))
            .map_err(|error| error.to_string())
            .and_then(|arena| self.engine_of(generation).map(|engine| (arena, engine)).map_err(|e| e.to_string()));
        let (arena, engine) = match ready {
            Ok(ready) => ready,
            Err(error) => {
                tracing::error!(%error, "an extent cannot be filled");
                return self.turn_away(generation, &extents);
            }
        };
        let ticket = (class == Class::Prefetch).then(|| generation.prefetch_ticket());
        let mut start = extents.start;
        while start < extents.end {
            if let Some(slot) = self.bypass.read(generation.id, start) {
                // It was read past the arena before there was room for it.
                let bytes = extent_bytes(start, generation.size);
                let length = (bytes.end - bytes.start) as usize;
                let target = bytes.start as usize..bytes.end as usize;
                arena.mapping().target(target).copy_from_slice(slot.bytes(0, length));
                drop(slot);
                self.landed(generation, start..start + 1, Ok(()));
                start += 1;
                continue;
            }
            let run = start..(start + JOB).min(extents.end);
            start = run.end;
            let bytes = extent_bytes(run.start, generation.size).start..extent_bytes(run.end - 1, generation.size).end;
            let (store, filled, done_run) = (Arc::clone(self), Arc::clone(generation), run.clone());
            let job = engine.submit(Job {
                source: Arc::clone(&generation.source),
                at: bytes.start as usize,
                bytes,
                memory: arena.mapping(),
                class,
                ticket: ticket.clone(),
                done: Box::new(move |result| store.landed(&filled, done_run, result)),
            });
            make_findable(generation, &run, job, &engine, class);
            failpoint::pass("fill.submitted");
        }
    }

    /// A job of the engine has ended.
    fn landed(
        self: &Arc<Self>,
        generation: &Arc<Generation>,
        extents: Range<ExtentIndex>,
        result: Result<(), FillError>,
    ) {
        generation.forget_job(&extents);
        let arena = generation.arena().expect("it was filled into its arena file");
        if !self.is_trusted(generation, result) {
            // Nobody looked at these pages yet. They go before anyone can begin to fill them again.
            if let Err(error) = arena.punch(&extents) {
                tracing::error!(%error, generation = %generation.id, "cannot free pages of the arena");
            }
            self.turn_away(generation, &extents);
            return self.discard_if_dead(generation);
        }
        for extent in extents.clone() {
            arena.lock(extent);
        }
        failpoint::pass("fill.landed");
        generation.note_filled(extents.clone());
        failpoint::pass("fill.noted");
        for extent in extents.clone() {
            generation.extents.filled(extent);
        }
        // The policy last: what it does not know of it cannot name for eviction before it can be evicted.
        self.residency.lock().filled(generation.file_id(), extents.clone(), self.now());
        if generation.is_complete() {
            self.tell(generation);
        }
        for extent in extents {
            generation.waiters.settle(extent);
        }
        self.discard_if_dead(generation);
    }

    /// A generation that ended while this was filled was freed without it.
    fn discard_if_dead(&self, generation: &Arc<Generation>) {
        if generation.is_dead() {
            self.keeper.discard(generation);
        }
    }

    /// Whether what a job has read is the content of the generation.
    pub(super) fn is_trusted(self: &Arc<Self>, generation: &Arc<Generation>, result: Result<(), FillError>) -> bool {
        match result {
            Ok(()) if generation.is_dead() => false,
            // Looked up after the bytes were read: content that was changed before that shows in the times.
            Ok(()) => match generation.look_now() {
                Look::Same => true,
                Look::Unknown => false,
                Look::Other => {
                    self.end(generation);
                    false
                }
            },
            Err(FillError::Truncated { .. }) => {
                self.end(generation);
                false
            }
            Err(FillError::Cancelled | FillError::Shutdown) => false,
            Err(error @ FillError::Io { .. }) => {
                tracing::warn!(generation = %generation.id, inode = generation.identity().inode, %error, "a fill has failed");
                false
            }
        }
    }

    /// As [`Store::give_up`], for extents that were admitted and so count as occupied.
    pub(super) fn turn_away(&self, generation: &Arc<Generation>, extents: &Range<ExtentIndex>) {
        self.occupied.fetch_sub(u64::from(extents.end - extents.start), Ordering::AcqRel);
        self.give_up(generation, extents);
    }

    /// Leaves extents that this caller had begun to fill to whoever asks next, and lets those who wait look elsewhere.
    pub(super) fn give_up(&self, generation: &Arc<Generation>, extents: &Range<ExtentIndex>) {
        for extent in extents.clone() {
            generation.extents.fill_failed(extent);
            generation.waiters.settle(extent);
        }
    }

    /// The engine of the device that a source lies on, if it is known what that is like. A small file does not show how
    /// its device seeks: then the next larger one is tried.
    pub(super) fn known_engine(&self, generation: &Generation) -> Option<Engine> {
        let engines = self.engines.lock();
        let (engine, known) = engines.get(&generation.device())?;
        (*known || generation.size < TELLING).then(|| engine.clone())
    }

    /// As [`Store::known_engine`], started if there is none: this reads from the device.
    pub(super) fn engine_of(&self, generation: &Generation) -> Result<Engine, EngineError> {
        if let Some(engine) = self.known_engine(generation) {
            return Ok(engine);
        }
        // One at a time, and the tables are free meanwhile for those who must not wait.
        let starting = Arc::clone(self.starting.lock().entry(generation.device()).or_default());
        let _starting = starting.lock();
        if let Some(engine) = self.known_engine(generation) {
            return Ok(engine);
        }
        let device = generation.device();
        let telling = generation.size >= TELLING;
        let storage = if telling { Storage::of(&generation.source) } else { Storage::Fast };
        if storage == Storage::Fast
            && let Some((engine, known)) = self.engines.lock().get_mut(&device)
        {
            *known = true;
            return Ok(engine.clone());
        }
        tracing::info!(device, ?storage, engine = self.engine_kind(), "reading from a new device");
        let engine = Engine::start(self.engine_choice, storage)?;
        let replaced = self.engines.lock().insert(device, (engine.clone(), telling));
        // Whoever its last jobs belong to may look at the table.
        drop(replaced);
        Ok(engine)
    }

    /// Bytes per second that the device of a generation has lately delivered, or did before this process.
    pub fn speed(&self, generation: &Generation) -> Option<u64> {
        let device = generation.device();
        let seen = self.engines.lock().get(&device).and_then(|(engine, _)| engine.counters().bytes_per_second);
        seen.or_else(|| self.memory.speed(device))
    }
}

/// Lets whoever comes to wait for `extents` find the job that reads them, and moves it up if somebody waits already.
pub(super) fn make_findable(
    generation: &Generation,
    extents: &Range<ExtentIndex>,
    job: JobId,
    engine: &Engine,
    class: Class,
) {
    if class == Class::Demand {
        return;
    }
    generation.remember_job(extents.clone(), job, engine);
    if let Some(wanted) = generation.waiters.wanted(extents).filter(|wanted| *wanted < class) {
        engine.promote(job, wanted);
    }
}

/// What of `extents` lies before `at`, and what does not.
fn split(extents: &[Range<ExtentIndex>], at: ExtentIndex) -> [Vec<Range<ExtentIndex>>; 2] {
    let cut = |low, high| {
        let part = move |run: &Range<ExtentIndex>| run.start.clamp(low, high)..run.end.clamp(low, high);
        extents.iter().map(part).filter(|run| !run.is_empty()).collect()
    };
    [cut(0, at), cut(at, ExtentIndex::MAX)]
}

/// The runs of `extents` whose fill begins here.
fn claim(generation: &Generation, extents: &[Range<ExtentIndex>]) -> Vec<Range<ExtentIndex>> {
    let mut started: Vec<Range<ExtentIndex>> = Vec::new();
    for extent in extents.iter().cloned().flatten() {
        if generation.extents.is_present(extent) {
            continue;
        }
        if generation.extents.begin_fill(extent) != Begin::Started {
            continue;
        }
        match started.last_mut() {
            Some(run) if run.end == extent => run.end += 1,
            _ => started.push(extent..extent + 1),
        }
    }
    started
}
