//! Which request goes next: three classes of jobs, cut into requests as there is room for them. Does no I/O.
//!
//! A class may start a request while fewer are in flight than its limit. Demand has the highest limit, so that a
//! demand request finds room however much bulk is queued, and shares the device with no more of it than the bulk
//! limits allow. Demand jobs take turns, so that a page fault does not wait for a large tensor that another reader
//! wants; bulk jobs are read in the order in which they came. No source file may take all the room that there is for
//! demand.

use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::io::Errno;

use super::piece::{Mode, Piece, Verdict};
use super::source::SourceFile;
use super::speed::{Counters, SpeedMeter};
use super::storage::Limits;
use super::{BLOCK, Cancel, Class, Done, FillError, Job};
use crate::sys::mapping::Mapping;

/// A job that was submitted. Never reused within one engine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct JobId(u64);

/// A job that ended: to be called outside of any lock.
pub(crate) struct Finished {
    pub class: Class,
    pub done: Done,
    pub result: Result<(), FillError>,
    /// Let go of before `done` is called, and not where jobs end: unmapping and closing may take long.
    pub held: (Arc<SourceFile>, Arc<Mapping>),
}

struct Entry {
    source: Arc<SourceFile>,
    memory: Arc<Mapping>,
    at: usize,
    class: Class,
    ticket: Option<Arc<Cancel>>,
    done: Done,
    /// What was not yet cut into pieces.
    rest: Range<u64>,
    /// Pieces that were cut and have not ended.
    pieces: usize,
    error: Option<FillError>,
}

impl Entry {
    fn is_cancelled(&self) -> bool {
        self.ticket.as_ref().is_some_and(|ticket| ticket.is_cancelled())
    }

    /// The next piece, of at most `request` bytes. Pieces end at multiples of `request`, and what is less than a block
    /// at the end of a file is a piece of its own: it alone cannot be read directly.
    fn cut(&mut self, id: JobId, request: u64, now: Instant) -> Piece {
        let start = self.rest.start;
        let mut end = self.rest.end.min((start / request + 1) * request);
        let whole = end - end % BLOCK;
        if whole > start {
            end = whole;
        }
        let len = (end - start) as usize;
        let (source, memory) = (Arc::clone(&self.source), Arc::clone(&self.memory));
        let piece = Piece::new(id, self.class, source, memory, start..end, self.at, now);
        self.rest.start = end;
        self.at += len;
        self.pieces += 1;
        piece
    }
}

pub(crate) struct Queue {
    limits: Limits,
    jobs: HashMap<JobId, Entry>,
    next_id: u64,
    /// Jobs with something left to cut. An id that is gone or of another class by now is skipped.
    waiting: [VecDeque<JobId>; 3],
    /// Pieces for another attempt; before the jobs of their class.
    again: [VecDeque<Piece>; 3],
    paused: Vec<(Instant, Piece)>,
    in_flight: [usize; 3],
    finished: Vec<Finished>,
    closed: bool,
    counters: Counters,
    speed: SpeedMeter,
}

