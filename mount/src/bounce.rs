//! Callers that are sent back: answered with ESTALE, upon which the kernel looks the whole path up again and asks anew,
//! invisibly to the client.
//!
//! It does so once for a call, so that whoever was sent back must not be sent back again before it has its answer. A
//! second try is known by what the kernel does for it: from the same thread, it looks up every name of the path afresh,
//! and then asks about a number that it was answered with. Only who comes by a descriptor (`/proc/self/fd`, a working
//! directory) asks about the same number without a lookup. So nobody's second try depends on how long it takes.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use weightfs::failpoint;
use weightfs::journal::Record;

use crate::attr::SourceKey;
use crate::ledger::Ledger;
use crate::nodes::Name;

/// How long everybody's lookups take account of a writer that may never come back, and how long whatever a thread asks
/// is taken for the second try of what an earlier worker has sent it back for.
const RETURN: Duration = Duration::from_secs(30);
/// Threads that are remembered. Those that never came back, because they were killed or refused, go first.
const MOST: usize = 4096;
/// Lookups of one path that are remembered: more than a path has names.
const MOST_LOOKUPS: usize = 4096;

/// What for an open was sent back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    Read,
    Write,
}

#[derive(Clone, Debug)]
struct Pending {
    purpose: Purpose,
    file: SourceKey,
    /// What it had asked about.
    id: u64,
    /// The numbers that it was answered with since, each for a name.
    answers: Vec<(u64, Name)>,
    /// By an earlier worker, which knew what it has looked up since.
    inherited: bool,
    at: Instant,
}

impl Pending {
    fn is_recent(&self) -> bool {
        self.at.elapsed() < RETURN
    }

    fn name_of(&self, id: u64) -> Option<&Name> {
        self.answers.iter().rev().find(|(answer, _)| *answer == id).map(|(_, name)| name)
    }

    fn is_second_try(&self, id: u64) -> bool {
        self.inherited && self.is_recent()
            || if self.answers.is_empty() { self.id == id } else { self.name_of(id).is_some() }
    }
}

/// The threads that were sent back and have not got their answer.
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

    /// An earlier worker has sent this thread back.
    pub fn restore(&self, thread: u32, file: SourceKey, writes: bool) {
        let purpose = if writes { Purpose::Write } else { Purpose::Read };
        self.change(|by_thread| _ = by_thread.insert(thread, Pending { inherited: true, ..pending(0, file, purpose) }));
    }

    /// `thread`, which asked about `id`, is answered with ESTALE.
    pub fn bounce(&self, thread: u32, id: u64, file: SourceKey, purpose: Purpose) {
        let (mount, key) = (self.ledger.mount, (file.device, file.inode));
        self.ledger.note(&Record::Bounced { mount, thread, key, writes: purpose == Purpose::Write });
        failpoint::pass("bounce.noted");
        let mut lost = Vec::new();
        self.change(|by_thread| {
            if by_thread.len() >= MOST {
                lost.extend(by_thread.extract_if(|_, pending| !pending.is_recent()).map(|(thread, _)| thread));
            }
            by_thread.insert(thread, pending(id, file, purpose));
        });
        lost.into_iter().for_each(|thread| self.ledger.note(&Record::Landed { mount, thread }));
    }

    /// `thread` is answered with `id` for a name.
    pub fn looked_up(&self, thread: u32, id: u64, parent: u64, name: &OsStr) {
        if self.is_empty() {
            return;
        }
        if let Some(pending) = self.by_thread.lock().get_mut(&thread)
            && pending.answers.len() < MOST_LOOKUPS
        {
            pending.answers.push((id, Name { parent, name: name.to_owned() }));
        }
    }

    /// What `thread` was sent back for, if what it asks about `id` is its second try.
    pub fn second_try(&self, thread: u32, id: u64) -> Option<Purpose> {
        if self.is_empty() {
            return None;
        }
        self.by_thread.lock().get(&thread).filter(|pending| pending.is_second_try(id)).map(|pending| pending.purpose)
    }

    /// The name that `thread` has looked up for its second try, and for which it got `id`.
    pub fn name(&self, thread: u32, id: u64) -> Option<Name> {
        if self.is_empty() {
            return None;
        }
        self.by_thread.lock().get(&thread).and_then(|pending| pending.name_of(id).cloned())
    }

    /// Whether `thread` is about to come back to write, whatever its name leads to by then: its lookups are to be
    /// answered with a number that can be written to.
    pub fn is_to_write(&self, thread: u32) -> bool {
        let writes = |pending: &Pending| pending.purpose == Purpose::Write && (thread != 0 || pending.is_recent());
        !self.is_empty() && self.by_thread.lock().get(&thread).is_some_and(writes)
    }

    /// Whether some thread is about to come back to write to `file`.
    pub fn writes(&self, file: SourceKey) -> bool {
        let writes =
            |pending: &Pending| pending.file == file && pending.purpose == Purpose::Write && pending.is_recent();
        !self.is_empty() && self.by_thread.lock().values().any(writes)
    }

    /// `thread` has its answer. Threads that the kernel cannot name share a number, and another may still wait.
    pub fn landed(&self, thread: u32) {
        if self.is_empty() || thread == 0 {
            return;
        }
        let mut was_known = false;
        self.change(|by_thread| was_known = by_thread.remove(&thread).is_some());
        if was_known {
            self.ledger.note(&Record::Landed { mount: self.ledger.mount, thread });
        }
    }

    fn is_empty(&self) -> bool {
        self.count.load(Ordering::Acquire) == 0
    }

    fn change(&self, change: impl FnOnce(&mut HashMap<u32, Pending>)) {
        let mut by_thread = self.by_thread.lock();
        change(&mut by_thread);
        self.count.store(by_thread.len(), Ordering::Release);
    }
}

