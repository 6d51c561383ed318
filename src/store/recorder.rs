//! Records a trace of what the policy is told and decides, in a file, on a thread of its own.
//!
//! The policy hears of reads in batches ([`super::touched`]), never while a read is answered, so that neither does this.
//! What comes faster than it can be written is counted and left out.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufWriter};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::Store;
use crate::control::TraceSummary;
use crate::ids::{ExtentIndex, FileId};
use crate::residency::UseKind;
use crate::trace::{Event, What, Writer};

/// Events that may wait to be written.
const QUEUE: usize = 1 << 16;

/// How long a trace may be behind what has happened, for those who look at it while it grows.
const FLUSH: Duration = Duration::from_secs(1);

#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    #[error("a trace is being recorded to {} already; end it with 'weightfs trace stop'", .0.display())]
    Running(PathBuf),
    #[error("no trace is being recorded; begin with 'weightfs trace start FILE'")]
    NotRunning,
    #[error("{} is there already; name a new file", .0.display())]
    Exists(PathBuf),
    #[error("{} cannot be written: {error}", .path.display())]
    File { path: PathBuf, error: io::Error },
}

/// A trace that grows.
pub(super) struct Recorder {
    path: PathBuf,
    events: SyncSender<Event>,
    thread: JoinHandle<io::Result<()>>,
    started: Instant,
    count: u64,
    lost: u64,
    /// Opens that last, by file, the latest at the end.
    opens: HashMap<FileId, Vec<Open>>,
    next: u32,
}

struct Open {
    number: u32,
    kind: UseKind,
}

impl Recorder {
    fn start(path: &Path) -> Result<Self, RecordError> {
        let failed = |error| RecordError::File { path: path.to_owned(), error };
        let file = File::create_new(path).map_err(|error| match error.kind() {
            io::ErrorKind::AlreadyExists => RecordError::Exists(path.to_owned()),
            _ => failed(error),
        })?;
        let writer = Writer::new(BufWriter::new(file)).map_err(failed)?;
        let (events, received) = sync_channel(QUEUE);
        let spawned = std::thread::Builder::new().name("trace".to_owned()).spawn(move || write(writer, &received));
        Ok(Self {
            path: path.to_owned(),
            events,
            thread: spawned.map_err(failed)?,
            started: Instant::now(),
            count: 0,
            lost: 0,
            opens: HashMap::new(),
            next: 0,
        })
    }

    pub(super) fn record(&mut self, what: What) {
        let event = Event { at_ms: self.started.elapsed().as_millis() as u64, what };
        match self.events.try_send(event) {
            Ok(()) => self.count += 1,
            Err(_) => self.lost += 1,
        }
    }

    /// An open that turns out to be a load ends as one, and goes on as one under the same number.
    pub(super) fn opened(&mut self, file: FileId, kind: UseKind) {
        let opens = self.opens.entry(file).or_default();
        let number = match opens.last_mut().filter(|_| kind == UseKind::Load) {
            Some(open) => {
                open.kind = kind;
                let number = open.number;
                self.record(What::Close { open: number, kind });
                number
            }
            None => {
                let number = self.next;
                self.next = self.next.wrapping_add(1);
                opens.push(Open { number, kind });
                number
            }
        };
        self.record(What::Open { open: number, file, kind });
    }

    pub(super) fn read(&mut self, file: FileId, extents: &[Range<ExtentIndex>], kind: UseKind) {
        let find = |opens: &HashMap<FileId, Vec<Open>>| {
            let opens = opens.get(&file)?;
            let of_kind = opens.iter().rev().find(|open| open.kind == kind).or(opens.last());
            of_kind.map(|open| open.number)
        };
        let number = find(&self.opens).or_else(|| {
            // It was open before the trace began.
            self.opened(file, kind);
            find(&self.opens)
        });
        for (open, run) in number.iter().flat_map(|open| extents.iter().map(|run| (*open, run.clone()))) {
            self.record(What::Read { open, extents: run });
        }
    }

    pub(super) fn closed(&mut self, file: FileId, kind: UseKind) {
        if let Some(open) = self.opens.get_mut(&file).and_then(Vec::pop) {
            self.record(What::Close { open: open.number, kind });
        }
    }

    pub(super) fn forget(&mut self, file: FileId) {
        self.opens.remove(&file);
    }

    fn stop(self) -> Result<TraceSummary, RecordError> {
        let Self { path, events, thread, count, lost, .. } = self;
        drop(events);
        let written = thread.join().unwrap_or_else(|_| Err(io::Error::other("the thread that writes it panicked")));
        match written {
            Ok(()) => Ok(TraceSummary { file: path, events: count, lost }),
            Err(error) => Err(RecordError::File { path, error }),
        }
    }
}

fn write(mut writer: Writer<BufWriter<File>>, events: &Receiver<Event>) -> io::Result<()> {
    loop {
        match events.recv_timeout(FLUSH) {
            Ok(event) => writer.record(&event)?,
            Err(RecvTimeoutError::Timeout) => writer.flush()?,
            Err(RecvTimeoutError::Disconnected) => return writer.finish().map(drop),
        }
    }
}

impl Store {
    /// Begins to record what happens in a new file at `path`.
    ///
    /// # Errors
    /// Where a trace is being recorded already, or the file cannot be made.
    pub fn start_trace(&self, path: &Path) -> Result<(), RecordError> {
        if let Some(running) = self.residency.lock().recorder() {
            return Err(RecordError::Running(running.path.clone()));
        }
        let recorder = Recorder::start(path)?;
        // Two at once: the second finds the first, and its own file is all it has done.
        match self.residency.lock().record_into(recorder) {
            None => Ok(()),
            Some(first) => {
                let path = first.path.clone();
                first.stop().and(Err(RecordError::Running(path)))
            }
        }
    }

    /// Where a recording that is under way goes.
    pub fn trace_file(&self) -> Option<PathBuf> {
        self.residency.lock().recorder().map(|recorder| recorder.path.clone())
    }

    /// Ends what [`Store::start_trace`] began, and says how it went.
    ///
    /// # Errors
    /// Where nothing was recorded, or not everything could be written.
    pub fn stop_trace(&self) -> Result<TraceSummary, RecordError> {
        let recorder = self.residency.lock().stop_recording();
        recorder.ok_or(RecordError::NotRunning)?.stop()
    }

    /// Ends a recording, if there is one, with the process that makes it.
    pub fn finish_trace(&self) {
        match self.stop_trace() {
            Ok(_) | Err(RecordError::NotRunning) => {}
            Err(error) => tracing::error!(%error, "the trace is not complete"),
        }
    }
}
