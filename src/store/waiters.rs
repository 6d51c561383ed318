//! Who waits for extents that are being filled.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;

use crate::fill::Class;
use crate::ids::ExtentIndex;

/// Called once, when nothing that it waited for is being filled any more: successfully or not, it has to look.
pub type Then = Box<dyn FnOnce() + Send>;

/// One reader, or one open, that waits for a number of extents.
pub struct Waiter {
    left: AtomicUsize,
    then: Mutex<Option<Then>>,
}

impl Waiter {
    /// The waiter holds itself back until [`Waiter::settle`] was called once by its maker.
    pub fn new(then: Then) -> Arc<Self> {
        Arc::new(Self { left: AtomicUsize::new(1), then: Mutex::new(Some(then)) })
    }

    /// One thing more to wait for.
    pub fn expect_one(&self) {
        self.left.fetch_add(1, Ordering::AcqRel);
    }

    /// One thing less to wait for. The last one runs what was waiting, on this thread.
    pub fn settle(&self) {
        if self.left.fetch_sub(1, Ordering::AcqRel) == 1
            && let Some(then) = self.then.lock().take()
        {
            then();
        }
    }
}

/// Who waits for one extent, and the highest class of them.
struct Waiting {
    class: Class,
    waiters: Vec<Arc<Waiter>>,
}

/// The waiters of one generation, by extent.
#[derive(Default)]
pub struct Waiters {
    by_extent: Mutex<HashMap<ExtentIndex, Waiting>>,
}

impl Waiters {
    /// Adds a waiter for `extent` if it is being filled by then. `is_filling` runs under the lock that
    /// [`Waiters::settle`] takes after the fill has ended, so that no end is missed.
    pub fn wait_if(
        &self,
        extent: ExtentIndex,
        waiter: &Arc<Waiter>,
        class: Class,
        is_filling: impl FnOnce() -> bool,
    ) -> bool {
        let mut by_extent = self.by_extent.lock();
        if !is_filling() {
            return false;
        }
        waiter.expect_one();
        let waiting = by_extent.entry(extent).or_insert(Waiting { class, waiters: Vec::new() });
        waiting.class = waiting.class.min(class);
        waiting.waiters.push(Arc::clone(waiter));
        true
    }

    /// The highest class in which somebody waits for one of `extents`.
    pub fn wanted(&self, extents: &Range<ExtentIndex>) -> Option<Class> {
        let by_extent = self.by_extent.lock();
        extents.clone().filter_map(|extent| by_extent.get(&extent)).map(|waiting| waiting.class).min()
    }

    /// The fill of `extent` has ended, and its state says how.
    pub fn settle(&self, extent: ExtentIndex) {
        let waiting = self.by_extent.lock().remove(&extent);
        for waiter in waiting.into_iter().flat_map(|waiting| waiting.waiters) {
            waiter.settle();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;

    #[test]
    fn a_waiter_runs_once_after_all_it_waits_for() {
        let ran = Arc::new(AtomicBool::new(false));
        let waiters = Waiters::default();
        let flag = Arc::clone(&ran);
        let waiter = Waiter::new(Box::new(move || assert!(!flag.swap(true, Ordering::SeqCst))));
        assert!(waiters.wait_if(1, &waiter, Class::Prefetch, || true));
        assert!(waiters.wait_if(2, &waiter, Class::OpenWait, || true));
        assert!(!waiters.wait_if(3, &waiter, Class::Demand, || false));
        assert_eq!(
            [0..2, 0..3, 3..5].map(|run| waiters.wanted(&run)),
            [Some(Class::Prefetch), Some(Class::OpenWait), None]
        );
        waiters.settle(1);
        waiters.settle(1);
        waiter.settle();
        assert!(!ran.load(Ordering::SeqCst));
        waiters.settle(2);
        assert!(ran.load(Ordering::SeqCst));
    }
}