fn pending(id: u64, file: SourceKey, purpose: Purpose) -> Pending {
    Pending { purpose, file, id, answers: Vec::new(), inherited: false, at: Instant::now() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bounced() -> (Bounced, [SourceKey; 2]) {
        (Bounced::new(Ledger::of_nobody()), [1, 2].map(|inode| SourceKey { device: 0, inode }))
    }

    #[test]
    fn a_bounced_thread_is_known_until_it_lands() {
        let (bounced, [file, other]) = bounced();
        assert_eq!(bounced.second_try(7, 1), None);
        bounced.bounce(7, 1, file, Purpose::Write);
        bounced.bounce(8, 2, other, Purpose::Read);
        assert!(bounced.writes(file) && !bounced.writes(other));
        assert!(bounced.is_to_write(7) && !bounced.is_to_write(8));
        let found = [(7, 1), (8, 2), (9, 1)].map(|(thread, id)| bounced.second_try(thread, id));
        assert_eq!(found, [Some(Purpose::Write), Some(Purpose::Read), None]);
        bounced.bounce(7, 1, file, Purpose::Read);
        assert!(!bounced.writes(file) && !bounced.is_to_write(7));
        bounced.landed(7);
        assert_eq!([bounced.second_try(7, 1), bounced.second_try(8, 2)], [None, Some(Purpose::Read)]);
    }

    #[test]
    fn a_second_try_is_about_what_was_looked_up_for_it() {
        let (bounced, [file, _]) = bounced();
        bounced.looked_up(7, 5, 1, OsStr::new("before"));
        bounced.bounce(7, 1, file, Purpose::Read);
        assert_eq!(bounced.second_try(7, 2), None, "another file, by an entry that the kernel still believes");
        bounced.looked_up(7, 10, 1, OsStr::new("folder"));
        bounced.looked_up(8, 12, 1, OsStr::new("of somebody else"));
        bounced.looked_up(7, 11, 10, OsStr::new("file"));
        let found = [1, 10, 11, 12].map(|id| bounced.second_try(7, id).is_some());
        assert_eq!(found, [false, true, true, false]);
        assert_eq!(bounced.name(7, 11), Some(Name { parent: 10, name: "file".into() }));
    }

    #[test]
    fn what_an_earlier_worker_has_answered_is_not_known() {
        let (bounced, [file, _]) = bounced();
        bounced.restore(7, file, true);
        assert_eq!(bounced.second_try(7, 99), Some(Purpose::Write));
        assert!(bounced.is_to_write(7));
    }

    #[test]
    fn threads_without_a_name_do_not_land() {
        let (bounced, [file, _]) = bounced();
        bounced.bounce(0, 1, file, Purpose::Write);
        bounced.landed(0);
        assert!(bounced.is_to_write(0) && bounced.writes(file));
    }
}
