//! One content of a model file: its identity, its source, and what of it is in the arena.

use std::collections::HashMap;
use std::ops::Range;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use rustix::io::Errno;

use super::extents::Extents;
use super::memory::Course;
use super::touched::Touched;
use super::waiters::Waiters;
use super::writers::Writers;
use crate::arena::ArenaFile;
use crate::fill::{Cancel, Engine, JobId, SourceFile};
use crate::format::TensorMap;
use crate::ids::{ExtentIndex, FileId, GenerationId, SourceIdentity, Timestamp};
use crate::journal::{Legacy, Parked, Record};
use crate::units::{extent_bytes, extent_count};

/// How long a generation is believed to be the source's content without another look.
const TRUST_MILLISECONDS: u64 = 500;

pub struct Generation {
    pub id: GenerationId,
    file: FileId,
    /// Bytes.
    pub size: u64,
    pub source: Arc<SourceFile>,
    pub(super) extents: Extents,
    pub(super) touched: Touched,
    pub(super) waiters: Waiters,
    /// Made when the first extent is filled.
    arena: OnceLock<ArenaFile>,
    /// Where the tensors lie, once the header was read.
    pub(super) tensors: OnceLock<Arc<TensorMap>>,
    pub(super) parsing: AtomicBool,
    /// An earlier process has begun to fill it.
    inherited: AtomicBool,
    /// The whole file is to be filled once it is known where its tensors lie.
    pub(super) anticipated: AtomicBool,
    /// The engine's jobs for extents that nobody waited for when they were submitted.
    jobs: Mutex<HashMap<ExtentIndex, (JobId, Engine)>>,
    /// Opens that last.
    courses: Mutex<Vec<Arc<Course>>>,
    /// Some open of those that last loads the whole file, as far as is known.
    pub(super) loaded: AtomicBool,
    /// All of it is present or on its way.
    pub(super) filling_whole: AtomicBool,
    /// How often in a row what was read ahead was not all kept.
    pub(super) passed_over: AtomicU32,
    /// The order in which its tensors were read last time.
    pub(super) learned: OnceLock<Vec<u32>>,
    /// Why it is being filled ahead of its readers.
    prefetch: Mutex<Option<Arc<Cancel>>>,
    /// The store's count of occupied extents.
    occupied: Arc<AtomicU64>,
    identity: Mutex<SourceIdentity>,
    /// The source has other content now: nothing is filled any more, and no new open gets this.
    dead: AtomicBool,
    /// Until when it is believed to be the source's content, in milliseconds.
    believed: AtomicU64,
    /// How often it was doubted.
    doubts: AtomicU64,
    writers: Writers,
    /// Open handles of any kind.
    pub(super) handles: AtomicU32,
    /// Open passthrough handles. Held while extents are evicted, so that none is opened meanwhile.
    pub(super) passthrough: Mutex<u32>,
    /// What the policy was last told of whether clients hold it.
    pub(super) marked_held: AtomicBool,
    legacy: Arc<Legacy>,
}

impl std::fmt::Debug for Generation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Generation").field("id", &self.id).field("size", &self.size).finish_non_exhaustive()
    }
}

impl Generation {
    /// `now` in milliseconds, if the source was looked at just now.
    pub(super) fn new(
        id: GenerationId,
        file: FileId,
        source: Arc<SourceFile>,
        identity: SourceIdentity,
        occupied: Arc<AtomicU64>,
        now: Option<u64>,
        legacy: Arc<Legacy>,
    ) -> Self {
        Self {
            id,
            file,
            size: identity.size,
            source,
            extents: Extents::new(extent_count(identity.size)),
            touched: Touched::new(extent_count(identity.size)),
            waiters: Waiters::default(),
            arena: OnceLock::new(),
            tensors: OnceLock::new(),
            parsing: AtomicBool::new(false),
            inherited: AtomicBool::new(false),
            anticipated: AtomicBool::new(false),
            jobs: Mutex::default(),
            courses: Mutex::default(),
            loaded: AtomicBool::new(false),
            filling_whole: AtomicBool::new(false),
            passed_over: AtomicU32::new(0),
            learned: OnceLock::new(),
            prefetch: Mutex::default(),
            occupied,
            identity: Mutex::new(identity),
            dead: AtomicBool::new(false),
            believed: AtomicU64::new(now.map_or(0, |now| now + TRUST_MILLISECONDS)),
            doubts: AtomicU64::new(0),
            writers: Writers::default(),
            handles: AtomicU32::new(0),
            passthrough: Mutex::new(0),
            marked_held: AtomicBool::new(false),
            legacy,
        }
    }

