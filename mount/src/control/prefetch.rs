//! Prefetches that were asked for, each a job with a number.
//!
//! A job holds its files open until they are read in, or until it is cancelled: what is read ahead of a file ends with
//! the last one that has it open.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use weightfs::control::{ControlError, Job, JobState};
use weightfs::fill::Class;
use weightfs::store::{Generation, Opened, Store};
use weightfs::units::extent_count;

use super::rights::Peer;

/// How long the end of a job is remembered.
const REMEMBERED: Duration = Duration::from_secs(600);

/// Jobs that may run at a time.
const MOST_RUNNING: usize = 256;

/// Over how long the speed of a job is measured.
const SPEED_OVER: Duration = Duration::from_secs(3);

/// A file of a job, and what of it is wanted.
#[derive(Debug)]
pub struct Wanted {
    pub opened: Opened,
    /// Bytes; all of it without any.
    pub ranges: Option<Vec<Range<u64>>>,
}

impl Wanted {
    fn total(&self) -> u64 {
        let generation = &self.opened.generation;
        self.ranges.as_ref().map_or(generation.size, |ranges| ranges.iter().map(|range| range.end - range.start).sum())
    }

    fn resident(&self) -> u64 {
        let generation = &self.opened.generation;
        match &self.ranges {
            None => generation.resident_bytes().min(generation.size),
            Some(ranges) => ranges.iter().map(|range| generation.resident_within(range)).sum(),
        }
    }
}

#[derive(Debug)]
struct Entry {
    by: Peer,
    files: u64,
    total: u64,
    began: Instant,
    /// How much was resident before.
    before: u64,
    /// Fills that have not ended.
    left: Arc<AtomicU64>,
    /// While it runs.
    wanted: Vec<Wanted>,
    /// Bytes that were resident at these moments, of the last few seconds.
    course: Vec<(Instant, u64)>,
    /// Once it has ended.
    end: Option<(Instant, JobState, u64)>,
    detail: Option<String>,
}

/// All jobs of a daemon.
#[derive(Debug, Default)]
pub struct Jobs {
    entries: Mutex<BTreeMap<String, Entry>>,
    /// So that a job of a former daemon is not taken for one of this.
    next: AtomicU64,
}

impl Jobs {
    /// Starts to read files in.
    pub fn start(&self, store: &Arc<Store>, wanted: Vec<Wanted>, by: Peer) -> Result<Job, ControlError> {
        {
            let mut entries = self.entries.lock();
            entries.values_mut().for_each(Entry::settle);
            entries.retain(|_, entry| entry.end.is_none_or(|(at, ..)| at.elapsed() < REMEMBERED));
            if entries.values().filter(|entry| entry.end.is_none()).count() >= MOST_RUNNING {
                return Err(ControlError::Failed(format!(
                    "{MOST_RUNNING} prefetches are running already; wait for some to end"
                )));
            }
        }
        let id = format!("{:x}-{}", std::process::id(), self.next.fetch_add(1, Ordering::Relaxed));
        let left = Arc::new(AtomicU64::new(wanted.len() as u64));
        let before = wanted.iter().map(Wanted::resident).sum();
        for file in &wanted {
            let generation = &file.opened.generation;
            store.prefetch(&file.opened, file.ranges.as_deref());
            let left = Arc::clone(&left);
            store.when_settled(generation, 0..extent_count(generation.size), Class::Prefetch, move || {
                left.fetch_sub(1, Ordering::AcqRel);
            });
        }
        let mut entry = Entry {
            by,
            files: wanted.len() as u64,
            total: wanted.iter().map(Wanted::total).sum(),
            began: Instant::now(),
            before,
            left,
            wanted,
            course: Vec::new(),
            end: None,
            detail: None,
        };
        let job = entry.report(&id);
        self.entries.lock().insert(id, entry);
        Ok(job)
    }

    pub fn get(&self, id: &str) -> Result<Job, ControlError> {
        let mut entries = self.entries.lock();
        entries.get_mut(id).map(|entry| entry.report(id)).ok_or_else(|| unknown(id))
    }

