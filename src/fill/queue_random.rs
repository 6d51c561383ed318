//! The queue under random operations: whatever happens, each job is answered once, truthfully, and never while a piece
//! of it is with a driver.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use proptest::prelude::*;
use rustix::io::Errno;

use super::piece::{Mode, Piece, Route};
use super::queue::{JobId, Queue};
use super::storage::Limits;
use super::{BLOCK, Cancel, Class, FillError, Job, SourceFile};
use crate::sys::mapping::Mapping;

const LIMITS: Limits = Limits { request: 4 * BLOCK, depth: [5, 3, 2] };

#[derive(Clone, Debug)]
enum Op {
    Push {
        class: usize,
        start: u64,
        len: u64,
        ticket: bool,
    },
    Next,
    /// Of what is in flight, the one with this number, with this outcome.
    Settle {
        which: usize,
        outcome: Result<u64, Errno>,
    },
    Promote {
        which: usize,
        class: usize,
    },
    Cancel {
        which: usize,
    },
    Wait {
        milliseconds: u64,
    },
    Close,
}

fn op() -> impl Strategy<Value = Op> {
    let outcome = prop_oneof![
        6 => Just(Ok(u64::MAX)),
        2 => (0..4 * BLOCK).prop_map(Ok),
        1 => prop_oneof![Just(Errno::IO), Just(Errno::INTR), Just(Errno::INVAL)].prop_map(Err),
    ];
    prop_oneof![
        4 => (0..3usize, 0..20u64, 0..40 * BLOCK, any::<bool>())
            .prop_map(|(class, start, len, ticket)| Op::Push { class, start: start * BLOCK, len, ticket }),
        12 => Just(Op::Next),
        10 => (any::<usize>(), outcome).prop_map(|(which, outcome)| Op::Settle { which, outcome }),
        1 => (any::<usize>(), 0..3usize).prop_map(|(which, class)| Op::Promote { which, class }),
        1 => any::<usize>().prop_map(|which| Op::Cancel { which }),
        2 => (0..200u64).prop_map(|milliseconds| Op::Wait { milliseconds }),
        1 => prop_oneof![9 => Just(Op::Next), 1 => Just(Op::Close)],
    ]
}

/// What the world outside the queue knows.
struct World {
    queue: Queue,
    now: Instant,
    source: Arc<SourceFile>,
    memory: Arc<Mapping>,
    in_flight: Vec<Piece>,
    /// What each job asked for, and its ticket.
    jobs: Vec<(JobId, Range<u64>, Option<Arc<Cancel>>)>,
    /// Which bytes of each job a driver said that it had read.
    read: HashMap<JobId, Vec<Range<u64>>>,
    answers: Arc<Mutex<HashMap<usize, Result<(), FillError>>>>,
}

impl World {
    fn new() -> Self {
        let file = tempfile::tempfile().unwrap();
        file.set_len(1 << 20).unwrap();
        Self {
            queue: Queue::new(LIMITS),
            now: Instant::now(),
            memory: Arc::new(Mapping::shared(&file, 1 << 20).unwrap()),
            source: Arc::new(SourceFile::with_direct(file, None)),
            in_flight: Vec::new(),
            jobs: Vec::new(),
            read: HashMap::new(),
            answers: Arc::default(),
        }
    }

    fn push(&mut self, class: usize, bytes: Range<u64>, ticket: bool) {
        let (number, answers) = (self.jobs.len(), Arc::clone(&self.answers));
        let ticket = ticket.then(Cancel::new);
        let id = self.queue.push(Job {
            source: Arc::clone(&self.source),
            bytes: bytes.clone(),
            memory: Arc::clone(&self.memory),
            at: bytes.start as usize,
            class: Class::ALL[class],
            ticket: ticket.clone(),
            done: Box::new(move |result| assert_eq!(answers.lock().insert(number, result), None, "answered twice")),
        });
        self.jobs.push((id, bytes, ticket));
    }

    fn settle(&mut self, which: usize, outcome: Result<u64, Errno>) {
        let Some(which) = which.checked_rem(self.in_flight.len()) else { return };
        let piece = self.in_flight.swap_remove(which);
        let result = outcome.map(|bytes| bytes.min(piece.len() as u64));
        if let Ok(bytes) = result {
            let start = piece.bytes.start;
            self.read.entry(piece.job).or_default().push(start..start + bytes);
        }
        let mode = if piece.route == Route::Buffered { Mode::Buffered } else { Mode::Direct };
        self.queue.settle(piece, mode, result.map(|bytes| bytes as usize), self.now);
    }

    fn apply(&mut self, op: Op) {
        match op {
            Op::Push { class, start, len, ticket } => self.push(class, start..start + len, ticket),
            Op::Next => self.in_flight.extend(self.queue.next(self.now)),
            Op::Settle { which, outcome } => self.settle(which, outcome),
            Op::Promote { which, class } => {
                if let Some(which) = which.checked_rem(self.jobs.len()) {
                    self.queue.promote(self.jobs[which].0, Class::ALL[class]);
                }
            }
            Op::Cancel { which } => {
                let which = which.checked_rem(self.jobs.len());
                if let Some(ticket) = which.and_then(|which| self.jobs[which].2.as_ref()) {
                    ticket.cancel();
                }
            }
            Op::Wait { milliseconds } => self.now += Duration::from_millis(milliseconds),
            Op::Close => self.queue.close(),
        }
    }

    /// Answers what has ended, and looks at what was said.
    fn check(&mut self) {
        for finished in self.queue.take_finished() {
            let answered: Vec<usize> = self.answers.lock().keys().copied().collect();
            (finished.done)(finished.result);
            let answers = self.answers.lock();
            let Some((number, result)) = answers.iter().find(|(number, _)| !answered.contains(number)) else {
                panic!("a job was answered and nobody heard");
            };
            let (id, bytes, _) = &self.jobs[*number];
            assert!(self.in_flight.iter().all(|piece| piece.job != *id), "answered while its memory is written to");
            if result.is_ok() {
                let mut read = self.read.remove(id).unwrap_or_default();
                read.sort_by_key(|range| range.start);
                let end = read
                    .iter()
                    .fold(bytes.start, |end, range| if range.start <= end { end.max(range.end) } else { end });
                assert!(end >= bytes.end, "{bytes:?} were said to be there, but {read:?} were read");
            }
        }
        assert!(self.in_flight.len() <= LIMITS.depth[0]);
    }
}

proptest! {
    #[test]
    fn each_job_is_answered_once_and_truthfully(ops in prop::collection::vec(op(), 1..200)) {
        let mut world = World::new();
        for op in ops {
            world.apply(op);
            world.check();
        }
        // With a device that works again, everything comes to its end.
        let mut rounds = 0;
        while world.answers.lock().len() < world.jobs.len() {
            world.now += Duration::from_secs(1);
            world.apply(Op::Next);
            world.apply(Op::Settle { which: 0, outcome: Ok(u64::MAX) });
            world.check();
            rounds += 1;
            prop_assert!(rounds < 20_000, "stuck");
        }
        prop_assert!(world.in_flight.is_empty());
    }
}
