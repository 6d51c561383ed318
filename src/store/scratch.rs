//! Memory for the answers of large reads that are kept nowhere: a few buffers, each lent to one read at a time.

use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;

use parking_lot::Mutex;

use super::LARGEST_READ;
use crate::arena::ArenaFile;
use crate::fill::BLOCK;
use crate::sys::mapping::Mapping;
use crate::units::EXTENT_SIZE;

/// A read may begin and end within blocks.
const BUFFER: u64 = LARGEST_READ + 2 * BLOCK;

/// Given the buffer, or nothing where the read has to do without.
type Then = Box<dyn FnOnce(Option<Loan>) + Send>;

#[derive(Debug)]
pub struct Scratch {
    memory: ArenaFile,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    free: Vec<usize>,
    devices: HashMap<u64, Borrowers>,
}

/// The reads of one device.
#[derive(Default)]
struct Borrowers {
    lent: u32,
    waiting: VecDeque<Then>,
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("State").field("free", &self.free).finish_non_exhaustive()
    }
}

/// A buffer, for as long as this lives.
#[derive(Debug)]
pub struct Loan {
    scratch: Arc<Scratch>,
    device: u64,
    buffer: usize,
}

impl Scratch {
    /// The bytes that `buffers` of them take.
    pub fn size(buffers: u64) -> u64 {
        (buffers * BUFFER).next_multiple_of(EXTENT_SIZE)
    }

    /// As many buffers as `memory` has room for.
    pub fn new(memory: ArenaFile) -> Self {
        let buffers = memory.mapping().len() / BUFFER as usize;
        Self { memory, state: Mutex::new(State { free: (0..buffers).collect(), devices: HashMap::new() }) }
    }

    /// Calls `then` with a buffer for a read from `device`: now, or when a read from the same device gives one back. Where
    /// those of other devices have all of them, which may take any time, it is called without.
    pub fn lend(self: &Arc<Self>, device: u64, then: impl FnOnce(Option<Loan>) + Send + 'static) {
        let loan = {
            let mut state = self.state.lock();
            let State { free, devices } = &mut *state;
            let borrowers = devices.entry(device).or_default();
            match free.pop() {
                Some(buffer) => {
                    borrowers.lent += 1;
                    Some(Loan { scratch: Arc::clone(self), device, buffer })
                }
                None if borrowers.lent > 0 => return borrowers.waiting.push_back(Box::new(then)),
                None => {
                    devices.remove(&device);
                    None
                }
            }
        };
        then(loan);
    }

    #[cfg(test)]
    pub fn is_unused(&self) -> bool {
        let state = self.state.lock();
        state.devices.is_empty() && state.free.len() == self.memory.mapping().len() / BUFFER as usize
    }

    /// Bytes of RAM that the buffers take when all were used.
    pub fn capacity(&self) -> u64 {
        self.memory.mapping().len() as u64
    }
}

impl Loan {
    pub fn memory(&self) -> Arc<Mapping> {
        self.scratch.memory.mapping()
    }

    /// Where in the memory the buffer begins, in bytes: a multiple of [`BLOCK`].
    pub fn at(&self) -> usize {
        self.buffer * BUFFER as usize
    }

    /// What was read into `range` of the buffer.
    pub fn bytes(&self, range: Range<usize>) -> &[u8] {
        let at = self.at() as u64;
        self.scratch.memory.bytes(at + range.start as u64..at + range.end as u64)
    }
}

impl Drop for Loan {
    fn drop(&mut self) {
        let next = {
            let mut state = self.scratch.state.lock();
            let State { free, devices } = &mut *state;
            let borrowers = devices.get_mut(&self.device).expect("one of its reads has a buffer");
            let next = borrowers.waiting.pop_front();
            if next.is_none() {
                free.push(self.buffer);
                borrowers.lent -= 1;
                if borrowers.lent == 0 {
                    devices.remove(&self.device);
                }
            }
            next
        };
        if let Some(next) = next {
            next(Some(Loan { scratch: Arc::clone(&self.scratch), device: self.device, buffer: self.buffer }));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, TryRecvError, channel};

    use super::*;
    use crate::arena::Arena;
    use crate::ids::GenerationId;

    fn scratch(buffers: u64) -> Arc<Scratch> {
        let size = Scratch::size(buffers);
        Arc::new(Scratch::new(Arena::create(size).unwrap().file(GenerationId(0), size).unwrap()))
    }

    fn ask(scratch: &Arc<Scratch>, device: u64) -> Receiver<Option<Loan>> {
        let (tell, told) = channel();
        scratch.lend(device, move |loan| tell.send(loan).unwrap());
        told
    }

    #[test]
    fn a_buffer_goes_to_the_next_read_of_its_device_in_turn() {
        let scratch = scratch(2);
        let [first, second] = [ask(&scratch, 1), ask(&scratch, 1)].map(|told| told.recv().unwrap().unwrap());
        assert_ne!(first.at(), second.at());
        let [third, fourth] = [ask(&scratch, 1), ask(&scratch, 1)];
        assert!(matches!(third.try_recv(), Err(TryRecvError::Empty)));
        let at = first.at();
        drop(first);
        let third = third.try_recv().unwrap().unwrap();
        assert_eq!(third.at(), at);
        assert!(matches!(fourth.try_recv(), Err(TryRecvError::Empty)));
        drop((second, third));
        drop(fourth.recv().unwrap().unwrap());
        let state = scratch.state.lock();
        assert_eq!((state.free.len(), state.devices.len()), (2, 0));
    }

    #[test]
    fn nobody_waits_for_another_device() {
        let scratch = scratch(1);
        let held = ask(&scratch, 1).recv().unwrap().unwrap();
        assert!(ask(&scratch, 2).recv().unwrap().is_none());
        drop(held);
        assert!(ask(&scratch, 2).recv().unwrap().is_some());
    }

    #[test]
    fn what_was_written_into_a_buffer_is_read_from_it_and_no_other() {
        let scratch = scratch(2);
        let [one, two] = [ask(&scratch, 1), ask(&scratch, 1)].map(|told| told.recv().unwrap().unwrap());
        let whole = BUFFER as usize;
        one.memory().target(one.at()..one.at() + whole).fill(1);
        two.memory().target(two.at()..two.at() + whole).fill(2);
        assert!(one.bytes(0..whole).iter().all(|byte| *byte == 1) && two.bytes(0..whole).iter().all(|byte| *byte == 2));
    }
}
