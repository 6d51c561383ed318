//! An io_uring that reads files into mappings, behind a safe interface: the ring itself holds the file and the memory
//! of each read until the kernel is done with them.

use std::fs::File;
use std::io;
use std::mem;
use std::ops::Range;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use io_uring::{IoUring, opcode, squeue, types};
use nix::libc;
use rustix::event::EventfdFlags;
use rustix::io::Errno;

use crate::sys::mapping::Mapping;

/// Marks the completion that says that somebody woke the ring. Reads have the number of their slot.
const WAKE: u64 = u64::MAX;

/// Wakes the thread that waits on a ring, from any other.
#[derive(Debug)]
pub struct Waker(OwnedFd);

impl Waker {
    pub fn new() -> io::Result<Arc<Self>> {
        Ok(Arc::new(Self(rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?)))
    }

    /// The ring's next wait, or the one going on, ends. Several calls may end the same one.
    pub fn wake(&self) {
        // The one way to fail is a counter that is full, and then it has been woken often enough.
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }

    fn reset(&self) {
        let _ = rustix::io::read(&self.0, &mut [0u8; 8]);
    }
}

/// One read, and what its owner wants back with its result.
pub struct Read<T> {
    pub file: Arc<File>,
    /// Bytes of the file.
    pub offset: u64,
    pub memory: Arc<Mapping>,
    /// Where in `memory` the bytes go. Nobody else writes to or reads from there before the read has completed.
    pub target: Range<usize>,
    pub token: T,
}

/// A ring for one thread, which must be the one that made it.
pub struct Ring<T> {
    ring: IoUring,
    waker: Arc<Waker>,
    /// The kernel watches the waker.
    watching: bool,
    /// What is in flight.
    reads: Vec<Option<Read<T>>>,
    free: Vec<usize>,
}

impl<T> Ring<T> {
    /// A ring for up to `depth` reads at once, tried out.
    pub fn new(depth: usize, waker: Arc<Waker>) -> io::Result<Self> {
        let entries = (depth + 1).next_power_of_two() as u32;
        // Completions are then worked on where they are waited for, not wherever the thread happens to be (6.1).
        let ring = IoUring::builder().setup_single_issuer().setup_defer_taskrun().build(entries);
        let ring = match ring {
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => IoUring::new(entries)?,
            ring => ring?,
        };
        if !ring.params().is_feature_ext_arg() {
            return Err(io::Error::new(io::ErrorKind::Unsupported, "the kernel is older than Linux 5.11"));
        }
        let free = (0..depth).collect();
        let mut ring = Self { ring, waker, watching: false, reads: (0..depth).map(|_| None).collect(), free };
        // A sandbox may allow the setup and refuse the use.
        ring.push(&opcode::Nop::new().build().user_data(WAKE)).map_err(|_| io::Error::other("the ring is full"))?;
        ring.ring.submit_and_wait(1)?;
        let result = ring.ring.completion().next().map_or(0, |nop| nop.result());
        if result < 0 { Err(io::Error::from_raw_os_error(-result)) } else { Ok(ring) }
    }

    /// Starts a read. It comes back at once where the ring has no room for it.
    ///
    /// # Panics
    /// Where `target` does not lie in `memory`, or is 4 GiB or more.
    pub fn read(&mut self, read: Read<T>) -> Result<(), Read<T>> {
        let target = read.memory.target(read.target.clone());
        let len = u32::try_from(target.len()).expect("requests are some megabytes long");
        let entry = opcode::Read::new(types::Fd(read.file.as_raw_fd()), target.as_mut_ptr(), len).offset(read.offset);
        let Some(slot) = self.free.pop() else { return Err(read) };
        // The slot is filled before the kernel can know of the memory.
        self.reads[slot] = Some(read);
        if self.push(&entry.build().user_data(slot as u64)).is_err() {
            self.free.push(slot);
            return self.reads[slot].take().map_or(Ok(()), Err);
        }
        // What could not be submitted now is by the next wait.
        let _ = self.ring.submit();
        Ok(())
    }

    /// Puts an entry into the submission queue. Any memory it names must be held by `self.reads` already.
    fn push(&mut self, entry: &squeue::Entry) -> Result<(), squeue::PushError> {
        if self.ring.submission().is_full() {
            let _ = self.ring.submit();
        }
        // SAFETY: an entry names no memory (the no-op and the watch on the waker, whose descriptor `self` holds), or
        // that of a read in `self.reads`. Those are given up only when their completion was seen, and leaked where
        // that cannot be waited for, so file and memory are valid for as long as the kernel uses them.
        unsafe { self.ring.submission().push(entry) }
    }

