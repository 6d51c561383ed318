//! The engine as its users hold it, and the threads that it consists of.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::thread::{self, JoinHandle};
use std::time::Instant;

use parking_lot::{Condvar, Mutex};
use rustix::io::Errno;

use super::completion::Completions;
use super::piece::{Mode, Piece};
use super::queue::{JobId, Queue};
use super::readers::{self, Handoff};
use super::speed::Counters;
use super::storage::{Limits, Storage};
use super::{Class, Job, ring};
use crate::sys::uring::Waker;

const COMPLETION_THREADS: usize = 3;

/// Beside a ring, for what comes out of the page cache: memory bandwidth is had by a few.
const RING_READERS: usize = 4;

/// Which way of reading is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EngineChoice {
    /// io_uring where it works, else threads.
    Auto,
    Uring,
    Threads,
}

/// Why no engine could be started.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    #[error("io_uring cannot be used: {error}; {}", EngineError::advice(.error))]
    Uring { error: io::Error },
    #[error("a thread for reading could not be started: {0}; raise the limit on processes (ulimit -u, or pids.max)")]
    Thread(io::Error),
}

fn uring(error: io::Error) -> EngineError {
    EngineError::Uring { error }
}

impl EngineError {
    /// What to do where io_uring fails with `error`.
    pub fn advice(error: &io::Error) -> &'static str {
        match error.raw_os_error().map(Errno::from_raw_os_error) {
            Some(Errno::PERM | Errno::ACCESS) => {
                "allow it with 'sysctl kernel.io_uring_disabled=0', or in a container with a seccomp profile that permits \
                 io_uring_setup, io_uring_enter and io_uring_register ('docker run --security-opt seccomp=FILE'), or read \
                 with threads instead"
            }
            Some(Errno::NOMEM) => "raise the limit on locked memory ('ulimit -l'), or read with threads instead",
            _ => {
                "it needs Linux 5.11 with CONFIG_IO_URING and a sandbox that lets it through, or read with threads instead"
            }
        }
    }
}

/// What the threads of an engine share.
pub(crate) struct Shared {
    pub queue: Mutex<Queue>,
    /// The queue has something new.
    pub changed: Condvar,
    pub completions: Completions,
    /// Of the ring's thread, where there is one.
    waker: Option<Arc<Waker>>,
}

impl Shared {
    fn new(limits: Limits, waker: Option<Arc<Waker>>) -> Arc<Self> {
        let (queue, completions) = (Mutex::new(Queue::new(limits)), Completions::default());
        Arc::new(Self { queue, changed: Condvar::new(), completions, waker })
    }

    /// Takes back a piece after an attempt.
    pub fn settle(&self, piece: Piece, mode: Mode, result: Result<usize, Errno>) {
        let mut queue = self.queue.lock();
        queue.settle(piece, mode, result, Instant::now());
        let finished = queue.take_finished();
        drop(queue);
        self.completions.push(finished);
    }

    /// Has whoever takes pieces from the queue look at it again.
    pub fn wake(&self) {
        match &self.waker {
            Some(waker) => waker.wake(),
            None => {
                self.changed.notify_all();
            }
        }
    }

    /// Changes the queue from outside and lets its driver know.
    fn change<R>(&self, change: impl FnOnce(&mut Queue) -> R) -> R {
        let mut queue = self.queue.lock();
        let result = change(&mut queue);
        let finished = queue.take_finished();
        drop(queue);
        self.completions.push(finished);
        self.wake();
        result
    }
}

/// Fills memory from source files of one storage device. A handle: clones share the engine, and the last one that
/// goes shuts it down.
#[derive(Clone)]
pub struct Engine(Arc<Inner>);

struct Inner {
    shared: Arc<Shared>,
    kind: &'static str,
    drivers: Mutex<Vec<JoinHandle<()>>>,
    completers: Mutex<Vec<JoinHandle<()>>>,
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine").field("kind", &self.kind()).finish_non_exhaustive()
    }
}

