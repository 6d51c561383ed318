//! Carries out what the control protocol asks beyond the mounts themselves.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

use weightfs::control::{ControlError, Explained, NextToGo, Outcome, Reply, Request};
use weightfs::fill::Class;
use weightfs::residency::Explanation;
use weightfs::store::{Generation, Opened, Store};
use weightfs::units::{EXTENT_SIZE, extent_count};

use crate::pins::Pins;
use crate::places::{Place, Places};

/// The longest that a request to prefetch is kept waiting.
const LONGEST_FILL: Duration = Duration::from_secs(3600);

pub struct Steering {
    store: Arc<Store>,
    places: Arc<Places>,
    pins: Pins,
}

impl Steering {
    /// `state_dir` holds what outlives the daemon.
    pub fn start(store: Arc<Store>, places: Vec<Place>, state_dir: &Path) -> std::io::Result<Self> {
        let places = Arc::new(Places::new(places));
        let pins = Pins::start(Arc::clone(&store), Arc::clone(&places), state_dir.join("pins.json"))?;
        Ok(Self { store, places, pins })
    }

    pub fn carry_out(&self, request: &Request) -> Result<Reply, ControlError> {
        match request {
            Request::Explain { path } => self.explain(path).map(|explained| Reply::Explained(Box::new(explained))),
            Request::Pin { path, tensors } => self.pins.pin(path, tensors.as_ref()).map(Reply::Outcome),
            Request::Unpin { path } => self.pins.unpin(path).map(Reply::Outcome),
            Request::Prefetch { path, wait } => self.prefetch(path, *wait).map(Reply::Outcome),
            Request::Evict { path } => self.evict(path).map(Reply::Outcome),
            Request::StartTrace { file } => self.start_trace(file),
            Request::StopTrace => self.store.stop_trace().map(Reply::Trace).map_err(trace_failed),
            Request::Status | Request::Unmount { .. } | Request::Upgrade { .. } => {
                Err(ControlError::Failed("the request has come to the wrong place".to_owned()))
            }
        }
    }

    fn start_trace(&self, file: &Path) -> Result<Reply, ControlError> {
        // The daemon would wait for itself.
        if self.places.contain(file) {
            return Err(ControlError::Failed(format!(
                "{} lies in a mount of this daemon; name a file elsewhere",
                file.display()
            )));
        }
        self.store.start_trace(file).map(|()| Reply::Done).map_err(trace_failed)
    }

    fn files(&self, path: &Path) -> Result<Vec<PathBuf>, ControlError> {
        let files = self.places.files(path)?;
        if files.is_empty() {
            let reason = "no file has such a name".to_owned();
            return Err(ControlError::NoFile { path: path.to_owned(), reason });
        }
        Ok(files)
    }

    fn prefetch(&self, path: &Path, wait: bool) -> Result<Outcome, ControlError> {
        let mut opened = Vec::new();
        for file in self.files(path)? {
            let found = self.places.open(&file)?;
            let reason = "it is smaller than 1 MiB, or it has just been written".to_owned();
            opened.push(found.ok_or(ControlError::NoFile { path: file, reason })?);
        }
        let begin = |opened: &Opened| self.store.complete(&opened.generation);
        opened.iter().for_each(begin);
        if wait {
            let (settled, settling) = channel();
            for generation in opened.iter().map(|opened| &opened.generation) {
                let settled = settled.clone();
                let all = 0..extent_count(generation.size);
                // Whoever has stopped waiting needs no word.
                self.store.when_settled(generation, all, Class::OpenWait, move || _ = settled.send(()));
            }
            for _ in &opened {
                if settling.recv_timeout(LONGEST_FILL).is_err() {
                    return Err(ControlError::Failed("it takes too long; it goes on without being waited for".into()));
                }
            }
        }
        let sum = |bytes: fn(&Generation) -> u64| opened.iter().map(|opened| bytes(&opened.generation)).sum();
        let (bytes, left_bytes) = (sum(Generation::resident_bytes), sum(Generation::missing_bytes));
        Ok(Outcome { files: opened.len() as u64, bytes, left_bytes })
    }

    fn evict(&self, path: &Path) -> Result<Outcome, ControlError> {
        let mut outcome = Outcome::default();
        for file in self.files(path)? {
            outcome.files += 1;
            if let Some(generation) = self.store.find(&self.places.identity(&file)?) {
                let evicted = self.store.evict_file(&generation);
                outcome.bytes += evicted.freed;
                outcome.left_bytes += evicted.kept;
            }
        }
        Ok(outcome)
    }

    fn explain(&self, path: &Path) -> Result<Explained, ControlError> {
        let identity = self.places.identity(path)?;
        let generation = self.store.find(&identity);
        let ram = self.store.ram_report();
        let known = generation.as_ref().and_then(|generation| self.store.explain(generation));
        let mut explained = Explained {
            path: path.to_owned(),
            size_bytes: identity.size,
            resident_bytes: generation.map_or(0, |generation| generation.resident_bytes().min(identity.size)),
            pinned_bytes: 0,
            kept_bytes: 0,
            resident_seconds: None,
            unused_seconds: None,
            held: false,
            why: "nothing of it was read since it was last let go".to_owned(),
            next: None,
            policy: self.store.policy(),
            budget_bytes: ram.budget,
            budget_reason: ram.reason.to_string(),
        };
        if let Some(known) = known {
            fill_in(&mut explained, known, self.store.clock());
        }
        Ok(explained)
    }
}

fn fill_in(explained: &mut Explained, known: Explanation, now: Duration) {
    let ago = |then: Duration| now.saturating_sub(then).as_secs_f64();
    explained.why = why(&known);
    explained.pinned_bytes = known.pinned_bytes;
    explained.kept_bytes = known.kept_bytes;
    explained.resident_seconds = known.since.map(ago);
    explained.unused_seconds = known.last_use.map(ago);
    explained.held = known.held;
    explained.next = known.next.map(|next| NextToGo {
        bytes: next.extents.count() * EXTENT_SIZE,
        reason: next.reason.to_string(),
        bytes_before: next.bytes_before,
    });
}

fn why(known: &Explanation) -> String {
    let whole = known.size.next_multiple_of(EXTENT_SIZE);
    let what = match () {
        () if known.pinned_bytes >= whole => "it is pinned",
        () if known.pinned_bytes > 0 => "a part of it is pinned",
        () if known.queued.is_some() => "the queue needs it",
        () if known.in_use_until.is_some() => "it is marked as in use",
        () if known.kept_bytes >= whole => "the policy keeps it",
        () if known.kept_bytes > 0 => "the policy keeps a part of it: what else it keeps is worth as much",
        () if known.resident.is_empty() => "it was not used enough to take the place of what is resident",
        () => "there was room for it; the policy keeps others before it",
    };
    what.to_owned()
}

fn trace_failed(error: impl std::error::Error) -> ControlError {
    ControlError::Failed(error.to_string())
}