    /// Waits until a read has completed, the waker was used, or `timeout` is over. May return early.
    pub fn wait(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        if !self.watching {
            let watch = opcode::PollAdd::new(types::Fd(self.waker.0.as_raw_fd()), libc::POLLIN as u32);
            self.watching = self.push(&watch.build().user_data(WAKE)).is_ok();
        }
        let result = match timeout {
            None => self.ring.submit_and_wait(1),
            Some(timeout) => {
                let timeout = types::Timespec::from(timeout);
                self.ring.submitter().submit_with_args(1, &types::SubmitArgs::new().timespec(&timeout))
            }
        };
        match result.as_ref().map_err(io::Error::raw_os_error) {
            Ok(_) | Err(Some(libc::ETIME | libc::EINTR | libc::EBUSY)) => Ok(()),
            Err(_) => result.map(|_| ()),
        }
    }

    /// The reads that have completed, each with the number of bytes that are in memory, which may be fewer than
    /// were asked for. Does not wait.
    pub fn completed(&mut self) -> Vec<(Read<T>, Result<usize, Errno>)> {
        let mut completed = Vec::new();
        for entry in self.ring.completion() {
            if entry.user_data() == WAKE {
                self.watching = false;
                self.waker.reset();
                continue;
            }
            let slot = entry.user_data() as usize;
            if let Some(read) = self.reads.get_mut(slot).and_then(Option::take) {
                self.free.push(slot);
                let result = entry.result();
                completed.push((read, usize::try_from(result).map_err(|_| Errno::from_raw_os_error(-result))));
            }
        }
        completed
    }

    /// Whether nothing is in flight.
    pub fn is_idle(&self) -> bool {
        self.free.len() == self.reads.len()
    }
}

impl<T> Drop for Ring<T> {
    /// Waits for what is in flight.
    fn drop(&mut self) {
        while !self.is_idle() {
            if self.wait(None).is_err() {
                // The kernel may still write there: memory and files stay as they are for good.
                mem::forget(mem::take(&mut self.reads));
                return;
            }
            self.completed();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::time::Instant;

    fn ring(depth: usize) -> Option<Ring<u32>> {
        Ring::new(depth, Waker::new().unwrap()).ok()
    }

    fn read(file: &Arc<File>, memory: &Arc<Mapping>, offset: u64, target: Range<usize>, token: u32) -> Read<u32> {
        Read { file: Arc::clone(file), offset, memory: Arc::clone(memory), target, token }
    }

    #[test]
    fn reads_come_back_with_their_tokens_and_the_ring_refuses_more_than_its_depth() {
        let Some(mut ring) = ring(2) else { return };
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&[7; 6000]).unwrap();
        let (file, memory) = (Arc::new(file), Arc::new(Mapping::shared(&memory_file(), 8192).unwrap()));
        assert!(ring.read(read(&file, &memory, 0, 0..4096, 1)).is_ok());
        assert!(ring.read(read(&file, &memory, 4096, 4096..8192, 2)).is_ok());
        assert_eq!(ring.read(read(&file, &memory, 0, 0..4096, 3)).err().map(|read| read.token), Some(3));
        let mut results = Vec::new();
        while !ring.is_idle() {
            ring.wait(None).unwrap();
            results.extend(ring.completed().into_iter().map(|(read, result)| (read.token, result)));
        }
        results.sort_by_key(|(token, _)| *token);
        assert_eq!(results, [(1, Ok(4096)), (2, Ok(1904))]);
        assert_eq!(memory.bytes(5999..6001), [7, 0]);
    }

    #[test]
    fn a_wait_ends_by_the_waker_or_in_time() {
        let Some(mut ring) = ring(1) else { return };
        let start = Instant::now();
        ring.wait(Some(Duration::from_millis(5))).unwrap();
        assert!(start.elapsed() >= Duration::from_millis(5));
        // Before the wait and during it.
        for round in 0..2 {
            let waker = Arc::clone(&ring.waker);
            let thread = std::thread::spawn(move || waker.wake());
            ring.wait(None).unwrap();
            thread.join().unwrap();
            assert!(ring.completed().is_empty(), "round {round}");
        }
    }

    #[test]
    fn a_ring_that_goes_waits_for_what_is_in_flight() {
        let Some(mut ring) = ring(1) else { return };
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&[9; 4096]).unwrap();
        let (file, memory) = (Arc::new(file), Arc::new(Mapping::shared(&memory_file(), 4096).unwrap()));
        assert!(ring.read(read(&file, &memory, 0, 0..4096, 1)).is_ok());
        drop(ring);
        assert_eq!((Arc::strong_count(&file), Arc::strong_count(&memory)), (1, 1));
        assert_eq!(memory.bytes(0..4096), [9; 4096]);
    }

    fn memory_file() -> File {
        let file = tempfile::tempfile().unwrap();
        file.set_len(8192).unwrap();
        file
    }
}
