//! The thread that keeps the arena within its marks. Reads leave evictions to it: none of them ever waits for one.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use super::waiters::Then;
use super::{Generation, Store};
use crate::fill::Class;
use crate::ids::{ExtentIndex, FileId};
use crate::residency::{UseKind, Victim};
use crate::units::EXTENT_SIZE;

/// How often it looks around unasked.
const TICK: Duration = Duration::from_millis(200);

/// How often what was learned is written down.
const SAVE_EVERY: Duration = Duration::from_secs(60);

enum Task {
    /// Evict these, then fill those.
    MakeRoom { generation: Arc<Generation>, victims: Vec<Victim>, admit: Vec<Range<ExtentIndex>>, class: Class },
    /// A dead generation: free of it what nobody looks at.
    Discard(Arc<Generation>),
}

#[derive(Default)]
struct Queue {
    tasks: VecDeque<Task>,
    timers: Vec<(Instant, Then)>,
    stopping: bool,
}

#[derive(Default)]
struct Shared {
    queue: Mutex<Queue>,
    changed: Condvar,
}

#[derive(Default)]
pub(super) struct Keeper {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Keeper {
    pub(super) fn start(&self, store: &Arc<Store>) -> std::io::Result<()> {
        let (store, shared) = (Arc::downgrade(store), Arc::clone(&self.shared));
        let thread = std::thread::Builder::new().name("keeper".to_owned()).spawn(move || run(&store, &shared))?;
        *self.thread.lock() = Some(thread);
        Ok(())
    }

    pub(super) fn stop(&self) {
        self.shared.queue.lock().stopping = true;
        self.shared.changed.notify_one();
        if let Some(thread) = self.thread.lock().take()
            && thread.thread().id() != std::thread::current().id()
            && thread.join().is_err()
        {
            tracing::error!("the keeper panicked");
        }
    }

    pub(super) fn make_room(
        &self,
        generation: &Arc<Generation>,
        victims: Vec<Victim>,
        admit: Vec<Range<ExtentIndex>>,
        class: Class,
    ) {
        self.push(Task::MakeRoom { generation: Arc::clone(generation), victims, admit, class });
    }

    pub(super) fn discard(&self, generation: &Arc<Generation>) {
        self.push(Task::Discard(Arc::clone(generation)));
    }

    fn push(&self, task: Task) {
        self.shared.queue.lock().tasks.push_back(task);
        self.shared.changed.notify_one();
    }
}

fn run(store: &Weak<Store>, shared: &Shared) {
    loop {
        // Not in the loop's head, where the lock would be held while they run.
        let due = due(&mut shared.queue.lock());
        due.into_iter().for_each(|then| then());
        let task = {
            let mut queue = shared.queue.lock();
            if queue.tasks.is_empty() && !queue.stopping {
                shared.changed.wait_for(&mut queue, TICK);
            }
            match queue.tasks.pop_front() {
                None if queue.stopping => return,
                task => task,
            }
        };
        let Some(store) = store.upgrade() else { return };
        match task {
            Some(Task::MakeRoom { generation, victims, admit, class }) => {
                store.make_room(&generation, &victims, &admit, class);
            }
            Some(Task::Discard(generation)) => store.discard(&generation),
            None => store.look_around(),
        }
    }
}

impl Store {
    /// Calls `then` once, on a thread of the store, `delay` from now (up to a fifth of a second later).
    pub fn after(&self, delay: Duration, then: impl FnOnce() + Send + 'static) {
        self.keeper.shared.queue.lock().timers.push((Instant::now() + delay, Box::new(then)));
    }

    fn make_room(
        self: &Arc<Self>,
        generation: &Arc<Generation>,
        victims: &[Victim],
        admit: &[Range<ExtentIndex>],
        class: Class,
    ) {
        self.evict(victims);
        for run in admit {
            // Some victims may have been refused: what does not fit now is read past the arena.
            let mut run = run.clone();
            let over = self.taken().saturating_sub(self.high_mark());
            let excess = (over.div_ceil(EXTENT_SIZE) as ExtentIndex).min(run.end - run.start);
            let kept = run.end - excess;
            if excess > 0 {
                self.occupied.fetch_sub(u64::from(excess), Ordering::AcqRel);
                self.give_up(generation, &(kept..run.end));
                run.end = kept;
            }
            self.submit(generation, run, class);
        }
    }

    /// Frees victims as far as nobody looks at them, and answers the policy for each.
    pub(super) fn evict(self: &Arc<Self>, victims: &[Victim]) {
        for victim in victims {
            let (freed, kept) = match self.generation_of(victim.file) {
                Some(generation) => self.evict_from(&generation, &victim.extents),
                None => (vec![victim.extents.clone()], Vec::new()),
            };
            let mut residency = self.residency.lock();
            for run in freed {
                tracing::debug!(file = %victim.file, extents = ?run, reason = %victim.reason, "evicted");
                residency.evicted(victim.file, run);
            }
            for run in kept {
                residency.refused(victim.file, run);
            }
        }
    }

