//! One request of a job, and what becomes of it after each attempt.

use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::io::Errno;

use super::queue::JobId;
use super::source::SourceFile;
use super::{BLOCK, Class, FillError};
use crate::sys::mapping::Mapping;

/// How often a hard error is met with another attempt, and how long the first of them waits. Each later one waits
/// four times longer.
const HARD_RETRIES: u8 = 3;
const HARD_PAUSE: Duration = Duration::from_millis(10);

/// How often "not now" is believed before it counts as a hard error: EAGAIN in a row without any byte.
const SOFT_RETRIES: u8 = 100;
const SOFT_PAUSE: Duration = Duration::from_millis(1);

/// Which ways to the bytes are still open to a piece. Attempts only ever close them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Route {
    /// The page cache if it has the bytes, else the device.
    Any,
    /// The device: the page cache was asked and did not have all.
    Device,
    /// Through the page cache, because a direct read is refused or would not be aligned.
    Buffered,
}

/// The way that one attempt took.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Copied out of the page cache without waiting.
    Cached,
    /// O_DIRECT.
    Direct,
    /// Read through the page cache.
    Buffered,
}

#[derive(Debug)]
pub(crate) struct Piece {
    pub job: JobId,
    pub class: Class,
    pub source: Arc<SourceFile>,
    pub memory: Arc<Mapping>,
    /// What is still missing, in bytes of the source.
    pub bytes: Range<u64>,
    /// Where in `memory` the first missing byte goes.
    pub at: usize,
    pub route: Route,
    pub issued: Instant,
    hard: u8,
    soft: u8,
}

/// What to do with a piece after an attempt.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Complete,
    /// Another attempt, no sooner than after this time.
    Again(Duration),
    Failed(FillError),
}

impl Piece {
    pub fn new(
        job: JobId,
        class: Class,
        source: Arc<SourceFile>,
        memory: Arc<Mapping>,
        bytes: Range<u64>,
        at: usize,
        now: Instant,
    ) -> Self {
        Self { job, class, source, memory, bytes, at, route: Route::Any, issued: now, hard: 0, soft: 0 }
    }

    pub fn len(&self) -> usize {
        (self.bytes.end - self.bytes.start) as usize
    }

    /// The memory that is still missing.
    pub fn target(&self) -> Range<usize> {
        self.at..self.at + self.len()
    }

    /// Takes in what an attempt gave: at most `len()` bytes, or an error.
    pub fn judge(&mut self, mode: Mode, result: Result<usize, Errno>) -> Verdict {
        match result {
            Ok(read) if read >= self.len() => Verdict::Complete,
            Ok(read) => self.short(mode, read),
            Err(_) if mode == Mode::Cached => {
                self.route = Route::Device;
                Verdict::Again(Duration::ZERO)
            }
            Err(Errno::INVAL | Errno::OPNOTSUPP) if mode == Mode::Direct => {
                self.source.refuse_direct();
                self.route = Route::Buffered;
                Verdict::Again(Duration::ZERO)
            }
            Err(Errno::INTR | Errno::AGAIN) if self.soft < SOFT_RETRIES => {
                self.soft += 1;
                Verdict::Again(SOFT_PAUSE)
            }
            Err(errno) => self.hard(FillError::Io { offset: self.bytes.start, errno: errno.raw_os_error() }),
        }
    }

    fn short(&mut self, mode: Mode, read: usize) -> Verdict {
        // What follows must stay aligned for as long as it may be read directly.
        let kept = if mode == Mode::Buffered { read } else { read - read % BLOCK as usize };
        self.bytes.start += kept as u64;
        self.at += kept;
        if kept > 0 {
            (self.hard, self.soft) = (0, 0);
        }
        match mode {
            // Evicted in between, or the end of the file: the device knows.
            Mode::Cached => self.route = Route::Device,
            // The file ends inside this block, or the filesystem is odd: a buffered read tells.
            Mode::Direct if kept == 0 => self.route = Route::Buffered,
            Mode::Direct => {}
            Mode::Buffered if read == 0 => return Verdict::Failed(FillError::Truncated { offset: self.bytes.start }),
            Mode::Buffered => {}
        }
        Verdict::Again(Duration::ZERO)
    }

    fn hard(&mut self, error: FillError) -> Verdict {
        if self.hard == HARD_RETRIES {
            return Verdict::Failed(error);
        }
        let pause = HARD_PAUSE * 4u32.pow(self.hard.into());
        self.hard += 1;
        self.soft = 0;
        Verdict::Again(pause)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fill::queue::JobId;
    use proptest::prelude::*;

    fn attempt() -> impl Strategy<Value = Result<usize, Errno>> {
        prop_oneof![
            (0..20_000usize).prop_map(Ok),
            Just(Err(Errno::IO)),
            Just(Err(Errno::INTR)),
            Just(Err(Errno::AGAIN)),
            Just(Err(Errno::INVAL)),
        ]
    }

    proptest! {
        #[test]
        fn no_byte_is_skipped_and_none_is_claimed_that_was_not_read(
            blocks in 1..40u64,
            tail in 0..BLOCK,
            attempts in prop::collection::vec(attempt(), 1..60),
        ) {
            let file = tempfile::tempfile().unwrap();
            file.set_len(1 << 20).unwrap();
            let memory = Arc::new(Mapping::shared(&file, 1 << 20).unwrap());
            let source = Arc::new(SourceFile::with_direct(file, None));
            let bytes = BLOCK..BLOCK + blocks * BLOCK + tail;
            let mut piece =
                Piece::new(JobId::default(), Class::Demand, source, memory, bytes.clone(), 0, Instant::now());
            let mut modes = vec![Mode::Cached];
            for result in attempts {
                let mode = match piece.route {
                    Route::Any => Mode::Cached,
                    Route::Device if piece.bytes.start.is_multiple_of(BLOCK) => Mode::Direct,
                    Route::Device => panic!("{:?} can no longer be read directly", piece.bytes),
                    Route::Buffered => Mode::Buffered,
                };
                modes.push(mode);
                let (before, given) = (piece.bytes.start, *result.as_ref().unwrap_or(&0));
                let read = result.map(|read| read.min(piece.len()));
                let whole = read == Ok(piece.len());
                let verdict = piece.judge(mode, read);
                prop_assert!(piece.bytes.start <= before + given as u64);
                prop_assert_eq!(piece.bytes.end, bytes.end);
                prop_assert_eq!(piece.bytes.start - bytes.start, piece.at as u64);
                prop_assert_eq!(verdict == Verdict::Complete, whole);
                if !matches!(verdict, Verdict::Again(_)) {
                    break;
                }
            }
            let rank = |mode: &Mode| *mode as u8;
            prop_assert!(modes.is_sorted_by_key(rank), "no way that was given up is tried again: {:?}", modes);
        }
    }
}
