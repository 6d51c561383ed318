//! Makes what the kernel believes expire, from a thread of its own: an expiry takes locks that the kernel may hold while
//! it waits for one of our answers.
//!
//! An answer may have been on its way when the thing it speaks of changed. So everything is made to expire twice: at
//! once, and again when such answers have long arrived.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::ffi::OsString;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use fuser::{INodeNo, Notifier};
use weightfs::store::Generation;

use crate::fs::Fs;
use crate::nodes::ROOT;
use crate::notice::expire_entry;
use crate::watch::Change;

/// Changes that come together are answered together.
const GATHER: Duration = Duration::from_millis(10);
/// No answer is on its way for longer than this.
const AGAIN: Duration = Duration::from_millis(400);

/// How often what callers left behind is let go.
const TIDY: Duration = Duration::from_secs(5);

/// One thing that the kernel is to forget.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Expiry {
    /// What a name leads to; nothing any more where it is `gone`.
    Entry { directory: u64, name: OsString, gone: bool },
    /// Attributes, and pages where the content may have changed.
    Node { id: u64, pages: bool },
}

impl Expiry {
    /// As long as what a name leads to may be something new.
    fn lightly(self) -> Self {
        match self {
            Expiry::Entry { directory, name, .. } => Expiry::Entry { directory, name, gone: false },
            node => node,
        }
    }
}

/// Why.
#[derive(Debug)]
pub enum Cause {
    Changed(Change),
    Residency(Arc<Generation>),
    /// A file was written to of which the kernel keeps pages under other numbers.
    Written(u64),
    Stop,
}

#[derive(Debug)]
pub struct Invalidator {
    causes: Sender<Cause>,
    thread: Option<JoinHandle<()>>,
}

impl Invalidator {
    /// `device` is the one that `notifier` writes to.
    pub fn start(fs: Arc<Fs>, notifier: Notifier, device: OwnedFd) -> std::io::Result<Self> {
        let (causes, received) = channel();
        let kernel = Arc::new(Kernel { notifier, device });
        let thread =
            std::thread::Builder::new().name("invalidate".to_owned()).spawn(move || run(&fs, &kernel, &received))?;
        Ok(Self { causes, thread: Some(thread) })
    }

    pub fn sender(&self) -> Sender<Cause> {
        self.causes.clone()
    }
}

impl Drop for Invalidator {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.causes.send(Cause::Stop);
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the invalidation thread panicked");
        }
    }
}

fn run(fs: &Arc<Fs>, kernel: &Arc<Kernel>, causes: &Receiver<Cause>) {
    let mut lanes = HashMap::new();
    let mut tidied = Instant::now();
    loop {
        let next = causes.recv_timeout(TIDY);
        if tidied.elapsed() >= TIDY {
            fs.tidy();
            tidied = Instant::now();
        }
        let found = match next {
            Ok(Cause::Stop) | Err(RecvTimeoutError::Disconnected) => break,
            Err(RecvTimeoutError::Timeout) => continue,
            // Nothing of it must be looked at first.
            Ok(Cause::Changed(all @ Change::Everything)) => fs.expiries(all).into_iter().map(Work::Tell).collect(),
            Ok(Cause::Changed(change)) => vec![Work::Look(change)],
            Ok(Cause::Written(id)) => fs.pages_of(id).into_iter().map(Work::Tell).collect(),
            Ok(Cause::Residency(generation)) => fs.residency_changed(&generation).into_iter().map(Work::Tell).collect(),
        };
        for work in found {
            let lane = match lanes.entry(fs.device_of(work.place())) {
                Entry::Occupied(known) => known.into_mut(),
                Entry::Vacant(vacant) => match Lane::start(fs, kernel) {
                    Ok(lane) => vacant.insert(lane),
                    Err(error) => {
                        tracing::error!(%error, ?work, "the kernel was not told of a change");
                        continue;
                    }
                },
            };
            // It ends when this does.
            let _ = lane.work.send(work);
        }
    }
}