    /// Returns the runs that were freed and those that were not.
    fn evict_from(
        self: &Arc<Self>,
        generation: &Arc<Generation>,
        extents: &Range<ExtentIndex>,
    ) -> (Vec<Range<ExtentIndex>>, Vec<Range<ExtentIndex>>) {
        let (mut freed, mut kept) = (Vec::new(), Vec::new());
        let Some(arena) = generation.arena() else { return (vec![extents.clone()], kept) };
        // Held throughout: no client can begin to look at these pages in passthrough meanwhile.
        let passthrough = generation.passthrough.lock();
        let held = *passthrough > 0 || !arena.sole_user().unwrap_or(false);
        self.residency.lock().held(generation.file_id(), held);
        if held {
            return (freed, vec![extents.clone()]);
        }
        let was_complete = generation.is_complete();
        for extent in extents.clone() {
            if !generation.extents.begin_evict(extent) {
                // Being read, or gone already. What is gone is answered as freed.
                let list = if generation.extents.is_present(extent) { &mut kept } else { &mut freed };
                push(list, extent);
                continue;
            }
            if let Err(error) = arena.punch(&(extent..extent + 1)) {
                tracing::error!(%error, generation = %generation.id, "cannot free pages of the arena");
                generation.extents.kept(extent);
                push(&mut kept, extent);
                continue;
            }
            generation.extents.evicted(extent);
            self.occupied.fetch_sub(1, Ordering::AcqRel);
            self.counters.evicted.fetch_add(generation.cost(extent), Ordering::Relaxed);
            push(&mut freed, extent);
        }
        drop(passthrough);
        if was_complete && !generation.is_complete() {
            self.tell(generation);
        }
        (freed, kept)
    }

    /// Frees a dead generation: its name, and every extent that nobody looks at. What clients map stays theirs.
    fn discard(self: &Arc<Self>, generation: &Arc<Generation>) {
        let all = 0..generation.extents.count();
        self.residency.lock().forget(generation.file_id());
        if generation.arena().is_none() {
            return;
        }
        self.arena.unlink(generation.id);
        let (freed, _) = self.evict_from(generation, &all);
        tracing::debug!(generation = %generation.id, freed = freed.len(), "discarded");
    }

    /// Tells the policy what was read, drops what has gone, and reclaims down to the low mark once the high one is
    /// reached.
    fn look_around(self: &Arc<Self>) {
        let all: Vec<_> = self.generations.lock().values().cloned().collect();
        for generation in &all {
            self.drain_touched(generation);
            // The last name was taken away behind the mount: nobody can open it again.
            if generation.handles.load(Ordering::Acquire) == 0 && generation.is_unlinked() {
                let identity = generation.identity();
                self.invalidate(identity.device, identity.inode);
            }
        }
        if self.saved.load(Ordering::Relaxed) + SAVE_EVERY.as_millis() as u64 <= self.milliseconds() {
            self.saved.store(self.milliseconds(), Ordering::Relaxed);
            self.memory.save();
        }
        self.count_client_held();
        let taken = self.taken();
        if taken >= self.high_mark().saturating_sub(8 * EXTENT_SIZE) {
            let victims = self.residency.lock().reclaim(taken.saturating_sub(self.low_mark()), self.now());
            self.evict(&victims);
        }
    }

    /// What the arena's file system says is used beyond what is accounted for: dropped, but still mapped by clients.
    fn count_client_held(&self) {
        let Some(used) = self.arena_used() else { return };
        // Whole extents are counted, which may be more than the kernel takes for the last one of a file.
        let known = self.occupied.load(Ordering::Acquire) * EXTENT_SIZE + self.bypass.capacity();
        self.client_held.store(used.saturating_sub(known), Ordering::Release);
    }

    /// Tells the policy what was read of a generation since the last time.
    pub(super) fn drain_touched(&self, generation: &Generation) {
        let touched = generation.touched.take();
        if !touched.is_empty() {
            let kind = if generation.loaded.load(Ordering::Relaxed) { UseKind::Load } else { UseKind::Unknown };
            self.residency.lock().touched(generation.file_id(), &touched, kind, self.now());
        }
    }

    fn generation_of(&self, file: FileId) -> Option<Arc<Generation>> {
        self.generations.lock().values().find(|generation| generation.file_id() == file).cloned()
    }
}

fn due(queue: &mut Queue) -> Vec<Then> {
    let now = Instant::now();
    queue.timers.extract_if(.., |(at, _)| *at <= now).map(|(_, then)| then).collect()
}

fn push(runs: &mut Vec<Range<ExtentIndex>>, extent: ExtentIndex) {
    match runs.last_mut() {
        Some(run) if run.end == extent => run.end += 1,
        _ => runs.push(extent..extent + 1),
    }
}
