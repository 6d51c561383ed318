//! Callers that are sent back: answered with ESTALE, upon which the kernel looks the whole path up again and asks anew,
//! invisibly to the client.
//!
//! It does so once for a call, so that whoever was sent back must not be sent back again before it has its answer. A
//! second try is known by what the kernel does for it: from the same thread, it looks up every name of the path afresh,
//! and then asks about a number that it was answered with. Only who comes by a descriptor (`/proc/self/fd`, a working
//! directory) asks about the same number without a lookup. So nobody's second try depends on how long it takes.

use std::collections::{HashMap, VecDeque};
use std::ffi::OsStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use weightfs::failpoint;
use weightfs::journal::Record;

use crate::attr::SourceKey;
use crate::ledger::Ledger;
use crate::nodes::{AtHand, Name};

/// How long everybody's lookups take account of a writer that may never come back, and how long whatever a thread asks
/// is taken for the second try of what an earlier worker has sent it back for.
const RETURN: Duration = Duration::from_secs(30);
/// Threads that are remembered. Those that never came back, because they were killed or refused, go first.
const MOST: usize = 4096;
/// Lookups that are remembered of one thread, the latest: what it asks about is what it has just looked up.
const MOST_LOOKUPS: usize = 64;
/// How long after an answer about a file a request of the same thread may be part of the same call: an open follows the
/// question for rights at once.
const SAME_CALL: Duration = Duration::from_secs(1);

/// What for a caller was sent back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// To open it for reading.
    Read,
    /// To open it for writing, or to change it.
    Write,
    /// It had only looked at what lies on the way, and may open it in any way.
    Unknown,
}

#[derive(Clone, Debug)]
struct Pending {
    purpose: Purpose,
    file: SourceKey,
    /// What it had asked about.
    id: u64,
    /// The numbers that it was answered with since, each for a name.
    answers: VecDeque<(u64, Name)>,
    /// The file that was looked up last: it may be replaced before it is asked about.
    at_hand: Option<Arc<AtHand>>,
    /// Something that was looked up was answered, which may have been all that the caller wanted: when, and whether it
    /// was a file, behind which no path goes on.
    answered: Option<(Instant, bool)>,
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

    /// Whether its second try is certainly over.
    fn is_over(&self) -> bool {
        self.answered.is_some_and(|(at, file)| at.elapsed() >= if file { SAME_CALL } else { RETURN })
    }

    fn is_second_try(&self, id: u64) -> bool {
        if self.is_over() {
            return false;
        }
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
        let purpose = if writes { Purpose::Write } else { Purpose::Unknown };
        self.change(|by_thread| _ = by_thread.insert(thread, Pending { inherited: true, ..pending(0, file, purpose) }));
    }

    /// `thread`, which asked about `id`, is answered with ESTALE.
    pub fn bounce(&self, thread: u32, id: u64, file: SourceKey, purpose: Purpose) {
        let (mount, key) = (self.ledger.mount, (file.device, file.inode));
        self.ledger.note(&Record::Bounced { mount, thread, key, writes: purpose == Purpose::Write });
        failpoint::pass("bounce.noted");
        self.tidy();
        let mut lost = Vec::new();
        self.change(|by_thread| {
            if by_thread.len() >= MOST {
                let gone = |pending: &Pending| pending.is_over() || !pending.is_recent();
                lost.extend(by_thread.extract_if(|_, pending| gone(pending)).map(|(thread, _)| thread));
            }
            if by_thread.len() >= MOST
                && let Some(oldest) = by_thread.iter().min_by_key(|(_, pending)| pending.at).map(|(thread, _)| *thread)
            {
                by_thread.remove(&oldest);
                lost.push(oldest);
            }
            by_thread.insert(thread, pending(id, file, purpose));
        });
        lost.into_iter().for_each(|thread| self.ledger.note(&Record::Landed { mount, thread }));
    }

