//! The thread by which the budget follows the machine.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use super::{Store, StoreEvent};
use crate::machine::{Machine, Reading};
use crate::pressure::{Budget, BudgetReason, Limits, Sample};

/// How often it looks: a program that fills its memory at some GB/s is met before the reserve is used up.
const INTERVAL: Duration = Duration::from_millis(100);

/// A change of less than this part of `--ram` is not worth a line in the log.
const TOLD_PART: u64 = 16;

/// What the budget is bounded by, and the thread that finds out. Without one the budget stays as it is.
#[derive(Default)]
pub(super) struct Follower {
    law: Mutex<Option<Law>>,
    stopping: Arc<(Mutex<bool>, Condvar)>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

struct Law {
    machine: Machine,
    budget: Budget,
    /// What the log said last.
    told: u64,
    /// What the budget was fitted to last.
    reading: Option<Reading>,
    /// The machine cannot be looked at: said once.
    blind: bool,
}

impl Follower {
    pub(super) fn start(&self, store: &Arc<Store>, reserve: u64) -> std::io::Result<()> {
        let limits = Limits { ram: store.config.budget, reserve };
        let told = store.config.budget;
        *self.law.lock() =
            Some(Law { machine: Machine::find(), budget: Budget::new(limits), told, reading: None, blind: false });
        // Whoever asks first gets the budget of this machine.
        store.follow_machine();
        let (store, stopping) = (Arc::downgrade(store), Arc::clone(&self.stopping));
        let thread = std::thread::Builder::new().name("budget".to_owned()).spawn(move || run(&store, &stopping))?;
        *self.thread.lock() = Some(thread);
        Ok(())
    }

    pub(super) fn stop(&self) {
        *self.stopping.0.lock() = true;
        self.stopping.1.notify_one();
        if let Some(thread) = self.thread.lock().take()
            && thread.thread().id() != std::thread::current().id()
            && thread.join().is_err()
        {
            tracing::error!("the thread that follows the machine panicked");
        }
    }

    pub(super) fn reading(&self) -> Option<Reading> {
        self.law.lock().as_ref()?.reading
    }

    /// Bounds the budget from now on by `ram` bytes. False where nothing follows the machine.
    fn limit(&self, ram: u64) -> bool {
        let mut law = self.law.lock();
        let Some(law) = law.as_mut() else { return false };
        law.budget.limit(ram);
        true
    }

    pub(super) fn reason(&self) -> BudgetReason {
        self.law.lock().as_ref().and_then(|law| law.budget.reason()).unwrap_or(BudgetReason::Ram)
    }
}

fn run(store: &Weak<Store>, (stopping, changed): &(Mutex<bool>, Condvar)) {
    loop {
        {
            let mut stopping = stopping.lock();
            if !*stopping {
                changed.wait_for(&mut stopping, INTERVAL);
            }
            if *stopping {
                return;
            }
        }
        let Some(store) = store.upgrade() else { return };
        store.follow_machine();
    }
}

impl Store {
    fn follow_machine(self: &Arc<Self>) {
        // Before the law is held: whoever holds the policy may ask for the reason.
        let pinned = self.residency.lock().pinned_bytes();
        let mut held = self.follower.law.lock();
        let Some(law) = held.as_mut() else { return };
        let Reading { available, group, psi } = match law.machine.look() {
            Ok(reading) => reading,
            Err(error) => {
                if !std::mem::replace(&mut law.blind, true) {
                    tracing::warn!(%error, "the budget stays as it is");
                }
                return;
            }
        };
        law.blind = false;
        law.reading = Some(Reading { available, group, psi });
        // What it occupies is not available to anyone, also while clients hold it.
        let arena = self.arena_used().unwrap_or_else(|| self.taken());
        let reason_before = law.budget.reason();
        let budget = law.budget.update(&Sample { available, group, psi, arena, pinned }, self.now());
        let reason = law.budget.reason().unwrap_or(BudgetReason::Ram);
        let is_alarm = |reason| matches!(reason, BudgetReason::Emergency | BudgetReason::Pins);
        let worth_telling = law.told.abs_diff(budget) >= (self.config.budget / TOLD_PART).max(1)
            || is_alarm(reason) && reason_before != Some(reason);
        if worth_telling {
            law.told = budget;
            tracing::info!(budget, arena, available, %reason, "the budget has changed");
            self.happened(StoreEvent::Budget { bytes: budget, reason });
        }
        drop(held);
        self.adopt(budget);
    }

    /// Bounds the arena by `bytes`, or no longer by more than what it was started with.
    pub(super) fn apply_limit(self: &Arc<Self>, bytes: Option<u64>) {
        let ram = bytes.unwrap_or(u64::MAX).min(self.config.budget);
        match self.follower.limit(ram) {
            true => self.follow_machine(),
            false => self.adopt(ram),
        }
    }

    fn adopt(&self, budget: u64) {
        let before = self.budget.swap(budget, Ordering::AcqRel);
        if budget != before {
            let keepable = self.keepable();
            self.residency.lock().set_budget(keepable);
        }
        if budget < before {
            self.keeper.reclaim();
        }
    }

    /// Bytes that the policy may keep for good: up to the low mark, less what is read past the arena.
    pub(super) fn keepable(&self) -> u64 {
        self.low_mark().saturating_sub(self.passing())
    }
}
