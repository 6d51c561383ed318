//! Which changes are being carried out, and by which threads: a table in memory that outlives the process.
//!
//! A thread that is killed inside a system call first ends that call, which can take long. The next worker, which is
//! asked for the same change again, must not come before it: what it makes could be undone by what is still to come.

use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::log::{Journal, UNDERWAY};

/// How often it is looked whether a thread has ended.
const LOOK: Duration = Duration::from_millis(2);

/// Of processes and threads: the kernel's numbers have 22 bits at most.
const NUMBER: u32 = 24;

/// A change that is being carried out by this thread, for as long as this lives.
#[derive(Debug)]
pub struct Underway<'a> {
    journal: &'a Journal,
    /// None where the table is full: more threads than there are.
    entry: Option<u32>,
}

/// What an entry says, in one word: which mount, which process, which thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Who {
    mount: u8,
    process: u32,
    thread: u32,
}

impl Who {
    fn word(self) -> u64 {
        u64::from(self.mount) << (2 * NUMBER) | u64::from(self.process) << NUMBER | u64::from(self.thread)
    }

    fn of(word: u64) -> Self {
        let number = |shift: u32| (word >> shift) as u32 & ((1 << NUMBER) - 1);
        Self { mount: (word >> (2 * NUMBER)) as u8, process: number(NUMBER), thread: number(0) }
    }

    /// Nothing is done by it any more.
    fn has_ended(self) -> bool {
        !Path::new(&format!("/proc/{}/task/{}", self.process, self.thread)).exists()
    }
}

impl Journal {
    /// The request `unique` of `mount` is about to be carried out by this thread. One that may have been `resent` waits
    /// until no thread of an earlier worker is still at it.
    pub fn begin(&self, mount: u8, unique: u64, resent: bool) -> Underway<'_> {
        let process = std::process::id();
        if resent {
            while self.is_underway(mount, unique, process) {
                std::thread::sleep(LOOK);
            }
        }
        let thread = rustix::thread::gettid().as_raw_nonzero().get() as u32;
        let word = Who { mount, process, thread }.word();
        // Different threads begin to look at different places.
        let claimed = (0..UNDERWAY).map(|step| (thread + step) % UNDERWAY).find(|entry| {
            let [who, _] = self.underway(*entry);
            who.load(Ordering::Relaxed) == 0
                && who.compare_exchange(0, word, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        });
        if let Some(entry) = claimed {
            self.underway(entry)[1].store(unique, Ordering::Release);
        }
        Underway { journal: self, entry: claimed }
    }

    /// Whether a thread of another process than `process` is at the request.
    fn is_underway(&self, mount: u8, unique: u64, process: u32) -> bool {
        (0..UNDERWAY).any(|entry| {
            let [who, what] = self.underway(entry);
            let (who, what) = (Who::of(who.load(Ordering::Acquire)), what.load(Ordering::Acquire));
            (who.mount, what) == (mount, unique) && who.process != process && who.process != 0 && !who.has_ended()
        })
    }

    /// Forgets the threads of earlier workers that have ended.
    pub(super) fn forget_ended(&self) {
        for entry in 0..UNDERWAY {
            let [who, what] = self.underway(entry);
            let word = who.load(Ordering::Acquire);
            if word != 0 && Who::of(word).has_ended() {
                what.store(0, Ordering::Release);
                who.store(0, Ordering::Release);
            }
        }
    }
}

impl Drop for Underway<'_> {
    fn drop(&mut self) {
        if let Some(entry) = self.entry {
            let [who, what] = self.journal.underway(entry);
            what.store(0, Ordering::Release);
            who.store(0, Ordering::Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::journal::JournalFiles;
    use std::sync::mpsc::channel;

    #[test]
    fn a_word_says_who() {
        let who = Who { mount: 255, process: (1 << 22) - 1, thread: 1 << 21 };
        assert_eq!(Who::of(who.word()), who);
    }

    #[test]
    fn what_is_over_is_not_waited_for() {
        let (journal, _) = Journal::open(JournalFiles::create().unwrap()).unwrap();
        drop(journal.begin(0, 4, false));
        assert!((0..UNDERWAY).all(|entry| journal.underway(entry).iter().all(|w| w.load(Ordering::Relaxed) == 0)));
        // By this very process: not by an earlier worker.
        let _first = journal.begin(0, 6, false);
        drop(journal.begin(0, 6, true));
    }

    #[test]
    fn a_thread_of_another_process_is_waited_for_until_it_ends() {
        let (journal, _) = Journal::open(JournalFiles::create().unwrap()).unwrap();
        let mut other = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        let who = Who { mount: 1, process: other.id(), thread: other.id() };
        journal.underway(7)[1].store(8, Ordering::Release);
        journal.underway(7)[0].store(who.word(), Ordering::Release);
        journal.forget_ended();
        assert!(journal.is_underway(1, 8, std::process::id()));
        // Other requests, other mounts, and what nobody has begun before.
        drop([journal.begin(1, 10, true), journal.begin(0, 8, true), journal.begin(1, 8, false)]);
        std::thread::scope(|scope| {
            let (done, begun) = channel();
            let journal = &journal;
            scope.spawn(move || {
                drop(journal.begin(1, 8, true));
                done.send(()).unwrap();
            });
            assert!(begun.recv_timeout(Duration::from_millis(50)).is_err());
            other.kill().unwrap();
            other.wait().unwrap();
            begun.recv().unwrap();
        });
        journal.forget_ended();
        assert_eq!(journal.underway(7)[0].load(Ordering::Acquire), 0);
    }
}