    /// Lets go of what is kept for threads that have their answer, or that may never come back.
    pub fn tidy(&self) {
        if self.is_empty() {
            return;
        }
        let mut over = Vec::new();
        self.change(|by_thread| {
            over.extend(by_thread.extract_if(|_, pending| pending.is_over()).map(|(thread, _)| thread));
            by_thread.values_mut().filter(|pending| !pending.is_recent()).for_each(|pending| pending.at_hand = None);
        });
        let mount = self.ledger.mount;
        over.into_iter().for_each(|thread| self.ledger.note(&Record::Landed { mount, thread }));
    }

    /// Whether `thread` was sent back and looks its path up again.
    pub fn looks_again(&self, thread: u32) -> bool {
        !self.is_empty() && thread != 0 && self.by_thread.lock().contains_key(&thread)
    }

    /// `thread` is answered with `id` for a name, which is `at_hand` if it is a file. Threads that the kernel cannot name
    /// are not told from each other.
    pub fn looked_up(&self, thread: u32, id: u64, parent: u64, name: &OsStr, at_hand: Option<AtHand>) {
        if self.is_empty() || thread == 0 {
            return;
        }
        if let Some(pending) = self.by_thread.lock().get_mut(&thread) {
            if pending.answers.len() >= MOST_LOOKUPS {
                pending.answers.pop_front();
            }
            pending.answers.push_back((id, Name { parent, name: name.to_owned() }));
            pending.at_hand = at_hand.map(Arc::new);
            // The path goes on.
            pending.answered = None;
        }
    }

    /// `thread` begins to look a name up: if a file was answered for before, that is for another call.
    pub fn walks(&self, thread: u32) {
        let over = |pending: &Pending| pending.is_over() || pending.answered.is_some_and(|(_, file)| file);
        if !self.is_empty() && self.by_thread.lock().get(&thread).is_some_and(over) {
            self.landed(thread);
        }
    }