    /// The name under which policies know this content.
    pub fn file_id(&self) -> FileId {
        self.file
    }

    /// The device that its source lies on.
    pub(super) fn device(&self) -> u64 {
        self.identity.lock().device
    }

    pub fn identity(&self) -> SourceIdentity {
        *self.identity.lock()
    }

    /// The same content under a new identity: something that leaves the bytes alone has moved the times.
    pub(super) fn rebind(&self, identity: SourceIdentity) {
        *self.identity.lock() = identity;
        self.legacy.note(&Record::Rebound { id: self.id, identity });
    }

    /// Whether every byte is in the arena.
    pub fn is_complete(&self) -> bool {
        self.extents.is_complete() && !self.is_dead()
    }

    /// As [`Generation::is_complete`], also where the source has other content by now.
    pub fn is_whole(&self) -> bool {
        self.extents.is_complete()
    }

    /// Whether a client has it open in passthrough.
    pub fn is_held(&self) -> bool {
        *self.passthrough.lock() > 0
    }

    /// Whether a client has it open in passthrough, or mapped.
    pub(super) fn is_open_or_mapped(&self) -> bool {
        // Held throughout: whoever opened it in passthrough meanwhile would wait for the lease.
        let passthrough = self.passthrough.lock();
        *passthrough > 0 || !self.arena().is_some_and(|arena| arena.sole_user().unwrap_or(false))
    }

    /// Bytes that are not in the arena.
    pub fn missing_bytes(&self) -> u64 {
        self.size.saturating_sub(self.resident_bytes())
    }

    /// Bytes that are in the arena.
    pub fn resident_bytes(&self) -> u64 {
        let (present, count) = (self.extents.present(), self.extents.count());
        if present == 0 {
            return 0;
        }
        let last = self.extents.is_present(count - 1);
        let whole = u64::from(present - u32::from(last)) * crate::units::EXTENT_SIZE;
        whole + if last { self.cost(count - 1) } else { 0 }
    }

    /// What an extent costs in the arena: its bytes in whole pages.
    pub(super) fn cost(&self, extent: ExtentIndex) -> u64 {
        let bytes = extent_bytes(extent, self.size);
        (bytes.end - bytes.start).next_multiple_of(4096)
    }

    pub fn arena(&self) -> Option<&ArenaFile> {
        self.arena.get()
    }

    /// The arena file, made by `make` if there is none yet.
    pub(super) fn arena_or<E>(&self, make: impl FnOnce() -> Result<ArenaFile, E>) -> Result<&ArenaFile, E> {
        if self.arena.get().is_none() {
            // Two makers at once: `make` refuses the second name, so it is serialised by this lock.
            let _making = self.passthrough.lock();
            if self.arena.get().is_none() {
                let made = make()?;
                self.leave_behind(&made);
                return Ok(self.arena.get_or_init(|| made));
            }
        }
        Ok(self.arena.get().expect("made by somebody else just now"))
    }

    /// From here on the next worker finds it.
    fn leave_behind(&self, arena: &ArenaFile) {
        let parked = self
            .legacy
            .park(Parked::ArenaFile(self.id), arena.as_file().as_fd())
            .and_then(|()| self.legacy.park(Parked::Source(self.id), self.source.file().as_fd()));
        match parked {
            Ok(()) => {
                self.legacy.note(&Record::Generation { id: self.id, file: self.file, identity: self.identity() });
            }
            Err(error) => tracing::warn!(%error, generation = %self.id, "it would not survive this process"),
        }
    }