impl Engine {
    /// Starts the threads of an engine for files that lie on `storage`.
    pub fn start(choice: EngineChoice, storage: Storage) -> Result<Engine, EngineError> {
        let limits = storage.limits();
        let inner = match choice {
            EngineChoice::Uring => Inner::with_ring(limits)?,
            EngineChoice::Threads => Inner::with_threads(limits)?,
            EngineChoice::Auto => match Inner::with_ring(limits) {
                Err(error @ EngineError::Uring { .. }) => {
                    tracing::warn!("reading with threads, which costs some speed: {error}");
                    Inner::with_threads(limits)?
                }
                inner => inner?,
            },
        };
        for _ in 0..COMPLETION_THREADS {
            let shared = Arc::clone(&inner.shared);
            inner.completers.lock().push(spawn("fill-done", move || shared.completions.run())?);
        }
        Ok(Engine(Arc::new(inner)))
    }

    /// Queues a job and returns at once. Its `done` is called exactly once, also when the engine shuts down.
    ///
    /// # Panics
    /// Where the job is not aligned or does not fit into its memory.
    pub fn submit(&self, job: Job) -> JobId {
        self.0.shared.change(|queue| queue.push(job))
    }

    /// Moves what is left of a job up to a higher class, because somebody waits for it by now. It can no longer be
    /// cancelled then. Nothing happens where the job has ended or is of that class already.
    pub fn promote(&self, job: JobId, class: Class) {
        self.0.shared.change(|queue| queue.promote(job, class));
    }

    /// `io_uring` or `threads`.
    pub fn kind(&self) -> &'static str {
        self.0.kind
    }

    pub fn counters(&self) -> Counters {
        self.0.shared.queue.lock().counters()
    }

    /// Ends all jobs, those that are not in flight with [`super::FillError::Shutdown`], and waits until nothing is:
    /// for the storage, that is. Jobs that another handle submits later end in the same way. When the last handle
    /// has gone too, every job was answered and no thread is left.
    pub fn shutdown(self) {
        self.0.stop_reading();
    }
}

// Each of these threads ends when the queue is closed, which dropping what was started so far does.
impl Inner {
    fn new(shared: Arc<Shared>, kind: &'static str) -> Self {
        Self { shared, kind, drivers: Mutex::default(), completers: Mutex::default() }
    }

    fn with_threads(limits: Limits) -> Result<Self, EngineError> {
        let inner = Self::new(Shared::new(limits, None), "threads");
        for _ in 0..limits.depth[Class::Demand as usize] {
            let shared = Arc::clone(&inner.shared);
            inner.drivers.lock().push(spawn("fill-read", move || readers::serve_queue(&shared))?);
        }
        Ok(inner)
    }

    fn with_ring(limits: Limits) -> Result<Self, EngineError> {
        let waker = Waker::new().map_err(uring)?;
        let inner = Self::new(Shared::new(limits, Some(Arc::clone(&waker))), "io_uring");
        let handoff = Arc::new(Handoff::new(RING_READERS));
        let (report, started) = sync_channel(1);
        let (shared, handing) = (Arc::clone(&inner.shared), Arc::clone(&handoff));
        let depth = limits.depth[Class::Demand as usize];
        let thread = spawn("fill-ring", move || ring::run(&shared, &handing, depth, waker, report))?;
        inner.drivers.lock().push(thread);
        started.recv().unwrap_or_else(|_| Err(Errno::CANCELED.into())).map_err(uring)?;
        for _ in 0..RING_READERS {
            let (shared, handoff) = (Arc::clone(&inner.shared), Arc::clone(&handoff));
            inner.drivers.lock().push(spawn("fill-read", move || handoff.serve(&shared))?);
        }
        Ok(inner)
    }

    fn stop_reading(&self) {
        self.shared.change(Queue::close);
        join(&self.drivers);
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.stop_reading();
        self.shared.completions.close();
        join(&self.completers);
    }
}

/// Waits for threads to end, except for the one that this is called on: the last handle may go in a `done`.
fn join(threads: &Mutex<Vec<JoinHandle<()>>>) {
    let threads = std::mem::take(&mut *threads.lock());
    for thread in threads.into_iter().filter(|other| other.thread().id() != thread::current().id()) {
        if thread.join().is_err() {
            tracing::error!("a thread of the fill engine panicked");
        }
    }
}

fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>, EngineError> {
    thread::Builder::new().name(name.to_owned()).spawn(run).map_err(EngineError::Thread)
}