    /// `thread` has the answer to a request about `id` that may have been its last one.
    pub fn answered(&self, thread: u32, id: u64, is_file: impl FnOnce() -> bool) {
        if self.is_empty() || thread == 0 {
            return;
        }
        let is_file = is_file();
        if let Some(pending) = self.by_thread.lock().get_mut(&thread)
            && pending.answered.is_none()
            && pending.name_of(id).is_some()
        {
            pending.answered = Some((Instant::now(), is_file));
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
        self.by_thread
            .lock()
            .get(&thread)
            .filter(|pending| !pending.is_over())
            .and_then(|pending| pending.name_of(id).cloned())
    }

    /// Whether `thread` may be about to come back to write, whatever its name leads to by then: its lookups are to be
    /// answered with a number that can be written to.
    pub fn may_write(&self, thread: u32) -> bool {
        let may = |pending: &Pending| pending.purpose != Purpose::Read && (thread != 0 || pending.is_recent());
        !self.is_empty() && self.by_thread.lock().get(&thread).is_some_and(may)
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
    Pending {
        purpose,
        file,
        id,
        answers: VecDeque::new(),
        at_hand: None,
        answered: None,
        inherited: false,
        at: Instant::now(),
    }
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
        assert!(bounced.may_write(7) && !bounced.may_write(8));
        let found = [(7, 1), (8, 2), (9, 1)].map(|(thread, id)| bounced.second_try(thread, id));
        assert_eq!(found, [Some(Purpose::Write), Some(Purpose::Read), None]);
        bounced.bounce(7, 1, file, Purpose::Read);
        assert!(!bounced.writes(file) && !bounced.may_write(7));
        bounced.landed(7);
        assert_eq!([bounced.second_try(7, 1), bounced.second_try(8, 2)], [None, Some(Purpose::Read)]);
    }

    #[test]
    fn a_second_try_is_about_what_was_looked_up_for_it() {
        let (bounced, [file, _]) = bounced();
        bounced.looked_up(7, 5, 1, OsStr::new("before"), None);
        bounced.bounce(7, 1, file, Purpose::Read);
        assert_eq!(bounced.second_try(7, 2), None, "another file, by an entry that the kernel still believes");
        bounced.looked_up(7, 10, 1, OsStr::new("folder"), None);
        bounced.looked_up(8, 12, 1, OsStr::new("of somebody else"), None);
        bounced.looked_up(7, 11, 10, OsStr::new("file"), None);
        let found = [1, 10, 11, 12].map(|id| bounced.second_try(7, id).is_some());
        assert_eq!(found, [false, true, true, false]);
        assert_eq!(bounced.name(7, 11), Some(Name { parent: 10, name: "file".into() }));
    }

    #[test]
    fn what_comes_after_the_answer_is_another_call() {
        let (bounced, [file, _]) = bounced();
        bounced.bounce(7, 1, file, Purpose::Read);
        bounced.looked_up(7, 10, 1, OsStr::new("folder"), None);
        bounced.answered(7, 10, || false);
        bounced.walks(7);
        bounced.looked_up(7, 11, 10, OsStr::new("file"), None);
        bounced.answered(7, 12, || true);
        bounced.walks(7);
        assert!(bounced.second_try(7, 11).is_some(), "nothing that ends the path was answered");
        bounced.answered(7, 11, || true);
        assert!(bounced.second_try(7, 11).is_some(), "the open behind the question for rights");
        let long_ago = Instant::now().checked_sub(SAME_CALL).unwrap();
        bounced.by_thread.lock().get_mut(&7).unwrap().answered = Some((long_ago, true));
        assert_eq!((bounced.second_try(7, 11), bounced.name(7, 11)), (None, None));
        bounced.walks(7);
        assert!(bounced.is_empty());
    }

    #[test]
    fn who_may_do_anything_is_answered_as_who_writes() {
        let (bounced, [file, _]) = bounced();
        bounced.bounce(7, 1, file, Purpose::Unknown);
        assert!(bounced.may_write(7) && !bounced.writes(file));
    }

    #[test]
    fn what_is_over_is_let_go() {
        let (bounced, [file, _]) = bounced();
        bounced.bounce(7, 1, file, Purpose::Read);
        bounced.looked_up(7, 11, 1, OsStr::new("file"), None);
        bounced.answered(7, 11, || true);
        bounced.tidy();
        assert!(!bounced.is_empty(), "its open may follow");
        let long_ago = Instant::now().checked_sub(SAME_CALL).unwrap();
        bounced.by_thread.lock().get_mut(&7).unwrap().answered = Some((long_ago, true));
        bounced.tidy();
        assert!(bounced.is_empty());
    }

    #[test]
    fn there_are_never_more_than_so_many() {
        let (bounced, [file, _]) = bounced();
        for thread in 1..=MOST as u32 + 10 {
            bounced.bounce(thread, 1, file, Purpose::Read);
        }
        assert_eq!(bounced.by_thread.lock().len(), MOST);
        assert!(bounced.second_try(MOST as u32 + 10, 1).is_some() && bounced.second_try(1, 1).is_none());
        for id in 0..100 {
            bounced.looked_up(20, id, 1, OsStr::new("x"), None);
        }
        assert!(bounced.second_try(20, 99).is_some() && bounced.second_try(20, 0).is_none());
    }

    #[test]
    fn what_an_earlier_worker_has_answered_is_not_known() {
        let (bounced, [file, _]) = bounced();
        bounced.restore(7, file, true);
        assert_eq!(bounced.second_try(7, 99), Some(Purpose::Write));
        assert!(bounced.may_write(7));
    }

    #[test]
    fn threads_without_a_name_do_not_land() {
        let (bounced, [file, _]) = bounced();
        bounced.bounce(0, 1, file, Purpose::Write);
        bounced.landed(0);
        assert!(bounced.may_write(0) && bounced.writes(file));
    }
}
