//! Processes that had this arena before and were killed, but have not ended: a thread of theirs that waits for a source may
//! still write what it is given then into the extent that it was filling.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

const AT_ONCE: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };

#[derive(Debug)]
pub struct Predecessors {
    processes: Vec<OwnedFd>,
    gone: AtomicBool,
}

impl Predecessors {
    /// Those of `processes`, the kernel's numbers, that are there.
    pub fn of(processes: &[u32]) -> Self {
        let open = |number: &u32| pidfd_open(Pid::from_raw(i32::try_from(*number).ok()?)?, PidfdFlags::empty()).ok();
        let processes: Vec<_> = processes.iter().filter_map(open).collect();
        Self { gone: AtomicBool::new(processes.is_empty()), processes }
    }

    /// Whether no thread of any of them is left.
    pub fn are_gone(&self) -> bool {
        if self.gone.load(Ordering::Acquire) {
            return true;
        }
        // The descriptor of a process is ready when its last thread has ended.
        let has_ended = |process: &OwnedFd| {
            let mut wanted = [PollFd::new(process, PollFlags::IN)];
            poll(&mut wanted, Some(&AT_ONCE)) == Ok(1)
        };
        let gone = self.processes.iter().all(has_ended);
        self.gone.store(gone, Ordering::Release);
        gone
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_there_is_waited_for() {
        assert!(Predecessors::of(&[]).are_gone());
        let mut other = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        let predecessors = Predecessors::of(&[other.id(), 0, u32::MAX]);
        assert!(!predecessors.are_gone());
        other.kill().unwrap();
        other.wait().unwrap();
        assert!(predecessors.are_gone() && Predecessors::of(&[other.id()]).are_gone());
    }
}
