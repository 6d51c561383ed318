//! Mounts that were taken away lazily: out of sight, but kept by the kernel as long as a program maps a file of theirs.
//!
//! A program that has closed everything and only maps resident files needs the daemon no more: the pages stay its own.
//! So a mount that is in no table of mounts and has no open files counts as ended.
//!
//! The same table tells of what is mounted below a source, of which no directory tells.

use std::fs::File;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use rustix::event::{PollFd, PollFlags, Timespec};

use crate::mount_table::MountTable;

/// How often a mount out of sight is looked at. The table tells of changes by itself.
const LOOK: Timespec = Timespec { tv_sec: 0, tv_nsec: 250_000_000 };

/// One mount to look after.
pub struct Candidate {
    /// "MAJOR:MINOR" of its file system.
    pub device: String,
    /// Whether it has ended already, or still has open files.
    pub busy: Box<dyn Fn() -> bool + Send>,
    /// Called with the table of mounts each time it is read.
    pub seen: Box<dyn FnMut(&MountTable) + Send>,
    /// Called once, when it counts as ended.
    pub ended: Box<dyn FnOnce() + Send>,
}

/// Looks after mounts on a thread of its own until it is dropped.
pub struct Detached {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Detached {
    pub fn start(candidates: Vec<Candidate>) -> io::Result<Self> {
        let table = File::open("/proc/self/mountinfo")?;
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = std::thread::Builder::new().name("detached".to_owned()).spawn(move || {
            if let Err(error) = run(&table, candidates, &stopped) {
                tracing::warn!(%error, "lazily unmounted folders are not noticed any more");
            }
        })?;
        Ok(Self { stop, thread: Some(thread) })
    }
}

impl Drop for Detached {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread that looks after mounts panicked");
        }
    }
}

fn run(table: &File, mut candidates: Vec<Candidate>, stop: &AtomicBool) -> io::Result<()> {
    while !stop.load(Ordering::Acquire) {
        let table_now = MountTable::read()?;
        candidates.iter_mut().for_each(|candidate| (candidate.seen)(&table_now));
        for candidate in candidates.extract_if(.., |c| !table_now.has_device(&c.device) && !(c.busy)()) {
            (candidate.ended)();
        }
        // A change of the table wakes it; the time-out is for files that are closed and for the end.
        let mut wanted = [PollFd::new(table, PollFlags::PRI)];
        match rustix::event::poll(&mut wanted, Some(&LOOK)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}
