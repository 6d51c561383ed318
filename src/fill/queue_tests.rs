//! The queue, step by step.

use std::ops::Range;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::Instant;

use rustix::io::Errno;

use super::piece::{Mode, Piece};
use super::queue::{Finished, JobId, Queue};
use super::storage::Limits;
use super::{Cancel, Class, FillError, Job, SourceFile};
use crate::sys::mapping::Mapping;

const LIMITS: Limits = Limits { request: 8192, depth: [5, 3, 2] };

struct Rig {
    queue: Queue,
    now: Instant,
    source: Arc<SourceFile>,
    memory: Arc<Mapping>,
}

type Answers = Receiver<Result<(), FillError>>;

impl Rig {
    fn new() -> Self {
        let file = tempfile::tempfile().unwrap();
        file.set_len(1 << 20).unwrap();
        let memory = Arc::new(Mapping::shared(&file, 1 << 20).unwrap());
        let source = Arc::new(SourceFile::with_direct(file, None));
        Self { queue: Queue::new(LIMITS), now: Instant::now(), source, memory }
    }

    fn push(&mut self, class: Class, bytes: Range<u64>, ticket: Option<&Arc<Cancel>>) -> (JobId, Answers) {
        let (send, answers) = channel();
        let done = Box::new(move |result| send.send(result).unwrap());
        let (source, memory) = (Arc::clone(&self.source), Arc::clone(&self.memory));
        let ticket = ticket.cloned();
        (self.queue.push(Job { source, at: bytes.start as usize, bytes, memory, class, ticket, done }), answers)
    }

    fn next(&mut self) -> Option<Piece> {
        self.queue.next(self.now)
    }

    /// All that may be issued now.
    fn drain(&mut self) -> Vec<Piece> {
        std::iter::from_fn(|| self.next()).collect()
    }

    fn settle(&mut self, piece: Piece, result: Result<usize, Errno>) {
        self.queue.settle(piece, Mode::Buffered, result, self.now);
    }

    fn complete(&mut self, piece: Piece) {
        let len = piece.len();
        self.settle(piece, Ok(len));
    }

    /// Answers the jobs that ended.
    fn answer(&mut self) {
        for Finished { done, result, .. } in self.queue.take_finished() {
            done(result);
        }
    }
}

fn starts(pieces: &[Piece]) -> Vec<(Class, u64)> {
    pieces.iter().map(|piece| (piece.class, piece.bytes.start)).collect()
}

#[test]
fn pieces_end_at_requests_and_the_tail_of_a_file_is_its_own() {
    let mut rig = Rig::new();
    let (_, _answers) = rig.push(Class::Demand, 4096..20580, None);
    let cut: Vec<_> = rig.drain().into_iter().map(|piece| (piece.bytes.clone(), piece.target())).collect();
    let expected = [4096..8192u64, 8192..16384, 16384..20480, 20480..20580];
    assert_eq!(cut, expected.map(|bytes| (bytes.clone(), bytes.start as usize..bytes.end as usize)));
}

#[test]
fn demand_goes_first_and_finds_room_beside_bulk() {
    use Class::*;
    let mut rig = Rig::new();
    let jobs = [(Prefetch, 0..32768), (OpenWait, 65536..98304), (Demand, 131072..139264)];
    let _answers = jobs.map(|(class, bytes)| rig.push(class, bytes, None).1);
    let first = rig.drain();
    assert_eq!(starts(&first), [(Demand, 131072), (OpenWait, 65536), (OpenWait, 73728)]);
    let _later = rig.push(Demand, 262144..270336, None);
    assert_eq!(starts(&rig.drain()), [(Demand, 262144)]);
    // Bulk waits until there is room under its own limit.
    for piece in first {
        rig.complete(piece);
    }
    assert_eq!(starts(&rig.drain()), [(OpenWait, 81920), (OpenWait, 90112)]);
}

#[test]
fn a_source_that_does_not_answer_leaves_room_for_others() {
    let mut rig = Rig::new();
    let (_, _stuck) = rig.push(Class::Demand, 0..65536, None);
    let stuck = rig.drain();
    assert_eq!(stuck.len(), LIMITS.share());
    rig.source = Arc::new(SourceFile::with_direct(tempfile::tempfile().unwrap(), None));
    let (_, other) = rig.push(Class::Demand, 65536..81920, None);
    for start in [65536, 73728] {
        let piece = rig.next().expect("there is room for others");
        assert_eq!(piece.bytes.start, start);
        rig.complete(piece);
    }
    rig.answer();
    assert_eq!(other.try_recv(), Ok(Ok(())));
    assert!(rig.next().is_none());
    for piece in stuck {
        rig.complete(piece);
    }
    assert_eq!(rig.drain().len(), LIMITS.share());
}

