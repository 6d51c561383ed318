//! Makes what the kernel believes expire, from a thread of its own: an expiry takes locks that the kernel may hold while
//! it waits for one of our answers.
//!
//! An answer may have been on its way when the thing it speaks of changed. So everything is made to expire twice: at
//! once, and again when such answers have long arrived.

use std::collections::HashSet;
use std::ffi::OsString;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use fuser::{INodeNo, Notifier};
use weightfs::store::Generation;

use crate::fs::Fs;
use crate::notice::expire_entry;
use crate::watch::Change;

/// Changes that come together are answered together.
const GATHER: Duration = Duration::from_millis(10);
/// No answer is on its way for longer than this.
const AGAIN: Duration = Duration::from_millis(400);

/// One thing that the kernel is to forget.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Expiry {
    /// What a name leads to; nothing any more where it is `gone`.
    Entry { directory: u64, name: OsString, gone: bool },
    /// Attributes, and pages where the content may have changed.
    Node { id: u64, pages: bool },
}

/// Why.
#[derive(Debug)]
pub enum Cause {
    Changed(Change),
    Residency(Arc<Generation>),
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
        let kernel = Kernel { notifier, device };
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

fn run(fs: &Fs, kernel: &Kernel, causes: &Receiver<Cause>) {
    let mut again: Vec<(Instant, HashSet<Expiry>)> = Vec::new();
    loop {
        let wait = again.first().map_or(Duration::MAX, |(at, _)| at.saturating_duration_since(Instant::now()));
        let mut expiries = HashSet::new();
        match causes.recv_timeout(wait) {
            Ok(Cause::Stop) | Err(RecvTimeoutError::Disconnected) => return,
            Err(RecvTimeoutError::Timeout) => {}
            Ok(cause) => {
                expiries.extend(expire(fs, cause));
                std::thread::sleep(GATHER);
                while let Ok(cause) = causes.try_recv() {
                    if matches!(cause, Cause::Stop) {
                        return;
                    }
                    expiries.extend(expire(fs, cause));
                }
                again.push((Instant::now() + AGAIN, expiries.clone()));
            }
        }
        let now = Instant::now();
        let due = again.iter().take_while(|(at, _)| *at <= now).count();
        expiries.extend(again.drain(..due).flat_map(|(_, expiries)| expiries));
        for expiry in &expiries {
            if let Err(error) = kernel.tell(expiry) {
                tracing::debug!(%error, ?expiry, "the kernel was not told of a change");
            }
        }
    }
}

fn expire(fs: &Fs, cause: Cause) -> Vec<Expiry> {
    match cause {
        Cause::Changed(change) => fs.expiries(change),
        Cause::Residency(generation) => {
            let names = fs.residency_changed(&generation);
            names.into_iter().map(|(directory, name)| Expiry::Entry { directory, name, gone: false }).collect()
        }
        Cause::Stop => Vec::new(),
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
