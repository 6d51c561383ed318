//! The thread that keeps the arena within its marks. Reads leave evictions to it: none of them ever waits for one.

use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use super::waiters::Then;
use super::{Generation, Store, StoreEvent};
use crate::failpoint;
use crate::fill::Class;
use crate::ids::{ExtentIndex, FileId};
use crate::journal::Tally;
use crate::pressure::BudgetReason;
use crate::residency::{UseKind, Victim};
use crate::units::EXTENT_SIZE;

/// How often it looks around unasked.
const TICK: Duration = Duration::from_millis(200);

/// Room is made when less than this part of what lies between the marks is left, so that who comes next need not wait.
const NEAR_PART: u64 = 4;
const NEAR_MOST: u64 = 8 * EXTENT_SIZE;

/// How often other victims are looked for at once, where some were refused.
const RECLAIM_TRIES: u32 = 4;

/// How often what was learned is written down.
const SAVE_EVERY: Duration = Duration::from_secs(60);

/// The lane of timers, which wait for no device.
pub(super) const TIMERS: u64 = u64::MAX;

enum Task {
    /// Evict these, then fill those.
    MakeRoom { generation: Arc<Generation>, victims: Vec<Victim>, admit: Vec<Range<ExtentIndex>>, class: Class },
    /// A dead generation: free of it what nobody looks at.
    Discard(Arc<Generation>),
    /// The budget has shrunk.
    Reclaim,
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

    /// False where the keeper has stopped: nobody will do it.
    pub(super) fn make_room(
        &self,
        generation: &Arc<Generation>,
        victims: Vec<Victim>,
        admit: Vec<Range<ExtentIndex>>,
        class: Class,
    ) -> bool {
        self.push(Task::MakeRoom { generation: Arc::clone(generation), victims, admit, class })
    }

    pub(super) fn discard(&self, generation: &Arc<Generation>) {
        // Where the keeper has stopped, everything goes soon.
        self.push(Task::Discard(Arc::clone(generation)));
    }

    pub(super) fn reclaim(&self) {
        // As above.
        self.push(Task::Reclaim);
    }

    fn push(&self, task: Task) -> bool {
        let mut queue = self.shared.queue.lock();
        if queue.stopping {
            return false;
        }
        queue.tasks.push_back(task);
        self.shared.changed.notify_one();
        true
    }
}

