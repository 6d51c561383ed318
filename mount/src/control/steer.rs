//! What is asked for on files: pins, prefetches, evictions, the budget, recordings.

use std::ops::Range;
use std::path::Path;

use weightfs::control::{
    BudgetRequest, ControlError, EventKind, EvictRequest, Job, Outcome, PinRequest, PrefetchRequest, TraceStatus,
    TraceSummary,
};
use weightfs::pattern::Pattern;

use super::Control;
use super::hub::event;
use super::prefetch::Wanted;
use super::rights::Peer;

/// Paths that one prefetch may name.
const MOST_NAMED: usize = 1000;
/// Files that one prefetch may name: each is held open.
const MOST_PREFETCHED: usize = 10_000;

impl Control {
    pub fn pin(&self, request: &PinRequest) -> Result<Outcome, ControlError> {
        let done = self.pins.pin(&request.path, request.tensors.as_ref())?;
        if let Some(priority) = request.priority {
            self.set_priority(&request.path, priority)?;
        }
        self.tell_asked(EventKind::Pinned, &request.path, &done, request.tensors.as_ref());
        Ok(done)
    }

    pub fn unpin(&self, path: &Path) -> Result<Outcome, ControlError> {
        let done = self.pins.unpin(path)?;
        self.tell_asked(EventKind::Unpinned, path, &done, None);
        Ok(done)
    }

    pub fn prefetch(&self, peer: &Peer, request: &PrefetchRequest) -> Result<Job, ControlError> {
        if request.paths.len() > MOST_NAMED {
            return Err(ControlError::BadRequest(format!("name at most {MOST_NAMED} paths at a time")));
        }
        let mut wanted = Vec::new();
        for path in &request.paths {
            for file in self.places.files(path)? {
                if wanted.len() == MOST_PREFETCHED {
                    return Err(ControlError::BadRequest(format!("these are more than {MOST_PREFETCHED} files")));
                }
                let opened = self.places.open_to_keep(&file)?;
                let ranges = match (&request.tensors, request.component) {
                    (None, None) => None,
                    (Some(_), Some(_)) => {
                        return Err(ControlError::BadRequest("name tensors or a component, not both".to_owned()));
                    }
                    (Some(tensors), None) => Some(self.tensor_ranges(&opened, tensors)),
                    (None, Some(part)) => {
                        Some(Self::component_ranges(&self.store.tensor_map(&opened.generation), part))
                    }
                };
                wanted.push(Wanted { opened, ranges });
            }
        }
        if wanted.is_empty() {
            return Err(ControlError::BadRequest("name at least one path".to_owned()));
        }
        let job = self.jobs.start(&self.store, wanted, *peer)?;
        self.hub.tell(|| {
            let path = request.paths.first().filter(|_| request.paths.len() == 1).map(|path| path.as_path());
            event(EventKind::Prefetch, path, Some(job.bytes_total), Some(format!("job {} has begun", job.id)))
        });
        Ok(job)
    }

    /// For who has asked for it, and for those who may change everything.
    pub fn cancel(&self, peer: &Peer, id: &str) -> Result<Job, ControlError> {
        if !self.jobs.is_of(id, peer)? {
            self.rights.may_steer(peer, None)?;
        }
        let running = !self.jobs.get(id)?.state.has_ended();
        let job = self.jobs.cancel(&self.store, id)?;
        if running {
            self.tell_job(&job);
        }
        Ok(job)
    }

    pub(super) fn tell_job(&self, job: &Job) {
        let state = serde_json::to_value(job.state).ok();
        let state = state.as_ref().and_then(serde_json::Value::as_str).unwrap_or_default();
        let reason = format!("job {} has ended: {state}", job.id);
        self.hub.tell(|| event(EventKind::Prefetch, None, Some(job.bytes_done), Some(reason)));
    }

    pub fn evict(&self, request: &EvictRequest) -> Result<Outcome, ControlError> {
        let mut outcome = Outcome::default();
        for file in self.places.files(&request.path)? {
            outcome.files += 1;
            if let Some(generation) = self.store.find(&self.places.identity(&file)?) {
                let evicted = self.store.evict_file(&generation, request.tensors.as_ref());
                outcome.bytes += evicted.freed;
                outcome.left_bytes += evicted.kept;
            }
        }
        Ok(outcome)
    }

    pub fn flush(&self) -> Outcome {
        let before = self.store.generations().iter().filter(|generation| generation.resident_bytes() > 0).count();
        let evicted = self.store.flush();
        Outcome { files: before as u64, bytes: evicted.freed, left_bytes: evicted.kept }
    }

    pub fn budget(&self, request: &BudgetRequest) -> Result<(), ControlError> {
        let most = self.store.ram_report().limit;
        if let Some(asked) = request.limit_bytes.filter(|asked| *asked > most) {
            return Err(ControlError::BadRequest(format!(
                "{asked} bytes are more than the {most} of --ram, with which the mount was started"
            )));
        }
        self.set_limit(request.limit_bytes, request.seconds)
    }

    pub fn start_trace(&self, file: &Path) -> Result<TraceStatus, ControlError> {
        // The daemon would wait for itself.
        if self.places.contain(file) {
            return Err(ControlError::Failed(format!(
                "{} lies in a mount of this daemon; name a file elsewhere",
                file.display()
            )));
        }
        if !file.is_absolute() {
            return Err(ControlError::BadRequest("name the file by an absolute path".to_owned()));
        }
        self.store.start_trace(file).map_err(trace_failed)?;
        Ok(self.trace())
    }

    pub fn stop_trace(&self) -> Result<TraceSummary, ControlError> {
        self.store.stop_trace().map_err(trace_failed)
    }

    pub fn trace(&self) -> TraceStatus {
        let file = self.store.trace_file();
        TraceStatus { recording: file.is_some(), file }
    }

    fn tensor_ranges(&self, opened: &weightfs::store::Opened, tensors: &Pattern) -> Vec<Range<u64>> {
        let map = self.store.tensor_map(&opened.generation);
        let named = map.tensors().iter().filter(|tensor| tensors.matches(tensor.name.as_bytes()));
        named.map(|tensor| tensor.bytes.clone()).collect()
    }

    fn tell_asked(&self, kind: EventKind, path: &Path, done: &Outcome, tensors: Option<&Pattern>) {
        let reason = tensors.map(|tensors| format!("only {tensors}"));
        self.hub.tell(|| event(kind, Some(path), Some(done.bytes), reason));
    }
}

fn trace_failed(error: impl std::error::Error) -> ControlError {
    ControlError::Failed(error.to_string())
}