    /// Takes over what an earlier process has filled.
    pub(super) fn adopt(&self, arena: ArenaFile, present: &[Range<ExtentIndex>]) {
        for extent in present.iter().cloned().flatten() {
            self.extents.begin_fill(extent);
            self.extents.filled(extent);
            arena.lock(extent);
        }
        self.occupied.fetch_add(u64::from(self.extents.present()), Ordering::AcqRel);
        let _ = self.arena.set(arena);
        self.inherited.store(true, Ordering::Release);
    }

    /// Whether threads of an earlier process may have been writing to its arena file.
    pub(super) fn is_inherited(&self) -> bool {
        self.inherited.load(Ordering::Acquire)
    }

    pub(super) fn remember_job(&self, extents: Range<ExtentIndex>, job: JobId, engine: &Engine) {
        let mut jobs = self.jobs.lock();
        // It may have ended in the meantime: then nobody asks for it, and it goes with the next one.
        let filling = extents.filter(|extent| self.extents.is_filling(*extent));
        let replaced: Vec<_> = filling.filter_map(|extent| jobs.insert(extent, (job, engine.clone()))).collect();
        // As below.
        drop(jobs);
        drop(replaced);
    }

    pub(super) fn forget_job(&self, extents: &Range<ExtentIndex>) {
        let mut jobs = self.jobs.lock();
        let gone: Vec<_> = extents.clone().filter_map(|extent| jobs.remove(&extent)).collect();
        // The last of an engine waits for its threads, which may want the table.
        drop(jobs);
        drop(gone);
    }

    pub(super) fn job_of(&self, extent: ExtentIndex) -> Option<(JobId, Engine)> {
        self.jobs.lock().get(&extent).cloned()
    }

    pub(super) fn begin_course(&self, course: &Arc<Course>) {
        self.courses.lock().push(Arc::clone(course));
    }

    pub(super) fn end_course(&self, course: &Arc<Course>) {
        self.courses.lock().retain(|other| !Arc::ptr_eq(other, course));
    }

    pub(super) fn courses(&self) -> Vec<Arc<Course>> {
        self.courses.lock().clone()
    }

    /// The reason for filling ahead: it goes with the last open.
    pub(super) fn prefetch_ticket(&self) -> Arc<Cancel> {
        Arc::clone(self.prefetch.lock().get_or_insert_with(Cancel::new))
    }

    pub(super) fn cancel_prefetch(&self) {
        if let Some(ticket) = self.prefetch.lock().take() {
            ticket.cancel();
            self.filling_whole.store(false, Ordering::Relaxed);
        }
    }

    /// Whether the source file has no name left.
    pub(super) fn is_unlinked(&self) -> bool {
        rustix::fs::fstat(self.source.file()).is_ok_and(|stat| stat.st_nlink == 0)
    }

    pub fn is_dead(&self) -> bool {
        self.dead.load(Ordering::Acquire)
    }

    /// True for the one that ended it.
    pub(super) fn kill(&self) -> bool {
        let was_alive = !self.dead.swap(true, Ordering::AcqRel);
        if was_alive && self.arena.get().is_some() {
            self.legacy.note(&Record::Ended { id: self.id });
        }
        was_alive
    }

    /// These extents are complete, and no longer so: the next worker must not hear the one too early or the other too
    /// late.
    pub(super) fn note_filled(&self, extents: Range<ExtentIndex>) {
        self.legacy.note(&Record::Filled { id: self.id, extents });
    }

    pub(super) fn note_evicted(&self, extents: Range<ExtentIndex>) {
        self.legacy.note(&Record::Evicted { id: self.id, extents });
    }

    /// Whether somebody has the source open for writing, or mapped so. What is written then may show in no time that comes
    /// later: one long write moves them once, when it begins. False where the file system does not tell.
    pub(super) fn is_written(&self) -> bool {
        self.writers.are_there(self.source.file())
    }