#[test]
fn demand_jobs_take_turns_and_bulk_jobs_do_not() {
    use Class::*;
    for (class, expected) in [(Demand, [0, 65536, 8192, 16384]), (Prefetch, [0, 8192, 16384, 24576])] {
        let mut rig = Rig::new();
        let _answers = [0..32768, 65536..69632].map(|bytes| rig.push(class, bytes, None).1);
        let mut issued = Vec::new();
        for _ in 0..4 {
            let piece = rig.next().expect("more is wanted");
            issued.push(piece.bytes.start);
            rig.complete(piece);
        }
        assert_eq!(issued, expected, "{class:?}");
    }
}

#[test]
fn a_promoted_job_overtakes_and_cannot_be_cancelled() {
    let mut rig = Rig::new();
    let ticket = Cancel::new();
    let (_, _first) = rig.push(Class::Prefetch, 0..32768, None);
    let (wanted, answers) = rig.push(Class::Prefetch, 65536..81920, Some(&ticket));
    rig.queue.promote(wanted, Class::Demand);
    ticket.cancel();
    let pieces = rig.drain();
    assert_eq!(starts(&pieces), [(Class::Demand, 65536), (Class::Demand, 73728)]);
    for piece in pieces {
        rig.complete(piece);
    }
    rig.answer();
    assert_eq!(answers.try_recv(), Ok(Ok(())));
    assert_eq!(starts(&rig.drain()), [(Class::Prefetch, 0), (Class::Prefetch, 8192)]);
}

#[test]
fn a_cancelled_job_is_answered_when_nothing_of_it_is_in_flight() {
    let mut rig = Rig::new();
    let ticket = Cancel::new();
    let (_, answers) = rig.push(Class::Prefetch, 0..65536, Some(&ticket));
    let pieces = rig.drain();
    assert_eq!(pieces.len(), LIMITS.depth[2]);
    ticket.cancel();
    for piece in pieces {
        assert!(rig.next().is_none());
        rig.answer();
        assert!(answers.try_recv().is_err(), "memory is still written to");
        rig.complete(piece);
    }
    assert!(rig.next().is_none());
    rig.answer();
    assert_eq!(answers.try_recv(), Ok(Err(FillError::Cancelled)));
}

#[test]
fn errors_are_retried_after_pauses_that_hold_up_nobody_else() {
    let mut rig = Rig::new();
    let (_, broken) = rig.push(Class::Demand, 0..8192, None);
    for attempt in 0..4 {
        let piece = rig.next().expect("an attempt is due");
        rig.settle(piece, Err(Errno::IO));
        if attempt < 3 {
            assert!(rig.next().is_none(), "a pause comes first");
            let (_, other) = rig.push(Class::Prefetch, 65536..69632, None);
            let piece = rig.next().expect("others go on");
            rig.complete(piece);
            rig.answer();
            assert_eq!(other.try_recv(), Ok(Ok(())));
            rig.now = rig.queue.next_pause_ends().expect("a pause");
        }
    }
    rig.answer();
    let errno = Errno::IO.raw_os_error();
    assert_eq!(broken.try_recv(), Ok(Err(FillError::Io { offset: 0, errno })));
    assert_eq!((rig.queue.counters().retries, rig.queue.counters().errors), (3, 1));
}

#[test]
fn closing_ends_what_waits_and_keeps_what_is_in_flight_until_it_returns() {
    let mut rig = Rig::new();
    let (_, whole) = rig.push(Class::Demand, 0..8192, None);
    let (_, half) = rig.push(Class::Demand, 65536..131072, None);
    let (_, waiting) = rig.push(Class::Prefetch, 262144..262145, None);
    let pieces = rig.drain();
    rig.queue.close();
    rig.answer();
    assert_eq!(waiting.try_recv(), Ok(Err(FillError::Shutdown)));
    assert!(whole.try_recv().is_err() && half.try_recv().is_err());
    for piece in pieces {
        rig.complete(piece);
    }
    rig.answer();
    assert_eq!((whole.try_recv(), half.try_recv()), (Ok(Ok(())), Ok(Err(FillError::Shutdown))));
    let (_, late) = rig.push(Class::Demand, 0..8192, None);
    rig.answer();
    assert_eq!(late.try_recv(), Ok(Err(FillError::Shutdown)));
    assert!(rig.next().is_none());
}