/// What one directory may be waited for.
#[derive(Debug)]
enum Work {
    /// To look at what has changed.
    Look(Change),
    Tell(Expiry),
}

impl Work {
    /// The number of what is asked about or locked.
    fn place(&self) -> u64 {
        match self {
            Work::Look(Change::Entry { directory, .. }) | Work::Tell(Expiry::Entry { directory, .. }) => *directory,
            Work::Look(Change::Directory(id)) | Work::Tell(Expiry::Node { id, .. }) => *id,
            Work::Look(Change::Everything) => ROOT,
        }
    }
}

/// The thread for what lies on one device: one that does not answer, while the kernel holds the lock of a directory of
/// it, holds up what is told of the others no more than their requests.
struct Lane {
    work: Sender<Work>,
    thread: Option<JoinHandle<()>>,
}

impl Lane {
    fn start(fs: &Arc<Fs>, kernel: &Arc<Kernel>) -> std::io::Result<Self> {
        let (work, received) = channel();
        let (fs, kernel) = (Arc::clone(fs), Arc::clone(kernel));
        let thread =
            std::thread::Builder::new().name("expire".to_owned()).spawn(move || tell_all(&fs, &kernel, &received))?;
        Ok(Self { work, thread: Some(thread) })
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        // Which ends it.
        self.work = channel().0;
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("an expiry thread panicked");
        }
    }
}

fn tell_all(fs: &Fs, kernel: &Kernel, work: &Receiver<Work>) {
    let mut again: Vec<(Instant, HashSet<Expiry>)> = Vec::new();
    loop {
        let wait = again.first().map_or(Duration::MAX, |(at, _)| at.saturating_duration_since(Instant::now()));
        let mut expiries = HashSet::new();
        match work.recv_timeout(wait) {
            Err(RecvTimeoutError::Disconnected) => return,
            Err(RecvTimeoutError::Timeout) => {}
            Ok(first) => {
                expiries.extend(expire(fs, first));
                std::thread::sleep(GATHER);
                while let Ok(next) = work.try_recv() {
                    expiries.extend(expire(fs, next));
                }
                // By then something else may have the name, and be mounted on: it only is looked up again.
                let later = expiries.iter().cloned().map(Expiry::lightly);
                again.push((Instant::now() + AGAIN, later.collect()));
            }
        }
        let now = Instant::now();
        let due = again.iter().take_while(|(at, _)| *at <= now).count();
        expiries.extend(again.drain(..due).flat_map(|(_, expiries)| expiries));
        for expiry in expiries {
            // As above.
            let expiry = match &expiry {
                Expiry::Entry { directory, name, gone: true } if !fs.is_gone(*directory, name) => expiry.lightly(),
                _ => expiry,
            };
            if let Err(error) = kernel.tell(&expiry) {
                tracing::debug!(%error, ?expiry, "the kernel was not told of a change");
            }
        }
    }
}

fn expire(fs: &Fs, work: Work) -> Vec<Expiry> {
    match work {
        Work::Look(change) => fs.expiries(change),
        Work::Tell(expiry) => vec![expiry],
    }
}

struct Kernel {
    notifier: Notifier,
    device: OwnedFd,
}

impl Kernel {
    fn tell(&self, expiry: &Expiry) -> std::io::Result<()> {
        match expiry {
            // Its inode goes with it, and whatever is mounted on it.
            Expiry::Entry { directory, name, gone: true } => self.notifier.inval_entry(INodeNo(*directory), name),
            Expiry::Entry { directory, name, gone: false } => expire_entry(self.device.as_fd(), *directory, name),
            // An offset below zero leaves the pages alone.
            Expiry::Node { id, pages } => self.notifier.inval_inode(INodeNo(*id), if *pages { 0 } else { -1 }, 0),
        }
    }
}