impl Queue {
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            jobs: HashMap::new(),
            next_id: 0,
            waiting: Default::default(),
            again: Default::default(),
            paused: Vec::new(),
            in_flight: [0; 3],
            finished: Vec::new(),
            closed: false,
            counters: Counters::default(),
            speed: SpeedMeter::default(),
        }
    }

    /// # Panics
    /// Where the job is not aligned or does not fit into its memory.
    pub fn push(&mut self, job: Job) -> JobId {
        let Job { source, bytes, memory, at, class, ticket, done } = job;
        assert!(bytes.start.is_multiple_of(BLOCK) && (at as u64).is_multiple_of(BLOCK), "{bytes:?} at {at}");
        let len = bytes.end.saturating_sub(bytes.start);
        assert!(at as u64 + len <= memory.len() as u64, "{bytes:?} at {at} is outside a mapping of {}", memory.len());
        let id = JobId(self.next_id);
        self.next_id += 1;
        if self.closed || len == 0 {
            let result = if self.closed { Err(FillError::Shutdown) } else { Ok(()) };
            self.finished.push(Finished { class, done, result, held: (source, memory) });
            return id;
        }
        let entry = Entry { source, memory, at, class, ticket, done, rest: bytes, pieces: 0, error: None };
        self.jobs.insert(id, entry);
        self.waiting[class as usize].push_back(id);
        id
    }

    /// Somebody of a higher class waits for this job by now. It loses its ticket: its reason is another.
    pub fn promote(&mut self, id: JobId, class: Class) {
        let Some(entry) = self.jobs.get_mut(&id).filter(|entry| class < entry.class) else { return };
        let from = std::mem::replace(&mut entry.class, class);
        entry.ticket = None;
        if !entry.rest.is_empty() {
            self.waiting[class as usize].push_back(id);
        }
        let (mut moved, stay): (VecDeque<Piece>, _) =
            self.again[from as usize].drain(..).partition(|piece| piece.job == id);
        self.again[from as usize] = stay;
        moved.iter_mut().for_each(|piece| piece.class = class);
        self.again[class as usize].append(&mut moved);
        for (_, piece) in self.paused.iter_mut().filter(|(_, piece)| piece.job == id) {
            piece.class = class;
        }
    }

    /// The next piece to read, if there is room for one of its class. It must come back through [`Queue::settle`].
    pub fn next(&mut self, now: Instant) -> Option<Piece> {
        self.end_pauses(now);
        for class in Class::ALL {
            if self.in_flight.iter().sum::<usize>() >= self.limits.depth[class as usize] {
                return None;
            }
            if let Some(mut piece) = self.next_of(class, now) {
                piece.issued = now;
                piece.source.given();
                self.in_flight[class as usize] += 1;
                self.counters.requests += 1;
                return Some(piece);
            }
        }
        None
    }

    fn next_of(&mut self, class: Class, now: Instant) -> Option<Piece> {
        // The limits of bulk leave room enough by themselves.
        let share = if class == Class::Demand { self.limits.share() } else { usize::MAX };
        let mut full = 0;
        while let Some(piece) = self.again[class as usize].remove(full) {
            if !self.is_wanted(piece.job) {
                self.end_piece(piece.job, Ok(()));
            } else if piece.source.in_flight() < share {
                return Some(piece);
            } else {
                self.again[class as usize].insert(full, piece);
                full += 1;
            }
        }
        let mut full = 0;
        while let Some(&id) = self.waiting[class as usize].get(full) {
            let wanted = self.is_wanted(id);
            let entry = self.jobs.get_mut(&id).filter(|entry| entry.class == class && wanted);
            let Some(entry) = entry.filter(|entry| !entry.rest.is_empty()) else {
                self.waiting[class as usize].remove(full);
                self.finish_if_ended(id);
                continue;
            };
            if entry.source.in_flight() >= share {
                full += 1;
                continue;
            }
            let piece = entry.cut(id, self.limits.request, now);
            let (cut_whole, take_turns) = (entry.rest.is_empty(), class == Class::Demand);
            if cut_whole || take_turns {
                self.waiting[class as usize].remove(full);
            }
            if !cut_whole && take_turns {
                self.waiting[class as usize].push_back(id);
            }
            return Some(piece);
        }
        None
    }

    /// Whether another request of this job makes sense. Remembers it where not.
    fn is_wanted(&mut self, id: JobId) -> bool {
        let Some(entry) = self.jobs.get_mut(&id) else { return false };
        if entry.is_cancelled() {
            entry.error.get_or_insert(FillError::Cancelled);
        }
        entry.error.is_none()
    }

    /// When [`Queue::next`] may have something although nothing else happens: a pause ends.
    pub fn next_pause_ends(&self) -> Option<Instant> {
        self.paused.iter().map(|(until, _)| *until).min()
    }

    fn end_pauses(&mut self, now: Instant) {
        for (_, piece) in self.paused.extract_if(.., |(until, _)| *until <= now) {
            self.again[piece.class as usize].push_back(piece);
        }
    }

    /// Takes a piece back with what the attempt gave. The kernel must not write to its memory any more.
    pub fn settle(&mut self, mut piece: Piece, mode: Mode, result: Result<usize, Errno>, now: Instant) {
        self.in_flight[piece.class as usize] -= 1;
        piece.source.returned();
        let missing = piece.len();
        let verdict = piece.judge(mode, result);
        let read = if verdict == Verdict::Complete { missing } else { missing - piece.len() } as u64;
        self.counters.source_read_bytes += read;
        match mode {
            Mode::Cached => self.counters.page_cache_bytes += read,
            Mode::Direct | Mode::Buffered => self.speed.arrived(piece.issued, now, read),
        }
        match verdict {
            Verdict::Complete => self.end_piece(piece.job, Ok(())),
            Verdict::Failed(error) => self.end_piece(piece.job, Err(error)),
            Verdict::Again(_) if self.closed => self.end_piece(piece.job, Err(FillError::Shutdown)),
            Verdict::Again(pause) => {
                if let Some(entry) = self.jobs.get(&piece.job) {
                    piece.class = entry.class;
                }
                if pause == Duration::ZERO {
                    self.again[piece.class as usize].push_back(piece);
                } else {
                    self.counters.retries += 1;
                    self.paused.push((now + pause, piece));
                }
            }
        }
    }

    /// Nothing more is issued. Whatever is not in flight ends now; what is, when it comes back.
    pub fn close(&mut self) {
        self.closed = true;
        let again = self.again.iter_mut().flat_map(|pieces| pieces.drain(..));
        let pieces: Vec<Piece> = again.chain(self.paused.drain(..).map(|(_, piece)| piece)).collect();
        for piece in pieces {
            self.end_piece(piece.job, Err(FillError::Shutdown));
        }
        let ids: Vec<JobId> = self.jobs.keys().copied().collect();
        for id in ids {
            if let Some(entry) = self.jobs.get_mut(&id).filter(|entry| !entry.rest.is_empty()) {
                entry.error.get_or_insert(FillError::Shutdown);
            }
            self.finish_if_ended(id);
        }
    }

    pub fn is_closed(&self) -> bool {
        self.closed
    }

    fn end_piece(&mut self, id: JobId, result: Result<(), FillError>) {
        if let Some(entry) = self.jobs.get_mut(&id) {
            entry.pieces -= 1;
            if let Err(error) = result {
                entry.error.get_or_insert(error);
            }
            self.finish_if_ended(id);
        }
    }

    fn finish_if_ended(&mut self, id: JobId) {
        let ended = |entry: &Entry| entry.pieces == 0 && (entry.rest.is_empty() || entry.error.is_some());
        if !self.jobs.get(&id).is_some_and(ended) {
            return;
        }
        if let Some(Entry { class, done, error, source, memory, .. }) = self.jobs.remove(&id) {
            if matches!(error, Some(FillError::Io { .. } | FillError::Truncated { .. })) {
                self.counters.errors += 1;
            }
            let result = error.map_or(Ok(()), Err);
            self.finished.push(Finished { class, done, result, held: (source, memory) });
        }
    }

    /// The jobs that ended since the last call.
    pub fn take_finished(&mut self) -> Vec<Finished> {
        std::mem::take(&mut self.finished)
    }

    pub fn counters(&self) -> Counters {
        Counters { bytes_per_second: self.speed.bytes_per_second(), ..self.counters }
    }
}
