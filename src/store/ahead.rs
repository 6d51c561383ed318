//! Reads what is queued ahead of its use: in the order of the queue, a little at a time, as far as the policy admits.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use super::Store;
use super::keeper;
use crate::fill::Class;
use crate::residency::UseKind;
use crate::units::EXTENT_SIZE;

/// What is asked for at a time, in extents: enough to keep a fast device busy, and little enough that what it displaces
/// goes no sooner than it must.
const STEP: u64 = (256 << 20) / EXTENT_SIZE;

/// After a step that brought nothing it is tried again after so long, each time after twice as long.
const SHORTEST_PAUSE: Duration = Duration::from_millis(200);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

#[derive(Default)]
pub(super) struct Ahead {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// A step is under way.
    running: bool,
    /// How often in a row nothing came of it, and until when it rests for that.
    fruitless: u32,
    rests_until: Duration,
}

impl Ahead {
    /// Something has changed: what was not to be had may be now.
    pub(super) fn encourage(&self) {
        let mut state = self.state.lock();
        state.fruitless = 0;
        state.rests_until = Duration::ZERO;
    }

    fn begin(&self, now: Duration) -> bool {
        let mut state = self.state.lock();
        let begins = !state.running && state.rests_until <= now;
        state.running |= begins;
        begins
    }

    fn end(&self, fruitless: bool, now: Duration) {
        let mut state = self.state.lock();
        state.running = false;
        if fruitless {
            state.rests_until = now + (SHORTEST_PAUSE * 2u32.pow(state.fruitless.min(16))).min(LONGEST_PAUSE);
            state.fruitless += 1;
        }
    }
}

impl Store {
    /// Reads on what is queued, unless somebody does.
    pub(super) fn read_queue_ahead(self: &Arc<Self>) {
        if self.hints.ahead.begin(self.now()) {
            let store = Arc::clone(self);
            // Only chooses: what waits for a device is handed to that device's lane.
            self.background.spawn(keeper::TIMERS, move |runs| match runs {
                true => store.read_step_ahead(),
                false => store.hints.ahead.end(false, store.now()),
            });
        }
    }

    fn read_step_ahead(self: &Arc<Self>) {
        let queued = self.queued_generations();
        let next = self.residency.lock().next_missing(STEP, |file| !queued.contains_key(&file));
        let Some((file, extents)) = next else { return self.hints.ahead.end(false, self.now()) };
        let generation = &queued[&file];
        tracing::debug!(file = %generation.file_id(), extents = extents.count(), "reading ahead of the queue");
        let before = generation.extents.present();
        self.fill(generation, extents.runs(), Class::Prefetch, UseKind::Load);
        let (first, last) = (extents.runs().first(), extents.runs().last());
        let around = first.map_or(0, |run| run.start)..last.map_or(0, |run| run.end);
        let (store, filled) = (Arc::clone(self), Arc::clone(generation));
        self.when_settled(generation, around, Class::Prefetch, move || {
            let fruitless = filled.extents.present() <= before;
            store.hints.ahead.end(fruitless, store.now());
            if !fruitless {
                store.read_queue_ahead();
            }
        });
    }
}
