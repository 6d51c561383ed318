//! Threads that read one piece at a time: all of the work where there is no io_uring, and beside it whatever would
//! hold up the ring's own thread (copies out of the page cache, and reads through it).

use std::collections::VecDeque;
use std::time::Instant;

use parking_lot::{Condvar, Mutex};

use super::Class;
use super::engine::Shared;
use super::piece::{Mode, Piece};

/// Takes pieces straight from the queue until that is closed.
pub(crate) fn serve_queue(shared: &Shared) {
    let mut queue = shared.queue.lock();
    while !queue.is_closed() {
        let piece = queue.next(Instant::now());
        let (finished, pause_ends) = (queue.take_finished(), queue.next_pause_ends());
        if let Some(piece) = piece {
            drop(queue);
            shared.completions.push(finished);
            let mode = piece.source.mode(&piece);
            read(shared, piece, mode);
            queue = shared.queue.lock();
        } else if !finished.is_empty() {
            drop(queue);
            shared.completions.push(finished);
            queue = shared.queue.lock();
        } else if let Some(until) = pause_ends {
            shared.changed.wait_until(&mut queue, until);
        } else {
            shared.changed.wait(&mut queue);
        }
    }
}

fn read(shared: &Shared, piece: Piece, mode: Mode) {
    let result = piece.source.read(&piece, mode);
    shared.settle(piece, mode, result);
}

/// How many readers may copy out of the page cache at once: memory bandwidth is had by a few. Those that read through
/// it may wait for a device, and as many do as may be in flight.
const COPIES: usize = 4;

#[derive(Default)]
struct Handed {
    pieces: [VecDeque<(Piece, Mode)>; 3],
    /// Of any class but demand, being read now.
    bulk: usize,
    /// Being copied out of the page cache now.
    copies: usize,
    closed: bool,
}

impl Handed {
    /// The next piece whose class is among `classes`, if it may be read now.
    fn pop(&mut self, classes: std::ops::Range<usize>) -> Option<(Piece, Mode)> {
        let may_copy = self.copies < COPIES;
        let queue = self.pieces[classes].iter_mut().find(|queue| !queue.is_empty())?;
        queue.front().filter(|(_, mode)| may_copy || *mode != Mode::Cached)?;
        let taken = queue.pop_front()?;
        self.copies += usize::from(taken.1 == Mode::Cached);
        self.bulk += usize::from(taken.0.class != Class::Demand);
        Some(taken)
    }

    fn is_empty(&self) -> bool {
        self.pieces.iter().all(VecDeque::is_empty)
    }
}

/// Pieces on their way from the ring's thread to the readers. Their number is bounded by what may be in flight.
pub(crate) struct Handoff {
    handed: Mutex<Handed>,
    changed: Condvar,
    /// How many readers bulk pieces may hold at once, so that one is left for demand.
    bulk_limit: usize,
}

impl Handoff {
    pub fn new(readers: usize) -> Self {
        Self { handed: Mutex::default(), changed: Condvar::new(), bulk_limit: readers.saturating_sub(1).max(1) }
    }

    pub fn give(&self, piece: Piece, mode: Mode) {
        self.handed.lock().pieces[piece.class as usize].push_back((piece, mode));
        self.changed.notify_one();
    }

    /// Nothing more will be given.
    pub fn close(&self) {
        self.handed.lock().closed = true;
        self.changed.notify_all();
    }

    /// Reads until closed and empty, and wakes the ring's thread after each piece: there is room for another.
    pub fn serve(&self, shared: &Shared) {
        while let Some((piece, mode)) = self.take() {
            let bulk = piece.class != Class::Demand;
            read(shared, piece, mode);
            shared.wake();
            let mut handed = self.handed.lock();
            handed.bulk -= usize::from(bulk);
            handed.copies -= usize::from(mode == Mode::Cached);
            drop(handed);
            self.changed.notify_one();
        }
    }

    fn take(&self) -> Option<(Piece, Mode)> {
        let mut handed = self.handed.lock();
        loop {
            let classes = if handed.bulk < self.bulk_limit { 0..3 } else { 0..1 };
            if let Some(taken) = handed.pop(classes) {
                return Some(taken);
            }
            if handed.closed && handed.is_empty() {
                return None;
            }
            self.changed.wait(&mut handed);
        }
    }
}
