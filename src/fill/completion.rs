//! The threads that tell who waited. They copy and reply, which no thread that reads should do.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};

use parking_lot::{Condvar, Mutex};

use super::queue::Finished;

#[derive(Default)]
struct State {
    waiting: [VecDeque<Finished>; 3],
    closed: bool,
}

/// Ended jobs on their way to the completion threads, demand first.
#[derive(Default)]
pub(crate) struct Completions {
    state: Mutex<State>,
    changed: Condvar,
}

impl Completions {
    pub fn push(&self, finished: Vec<Finished>) {
        if finished.is_empty() {
            return;
        }
        let mut state = self.state.lock();
        for finished in finished {
            state.waiting[finished.class as usize].push_back(finished);
            self.changed.notify_one();
        }
    }

    /// Nothing more will be pushed.
    pub fn close(&self) {
        self.state.lock().closed = true;
        self.changed.notify_all();
    }

    /// Works until closed and empty.
    pub fn run(&self) {
        while let Some(Finished { done, result, held, .. }) = self.take() {
            drop(held);
            if catch_unwind(AssertUnwindSafe(|| done(result))).is_err() {
                tracing::error!("a completed read could not be answered: its handler panicked");
            }
        }
    }

    fn take(&self) -> Option<Finished> {
        let mut state = self.state.lock();
        loop {
            if let Some(finished) = state.waiting.iter_mut().find_map(VecDeque::pop_front) {
                return Some(finished);
            }
            if state.closed {
                return None;
            }
            self.changed.wait(&mut state);
        }
    }
}
