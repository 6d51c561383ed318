//! Bounced opens: answered with ESTALE, upon which the kernel looks the name up again and opens what it then gets,
//! invisibly to the client.
//!
//! It does so once for an open, so that a thread which was bounced must not be bounced again until it has its answer.
//! Who was bounced, and why, is remembered by thread: the lookup and the second open come from the same one.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use weightfs::failpoint;
use weightfs::journal::Record;

use crate::attr::SourceKey;
use crate::ledger::Ledger;

/// How long a bounced thread may take to come back. Much longer than it ever does, unless it never comes back: then its
/// next open of anything is taken for the second try of this one, which costs that open at most some speed.
const RETURN: Duration = Duration::from_secs(30);

/// What an open was bounced for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    Read,
    Write,
}

#[derive(Clone, Copy, Debug)]
struct Pending {
    purpose: Purpose,
    file: SourceKey,
    at: Instant,
}

impl Pending {
    fn lasts(&self) -> bool {
        self.at.elapsed() < RETURN
    }
}

/// The threads that were bounced and have not come back.
#[derive(Debug)]
pub struct Bounced {
    ledger: Ledger,
    by_thread: Mutex<HashMap<u32, Pending>>,
    /// How many there are, so that nobody takes the lock when there are none.
    count: AtomicUsize,
}

impl Bounced {
    pub fn new(ledger: Ledger) -> Self {
        Self { ledger, by_thread: Mutex::default(), count: AtomicUsize::new(0) }
    }

    /// An earlier worker has bounced this thread, a moment ago as far as is known.
    pub fn restore(&self, thread: u32, file: SourceKey, writes: bool) {
        let purpose = if writes { Purpose::Write } else { Purpose::Read };
        self.change(|by_thread| _ = by_thread.insert(thread, Pending { purpose, file, at: Instant::now() }));
    }

    /// `thread` is answered with ESTALE.
    pub fn bounce(&self, thread: u32, file: SourceKey, purpose: Purpose) {
        let (mount, key) = (self.ledger.mount, (file.device, file.inode));
        self.ledger.note(&Record::Bounced { mount, thread, key, writes: purpose == Purpose::Write });
        failpoint::pass("bounce.noted");
        self.change(|by_thread| {
            by_thread.retain(|_, pending| pending.lasts());
            by_thread.insert(thread, Pending { purpose, file, at: Instant::now() });
        });
    }

    /// For what `thread` was bounced and has not come back yet.
    pub fn of(&self, thread: u32) -> Option<Purpose> {
        if self.count.load(Ordering::Acquire) == 0 {
            return None;
        }
        self.by_thread.lock().get(&thread).filter(|pending| pending.lasts()).map(|pending| pending.purpose)
    }

    /// Whether some thread is about to come back to write to `file`. Lookups of one name that run at once share their
    /// answer, so all of them are to get the number that can be written to.
    pub fn writes(&self, file: SourceKey) -> bool {
        self.count.load(Ordering::Acquire) > 0
            && self
                .by_thread
                .lock()
                .values()
                .any(|pending| pending.file == file && pending.purpose == Purpose::Write && pending.lasts())
    }

    /// `thread` has its answer.
    pub fn landed(&self, thread: u32) {
        if self.count.load(Ordering::Acquire) > 0 {
            let mut was_known = false;
            self.change(|by_thread| was_known = by_thread.remove(&thread).is_some());
            if was_known {
                self.ledger.note(&Record::Landed { mount: self.ledger.mount, thread });
            }
        }
    }

    fn change(&self, change: impl FnOnce(&mut HashMap<u32, Pending>)) {
        let mut by_thread = self.by_thread.lock();
        change(&mut by_thread);
        self.count.store(by_thread.len(), Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bounced_thread_is_known_until_it_lands() {
        let bounced = Bounced::new(Ledger::of_nobody());
        let [file, other] = [1, 2].map(|inode| SourceKey { device: 0, inode });
        assert_eq!(bounced.of(7), None);
        bounced.bounce(7, file, Purpose::Write);
        bounced.bounce(8, other, Purpose::Read);
        assert!(bounced.writes(file) && !bounced.writes(other));
        assert_eq!((bounced.of(7), bounced.of(8), bounced.of(9)), (Some(Purpose::Write), Some(Purpose::Read), None));
        bounced.bounce(7, file, Purpose::Read);
        assert!(!bounced.writes(file));
        assert_eq!(bounced.of(7), Some(Purpose::Read));
        bounced.landed(7);
        assert_eq!((bounced.of(7), bounced.of(8)), (None, Some(Purpose::Read)));
    }
}
