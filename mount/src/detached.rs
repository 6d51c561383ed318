//! Mounts that were taken away lazily: out of sight, but kept by the kernel as long as a program maps a file of theirs.
//!
//! A program that has closed everything and only maps resident files needs the daemon no more: the pages stay its own.
//! So a mount that is in no table of mounts and has no open files counts as ended.
//!
//! The same table tells of what is mounted below a source, of which no directory tells.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread::JoinHandle;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec};

use crate::mount_table::MountTable;

/// How often a mount out of sight is looked at, whose files may have been closed. The table tells of changes by itself.
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
    stop: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl Detached {
    pub fn start(candidates: Vec<Candidate>) -> io::Result<Self> {
        let table = File::open("/proc/self/mountinfo")?;
        let stop = Arc::new(rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
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
        // An eventfd that is written once takes it.
        let _ = rustix::io::write(&*self.stop, &1u64.to_ne_bytes());
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread that looks after mounts panicked");
        }
    }
}

fn run(table: &File, mut candidates: Vec<Candidate>, stop: &OwnedFd) -> io::Result<()> {
    loop {
        let table_now = MountTable::read()?;
        candidates.iter_mut().for_each(|candidate| (candidate.seen)(&table_now));
        for candidate in candidates.extract_if(.., |c| !table_now.has_device(&c.device) && !(c.busy)()) {
            (candidate.ended)();
        }
        let mut wanted = [PollFd::new(table, PollFlags::PRI), PollFd::new(stop, PollFlags::IN)];
        match rustix::event::poll(&mut wanted, Some(&LOOK)) {
            Ok(_) if !wanted[1].revents().is_empty() => return Ok(()),
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    fn candidate(device: &str, sender: &std::sync::mpsc::Sender<&'static str>) -> Candidate {
        let (seen, ended) = (sender.clone(), sender.clone());
        Candidate {
            device: device.to_owned(),
            busy: Box::new(|| false),
            seen: Box::new(move |_| seen.send("seen").unwrap()),
            ended: Box::new(move || ended.send("ended").unwrap()),
        }
    }

    #[test]
    fn what_is_in_no_table_has_ended_and_what_is_mounted_has_not() {
        let table = MountTable::read().unwrap();
        let mounted = table.containing(std::path::Path::new("/proc/self")).unwrap().device.clone();
        let ((here, of_here), (gone, of_gone)) = (channel(), channel());
        let detached = Detached::start(vec![candidate(&mounted, &here), candidate("0:0", &gone)]).unwrap();
        assert_eq!([of_gone.recv().unwrap(), of_gone.recv().unwrap()], ["seen", "ended"]);
        assert_eq!([of_here.recv().unwrap(), of_here.recv().unwrap()], ["seen", "seen"]);
        drop((detached, here, gone));
        assert!(of_here.iter().chain(&of_gone).all(|told| told == "seen"));
    }
}