    /// Runs `operation`, and tells it whether nobody can write to the source meanwhile.
    pub fn without_writers<R>(&self, operation: impl FnOnce(bool) -> R) -> R {
        let held_off = self.writers.hold_off(self.source.file());
        operation(held_off.is_some())
    }

    /// What is known of the source, looked up at most a few times a second. `now` in milliseconds.
    pub(super) fn look(&self, now: u64) -> Look {
        if self.is_dead() {
            return Look::Other;
        }
        if now < self.believed.load(Ordering::SeqCst) {
            return Look::Same;
        }
        let doubts = self.doubts.load(Ordering::SeqCst);
        let look = self.look_now();
        if look == Look::Same {
            self.believed.store(now + TRUST_MILLISECONDS, Ordering::SeqCst);
            // Doubted since it was looked at.
            if self.doubts.load(Ordering::SeqCst) != doubts {
                self.believed.store(0, Ordering::SeqCst);
            }
        }
        look
    }

    /// The source may have changed: it is looked up before anything else is answered.
    pub(super) fn doubt(&self) {
        self.doubts.fetch_add(1, Ordering::SeqCst);
        self.believed.store(0, Ordering::SeqCst);
    }

    /// What the source has now.
    pub(super) fn look_now(&self) -> Look {
        let identity = *self.identity.lock();
        match identity_of(self.source.file()) {
            Ok(now) if now == identity => Look::Same,
            Ok(_) => Look::Other,
            // What is gone for good says so; what does not answer may come back as it was.
            Err(Errno::STALE | Errno::NOENT) => Look::Other,
            Err(_) => Look::Unknown,
        }
    }
}

/// Whether a source has the content of a generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Look {
    Same,
    Other,
    /// It does not say: what is kept is given to nobody, and is good again when it says so.
    Unknown,
}

/// A whole generation that a client has open in passthrough: nothing of it is evicted while this lives.
#[derive(Debug)]
pub struct Held {
    generation: Arc<Generation>,
}

impl Held {
    /// None where something of it is missing.
    pub(super) fn new(generation: &Arc<Generation>) -> Option<Self> {
        let mut passthrough = generation.passthrough.lock();
        if !generation.extents.is_complete() {
            return None;
        }
        *passthrough += 1;
        Some(Self { generation: Arc::clone(generation) })
    }

    pub fn generation(&self) -> &Arc<Generation> {
        &self.generation
    }

    /// The bytes of `range`, fewer at the end of the file.
    pub fn bytes(&self, range: Range<u64>) -> &[u8] {
        let size = self.generation.size;
        let arena = self.generation.arena().expect("a whole generation has an arena file");
        arena.bytes(range.start.min(size)..range.end.min(size))
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        *self.generation.passthrough.lock() -= 1;
    }
}

impl Drop for Generation {
    fn drop(&mut self) {
        if self.arena.get().is_some() {
            self.legacy.note(&Record::GenerationGone { id: self.id });
            self.legacy.unpark(Parked::ArenaFile(self.id));
            self.legacy.unpark(Parked::Source(self.id));
        }
        // Nothing is being filled or evicted: whoever does that holds the generation.
        self.occupied.fetch_sub(u64::from(self.extents.present()), Ordering::AcqRel);
    }
}

/// The identity of an open file's content.
pub fn identity_of(file: impl AsFd) -> rustix::io::Result<SourceIdentity> {
    let stat = rustix::fs::fstat(file)?;
    let time = |seconds: i64, nanoseconds: u64| Timestamp { seconds, nanoseconds: nanoseconds as u32 };
    Ok(SourceIdentity {
        device: stat.st_dev,
        inode: stat.st_ino,
        size: stat.st_size as u64,
        modified: time(stat.st_mtime, stat.st_mtime_nsec as u64),
        changed: time(stat.st_ctime, stat.st_ctime_nsec as u64),
    })
}