    /// Whether it was asked for by this user.
    pub fn is_of(&self, id: &str, peer: &Peer) -> Result<bool, ControlError> {
        let entries = self.entries.lock();
        let entry = entries.get(id).ok_or_else(|| unknown(id))?;
        Ok(match (entry.by, *peer) {
            (Peer::Local { uid, .. }, Peer::Local { uid: other, .. }) => uid == other,
            (by, other) => by == other,
        })
    }

    /// Ends a job. One that has ended already is not changed by that.
    pub fn cancel(&self, store: &Store, id: &str) -> Result<Job, ControlError> {
        let mut entries = self.entries.lock();
        let entry = entries.get_mut(id).ok_or_else(|| unknown(id))?;
        entry.settle();
        if entry.end.is_none() {
            let generations: Vec<Arc<Generation>> =
                entry.wanted.iter().map(|file| Arc::clone(&file.opened.generation)).collect();
            entry.finish(JobState::Cancelled);
            generations.iter().for_each(|generation| store.cancel_prefetch(generation));
        }
        Ok(entry.report(id))
    }

    /// Lets go of the files of jobs that have ended; returns those that have since the last time.
    pub fn look(&self) -> Vec<Job> {
        let mut entries = self.entries.lock();
        let running = entries.iter_mut().filter(|(_, entry)| entry.end.is_none());
        running.map(|(id, entry)| entry.report(id)).filter(|job| job.state.has_ended()).collect()
    }

    /// Ends all of them.
    pub fn stop(&self) {
        self.entries.lock().clear();
    }

    pub fn running(&self) -> usize {
        self.entries.lock().values().filter(|entry| entry.end.is_none()).count()
    }
}

impl Entry {
    fn resident(&self) -> u64 {
        self.end.map_or_else(|| self.wanted.iter().map(Wanted::resident).sum(), |(.., resident)| resident)
    }

    /// Notices that it has ended.
    fn settle(&mut self) {
        if self.end.is_some() || self.left.load(Ordering::Acquire) > 0 {
            return;
        }
        let changed = self.wanted.iter().any(|file| file.opened.generation.is_dead());
        self.finish(if changed { JobState::Failed } else { JobState::Done });
        self.detail = match () {
            () if changed => Some("a file was changed while it was read; ask again".to_owned()),
            () if self.resident() < self.total => Some(
                "the rest does not fit, is worth less than what is there, or could not be read: 'weightfs explain' \
                 says more"
                    .to_owned(),
            ),
            () => None,
        };
    }

    fn finish(&mut self, state: JobState) {
        self.end = Some((Instant::now(), state, self.resident()));
        self.wanted = Vec::new();
        self.course = Vec::new();
    }

    fn report(&mut self, id: &str) -> Job {
        self.settle();
        let resident = self.resident();
        Job {
            id: id.to_owned(),
            state: self.end.map_or(JobState::Running, |(_, state, _)| state),
            files: self.files,
            bytes_done: resident,
            bytes_total: self.total,
            bytes_per_second: self.speed(resident),
            detail: self.detail.clone(),
        }
    }

    fn speed(&mut self, resident: u64) -> u64 {
        let (since, before, until) = match self.end {
            Some((at, ..)) => (self.began, self.before, at),
            None => {
                let now = Instant::now();
                self.course.retain(|(at, _)| now.duration_since(*at) < SPEED_OVER);
                let (since, before) = self.course.first().copied().unwrap_or((self.began, self.before));
                if self.course.last().is_none_or(|(at, _)| now.duration_since(*at) > SPEED_OVER / 30) {
                    self.course.push((now, resident));
                }
                (since, before, now)
            }
        };
        let time = until.duration_since(since).as_secs_f64();
        if time > 0.0 { (resident.saturating_sub(before) as f64 / time) as u64 } else { 0 }
    }
}

fn unknown(id: &str) -> ControlError {
    ControlError::NotFound(format!("there is no job '{id}'; what has ended is forgotten after ten minutes"))
}