fn run(store: &Weak<Store>, shared: &Shared) {
    let mut looked = Instant::now();
    loop {
        let (due, task) = {
            let mut queue = shared.queue.lock();
            if queue.tasks.is_empty() && !queue.stopping {
                shared.changed.wait_for(&mut queue, TICK.saturating_sub(looked.elapsed()));
            }
            match queue.tasks.pop_front() {
                None if queue.stopping => return,
                task => (due(&mut queue), task),
            }
        };
        let Some(store) = store.upgrade() else { return };
        // Evictions do not wait for what these do.
        due.into_iter().for_each(|then| store.background.spawn(TIMERS, |_| then()));
        match task {
            Some(Task::MakeRoom { generation, victims, admit, class }) => {
                store.make_room(&generation, &victims, admit, class);
            }
            Some(Task::Discard(generation)) => store.discard(&generation),
            Some(Task::Reclaim) => store.reclaim(),
            None => {}
        }
        // However much there is to do.
        if looked.elapsed() >= TICK {
            looked = Instant::now();
            store.look_around();
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
        mut admit: Vec<Range<ExtentIndex>>,
        class: Class,
    ) {
        let promised: u64 = victims.iter().map(|victim| victim.bytes() / EXTENT_SIZE).sum();
        let missing = promised - self.evict(victims);
        // Some victims may have been refused: what does not fit now is read past the arena, from the tail on. What
        // others are making room for is not counted here.
        let over = self.taken().saturating_sub(self.high_mark()).div_ceil(EXTENT_SIZE);
        let mut excess = over.min(missing) as ExtentIndex;
        while let Some(run) = admit.last_mut().filter(|_| excess > 0) {
            let cut = run.end.saturating_sub(excess).max(run.start)..run.end;
            excess -= cut.end - cut.start;
            run.end = cut.start;
            if run.start == run.end {
                admit.pop();
            }
            self.turn_away(generation, &cut);
        }
        for run in admit {
            self.submit(generation, run, class);
        }
    }

    /// Frees victims as far as nobody looks at them, and answers the policy for each. Returns how many extents were
    /// freed.
    pub(super) fn evict(self: &Arc<Self>, victims: &[Victim]) -> u64 {
        let mut freed = 0;
        for victim in victims {
            match self.generation_of(victim.file) {
                Some(generation) => {
                    tracing::debug!(file = %victim.file, extents = ?victim.extents, reason = %victim.reason, "evicting");
                    let count = self.evict_from(&generation, &victim.extents);
                    freed += count;
                    if count > 0 {
                        let (bytes, reason) = (count * EXTENT_SIZE, Some(victim.reason));
                        self.happened(StoreEvent::Evicted { generation, bytes, reason });
                    }
                }
                None => self.residency.lock().evicted(victim.file, victim.extents.clone()),
            }
        }
        freed
    }

    /// Frees those of `extents` that nobody looks at, tells the policy of each, and returns how many there were.
    pub(super) fn evict_from(self: &Arc<Self>, generation: &Arc<Generation>, extents: &Range<ExtentIndex>) -> u64 {
        let file = generation.file_id();
        let Some(arena) = generation.arena() else {
            self.residency.lock().evicted(file, extents.clone());
            return 0;
        };
        // Held throughout: no client can begin to look at these pages in passthrough meanwhile.
        let passthrough = generation.passthrough.lock();
        let held = *passthrough > 0 || !arena.sole_user().unwrap_or(false);
        self.mark_held(generation, held);
        if held {
            self.residency.lock().refused(file, extents.clone());
            return 0;
        }
        let was_complete = generation.is_complete();
        let (mut freed, mut gone, mut kept) = (Vec::new(), Vec::new(), Vec::new());
        for extent in extents.clone() {
            if !generation.extents.begin_evict(extent) {
                // Being read, or gone already.
                push(if generation.extents.is_present(extent) { &mut kept } else { &mut gone }, extent);
                continue;
            }
            generation.note_evicted(extent..extent + 1);
            failpoint::pass("evict.noted");
            if let Err(error) = arena.punch(&(extent..extent + 1)) {
                tracing::error!(%error, generation = %generation.id, "cannot free pages of the arena");
                generation.note_filled(extent..extent + 1);
                generation.extents.kept(extent);
                push(&mut kept, extent);
                continue;
            }
            if !generation.is_dead() {
                self.legacy.add(Tally::Evicted, generation.cost(extent));
            }
            failpoint::pass("evict.punched");
            push(&mut freed, extent);
        }
        {
            // Before they can be filled again: the policy hears of that in its turn, and must not take this for later.
            let mut residency = self.residency.lock();
            gone.into_iter().chain(freed.iter().cloned()).for_each(|run| residency.evicted(file, run));
            kept.into_iter().for_each(|run| residency.refused(file, run));
        }
        let mut count = 0;
        for extent in freed.into_iter().flatten() {
            generation.extents.evicted(extent);
            count += 1;
        }
        self.occupied.fetch_sub(count, Ordering::AcqRel);
        drop(passthrough);
        if was_complete && !generation.is_complete() {
            self.tell(generation);
        }
        count
    }

    /// Tells the policy whether clients hold a generation, if that is news.
    fn mark_held(&self, generation: &Generation, held: bool) {
        if generation.marked_held.swap(held, Ordering::Relaxed) != held {
            self.residency.lock().held(generation.file_id(), held);
        }
    }

    /// Forgets an ended generation: every extent goes that nobody looks at. The rest follows when the
    /// clients that have it open or mapped let go.
    fn discard(self: &Arc<Self>, generation: &Arc<Generation>) {
        // The same content may have come back under its name meanwhile.
        let file = generation.file_id();
        if self.generation_of(file).is_none_or(|now| Arc::ptr_eq(&now, generation)) {
            self.residency.lock().forget(file);
        }
        if generation.arena().is_none() {
            return;
        }
        if !self.is_freed(generation) {
            self.ended.lock().push(Arc::clone(generation));
        }
    }

    /// Frees what can be freed of an ended generation; whether that was all.
    fn is_freed(self: &Arc<Self>, generation: &Arc<Generation>) -> bool {
        self.evict_from(generation, &(0..generation.extents.count()));
        !generation.extents.occupied()
    }

    /// Tells the policy what was read, drops what has gone, and reclaims down to the low mark once the high one is
    /// reached.
    fn look_around(self: &Arc<Self>) {
        let all: Vec<_> = self.generations.lock().values().cloned().collect();
        for generation in &all {
            self.drain_touched(generation);
            self.let_go(generation);
            if generation.marked_held.load(Ordering::Relaxed) && !generation.is_open_or_mapped() {
                self.mark_held(generation, false);
            }
        }
        self.tally_fills();
        self.sweep_aside(all);
        // What somebody looked at when it ended.
        let ended: Vec<_> = self.ended.lock().clone();
        let freed: Vec<_> = ended.iter().filter(|generation| self.is_freed(generation)).map(|g| g.id).collect();
        self.ended.lock().retain(|generation| !freed.contains(&generation.id));
        self.reclaim();
        self.look_at_hints();
    }

    /// What may wait for storage is done by others, one at a time for each device.
    fn sweep_aside(self: &Arc<Self>, generations: Vec<Arc<Generation>>) {
        let mut by_device: HashMap<u64, Vec<Arc<Generation>>> = HashMap::new();
        for generation in generations {
            by_device.entry(generation.device()).or_default().push(generation);
        }
        for (device, mut generations) in by_device {
            let begins = self.sweeping.lock().insert(device);
            if !begins {
                // Those of them that end here close their sources, which may wait as well.
                generations.retain(|generation| Arc::strong_count(generation) == 1);
                if generations.is_empty() {
                    continue;
                }
            }
            let store = Arc::clone(self);
            self.background.spawn(device, move |runs| {
                if runs && begins {
                    store.sweep(&generations);
                }
                drop(generations);
                if begins {
                    store.sweeping.lock().remove(&device);
                }
            });
        }
        if self.saved.load(Ordering::Relaxed) + SAVE_EVERY.as_millis() as u64 <= self.milliseconds() {
            self.saved.store(self.milliseconds(), Ordering::Relaxed);
            let store = Arc::clone(self);
            self.background.spawn(TIMERS, move |_| store.save());
        }
    }

    /// Evicts down to the low mark once the high one is near.
    fn reclaim(self: &Arc<Self>) {
        // Victims that clients hold are refused, of which the policy knows afterwards: then others are next.
        for _ in 0..RECLAIM_TRIES {
            let taken = self.taken();
            let near = (self.high_mark().saturating_sub(self.low_mark()) / NEAR_PART).min(NEAR_MOST);
            if taken < self.high_mark().saturating_sub(near) {
                return;
            }
            let (missing, now) = (taken.saturating_sub(self.low_mark()), self.now());
            let emergency = self.follower.reason() == BudgetReason::Emergency;
            let victims = {
                let mut residency = self.residency.lock();
                match () {
                    () if emergency => residency.surrender(missing, now),
                    () if taken > self.high_mark() => residency.reclaim(missing, now),
                    // What the policy keeps is not too much: what lands just now is, and goes when it has.
                    () => residency.trim(missing, now),
                }
            };
            if victims.is_empty() {
                return;
            }
            self.evict(&victims);
            if emergency {
                self.drop_held(&victims);
            }
        }
    }

    /// Of what had to go and is held by clients, none gets a new one: the memory comes back as soon as the last of those
    /// lets go.
    pub(super) fn drop_held(self: &Arc<Self>, victims: &[Victim]) {
        for generation in victims.iter().filter_map(|victim| self.generation_of(victim.file)) {
            if generation.marked_held.load(Ordering::Relaxed) && !generation.is_dead() {
                tracing::warn!(file = %generation.file_id(), "out of memory: a file that programs hold goes with them");
                self.end(&generation);
            }
        }
    }

    /// Drops what nobody can open again, because its last name was taken away behind the mount.
    fn sweep(self: &Arc<Self>, generations: &[Arc<Generation>]) {
        for generation in generations {
            if generation.handles.load(Ordering::Acquire) == 0 && generation.is_unlinked() {
                self.end(generation);
            }
        }
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
