//! Opens, and what an open file holds.

use std::collections::hash_map::Entry;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::time::SystemTime;

use super::generation::Look;
use super::memory::Course;
use super::{Generation, Held, SETTLE, SMALLEST_MODEL, Store, identity_of};
use crate::fill::SourceFile;
use crate::ids::{FileId, GenerationId, SourceIdentity, Timestamp};
use crate::predict::{Access, Expectation, OpenKind};
use crate::residency::UseKind;
use crate::units::LARGEST_MODEL;

/// How many files the policy remembers of which nothing is kept.
const MOST_RESTING: usize = 20_000;

/// What the policy assumes of a source that nothing was read from yet: a middling solid-state disk, in bytes/s.
pub const ASSUMED_SPEED: u64 = 1 << 30;

/// An open file whose content the store may keep.
#[derive(Debug)]
pub struct Opened {
    pub generation: Arc<Generation>,
    store: Arc<Store>,
    course: Arc<Course>,
    /// Somebody reads through it: it counts as an open.
    begun: AtomicBool,
    /// What the policy was told of it: one of the constants below.
    told: AtomicU8,
}

/// Only names and shapes were read so far.
const NOTHING: u8 = 0;
/// Tensor data is read, by something that may be a scan.
const UNKNOWN: u8 = 1;
const LOAD: u8 = 2;

impl std::fmt::Debug for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Store").field("config", &self.config).finish_non_exhaustive()
    }
}

impl Store {
    /// The generation of an open source file, or None where its content is not to be kept: too small, no longer what
    /// `identity` says, or changed so lately that it may change again unnoticed.
    pub fn open(self: &Arc<Self>, source: &Arc<SourceFile>) -> Option<Opened> {
        let identity = identity_of(source.file()).ok()?;
        if !(SMALLEST_MODEL..LARGEST_MODEL).contains(&identity.size) || !is_settled(&identity, SystemTime::now()) {
            return None;
        }
        let key = (identity.device, identity.inode);
        let mut generations = self.generations.lock();
        let (generation, replaced) = match generations.entry(key) {
            Entry::Occupied(known) if known.get().identity() == identity && !known.get().is_dead() => {
                (Arc::clone(known.get()), None)
            }
            Entry::Occupied(mut known) => {
                let new = self.new_generation(source, identity);
                (Arc::clone(&new), Some(known.insert(new)))
            }
            Entry::Vacant(vacant) => (Arc::clone(vacant.insert(self.new_generation(source, identity))), None),
        };
        generation.handles.fetch_add(1, Ordering::AcqRel);
        drop(generations);
        if let Some(replaced) = replaced {
            self.end(&replaced);
        }
        Some(Opened::new(Arc::clone(self), generation))
    }

    /// The generation that is kept for content of this identity, if there is one.
    pub fn find(&self, identity: &SourceIdentity) -> Option<Arc<Generation>> {
        let generations = self.generations.lock();
        let found = generations.get(&(identity.device, identity.inode))?;
        (found.identity() == *identity && !found.is_dead()).then(|| Arc::clone(found))
    }

    /// A source file may have changed, as somebody has heard.
    pub fn doubt(&self, device: u64, inode: u64) {
        if let Some(known) = self.generations.lock().get(&(device, inode)) {
            known.doubt();
        }
    }

    /// Somebody changes the content of a source file, or has taken its last name away.
    pub fn invalidate(self: &Arc<Self>, device: u64, inode: u64) {
        let gone = self.generations.lock().remove(&(device, inode));
        if let Some(gone) = gone {
            self.end(&gone);
        }
    }

    /// Something that leaves the bytes alone moved the file's times: what is kept of it stays.
    pub fn rebind(&self, before: &SourceIdentity, after: SourceIdentity) {
        if before.size == after.size
            && let Some(generation) = self.find(before)
        {
            generation.rebind(after);
        }
    }

    /// Holds a whole generation for a client in passthrough, which is a use of all of it. None where something of it is
    /// missing.
    pub fn hold(&self, generation: &Arc<Generation>) -> Option<Held> {
        let held = Held::new(generation)?;
        self.loaded_unseen(generation);
        Some(held)
    }

    /// Takes in a load of which nothing will be seen.
    fn loaded_unseen(&self, generation: &Generation) {
        let (file, all) = (generation.file_id(), 0..generation.extents.count());
        let mut residency = self.residency.lock();
        residency.opened(file, UseKind::Load);
        residency.touched(file, &[all], UseKind::Load, self.now());
    }

    /// Whether this open is expected to load the whole file.
    pub fn expects_load(&self, opened: &Opened) -> bool {
        self.memory.expect(&opened.generation, &opened.course) == Expectation::WholeLoad
    }

    /// Whether this content is expected to be mapped: its last load was.
    pub fn expects_maps(&self, generation: &Generation) -> bool {
        self.memory.last_kind(&generation.identity()) == Some(OpenKind::WholeLoadMapped)
    }

    /// Whether what is missing of a generation can be kept without evicting anything that is worth more.
    pub fn fits(&self, generation: &Generation) -> bool {
        let room = self.room();
        if generation.missing_bytes() <= room {
            return true;
        }
        self.register(generation);
        let all = 0..generation.extents.count();
        let mut residency = self.residency.lock();
        let decision =
            residency.want(generation.file_id(), std::slice::from_ref(&all), UseKind::Load, room, self.now());
        // Only asked: nothing is evicted yet.
        for victim in decision.evict {
            residency.refused(victim.file, victim.extents);
        }
        decision.bypass.is_empty()
    }

    /// Makes a generation known to the policy: from here on its bytes may be kept.
    pub(super) fn register(&self, generation: &Generation) {
        let cost = self.cost(generation);
        let mut residency = self.residency.lock();
        // Looked at under the lock: what has ended is forgotten under it later, and nobody would forget it again.
        if generation.is_dead() {
            return;
        }
        residency.register(generation.file_id(), generation.size, cost);
    }

    /// Whether the source still has the content of a generation. One that is over is taken out of use.
    pub(super) fn is_current(self: &Arc<Self>, generation: &Arc<Generation>) -> bool {
        match generation.look(self.milliseconds()) {
            Look::Same => true,
            Look::Unknown => false,
            Look::Other => {
                self.end(generation);
                false
            }
        }
    }

    /// Takes a generation that is no longer current out of use. What of it nobody looks at is freed.
    pub(super) fn end(self: &Arc<Self>, generation: &Arc<Generation>) {
        if !generation.kill() {
            return;
        }
        tracing::debug!(generation = %generation.id, "over: no new open gets this");
        let identity = generation.identity();
        if let Entry::Occupied(known) = self.generations.lock().entry((identity.device, identity.inode))
            && Arc::ptr_eq(known.get(), generation)
        {
            known.remove();
        }
        self.bypass.forget(generation.id);
        self.tell(generation);
        self.keeper.discard(generation);
    }

    /// A generation that nobody has open and of which nothing is kept takes no memory, and no descriptor, either.
    pub(super) fn let_go(&self, generation: &Arc<Generation>) {
        let is_idle = || generation.handles.load(Ordering::Acquire) == 0 && !generation.extents.occupied();
        if !is_idle() {
            return;
        }
        let identity = generation.identity();
        let mut generations = self.generations.lock();
        if let Entry::Occupied(known) = generations.entry((identity.device, identity.inode))
            && Arc::ptr_eq(known.get(), generation)
            && is_idle()
        {
            // Whoever holds it still without having it open must not fill it any more.
            generation.kill();
            known.remove();
            drop(generations);
            self.rest(generation);
            self.bypass.forget(generation.id);
        }
    }

    fn new_generation(&self, source: &Arc<SourceFile>, identity: SourceIdentity) -> Arc<Generation> {
        let id = GenerationId(self.next_generation.fetch_add(1, Ordering::Relaxed));
        let file = self.awake(&identity).unwrap_or(FileId(id.0));
        Arc::new(Generation::new(
            id,
            file,
            Arc::clone(source),
            identity,
            Arc::clone(&self.occupied),
            Some(self.milliseconds()),
            Arc::clone(&self.legacy),
        ))
    }

    /// What the policy knows of content of which nothing is kept is worth keeping: that it comes back is why it may be
    /// kept the next time.
    fn rest(&self, generation: &Generation) {
        let identity = generation.identity();
        let mut resting = self.resting.lock();
        let too_many = if resting.len() < MOST_RESTING { None } else { resting.keys().next().copied() };
        let gone = too_many.and_then(|key| resting.remove(&key));
        let before = resting.insert((identity.device, identity.inode), (identity, generation.file_id()));
        drop(resting);
        for (_, file) in gone.into_iter().chain(before) {
            self.residency.lock().forget(file);
        }
    }

    /// The name under which the policy knows content that comes back. What it knows of other content is forgotten.
    fn awake(&self, identity: &SourceIdentity) -> Option<FileId> {
        let (known, file) = self.resting.lock().remove(&(identity.device, identity.inode))?;
        if known == *identity {
            return Some(file);
        }
        self.residency.lock().forget(file);
        None
    }
}

impl Opened {
    /// `generation` counts it among its handles already.
    pub(super) fn new(store: Arc<Store>, generation: Arc<Generation>) -> Self {
        let course = Course::new();
        Self { generation, store, course, begun: AtomicBool::new(false), told: AtomicU8::new(NOTHING) }
    }

    /// From here on it is read, and counts as an open.
    pub fn begin(&self) {
        if !self.begun.swap(true, Ordering::Relaxed) {
            self.generation.begin_course(&self.course);
            // Its header is wanted in a moment.
            self.store.tensors(&self.generation);
        }
    }

    /// As [`Opened::begin`], for a load that the kernel mostly serves by itself. What is still seen of it says nothing about
    /// the load, and is not remembered.
    pub fn begin_unseen(&self) {
        self.told.store(LOAD, Ordering::Release);
        self.store.loaded_unseen(&self.generation);
    }

    /// The whole file will be loaded: it begins to be read before anyone asks for it, once it is known where its tensors
    /// lie. What only looks at its header after all ends that when it is closed.
    pub fn anticipate(&self) {
        self.store.register(&self.generation);
        self.generation.anticipated.store(true, Ordering::Release);
        if self.store.tensors(&self.generation).is_some() {
            self.store.fill_anticipated(&self.generation);
        }
    }

    /// Takes in a read before it is served. Returns what the policy may take it for; `None` as long as only names and
    /// shapes were read.
    pub(super) fn reads(&self, bytes: &Range<u64>, access: Access) -> Option<UseKind> {
        self.course.touch(&self.generation, bytes.clone(), access);
        match self.told.load(Ordering::Relaxed) {
            NOTHING if self.store.is_header(&self.generation, bytes.start) => None,
            NOTHING => Some(self.first_data()),
            UNKNOWN => Some(UseKind::Unknown),
            _ => Some(UseKind::Load),
        }
    }

    fn first_data(&self) -> UseKind {
        if self.told.compare_exchange(NOTHING, UNKNOWN, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
            self.store.register(&self.generation);
            self.store.residency.lock().opened(self.generation.file_id(), UseKind::Unknown);
        }
        self.reconsider();
        if self.told.load(Ordering::Relaxed) == LOAD { UseKind::Load } else { UseKind::Unknown }
    }

    /// Looks again at what an open that may be a scan comes to: a load of the whole file begins to be filled at once.
    pub(super) fn reconsider(&self) {
        if self.told.load(Ordering::Relaxed) != UNKNOWN || !self.store.expects_load(self) {
            return;
        }
        if self.told.compare_exchange(UNKNOWN, LOAD, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
            let file = self.generation.file_id();
            tracing::debug!(%file, "a load of the whole file begins");
            self.store.residency.lock().opened(file, UseKind::Load);
            self.generation.loaded.store(true, Ordering::Relaxed);
            self.store.fill_whole(&self.generation);
        }
    }

    fn end(&self) {
        if !self.begun.load(Ordering::Relaxed) {
            return;
        }
        self.generation.end_course(&self.course);
        let (kind, is_use) = self.store.memory.ended(&self.generation, &self.course);
        tracing::debug!(file = %self.generation.file_id(), ?kind, is_use, "an open has ended");
        if self.told.load(Ordering::Relaxed) == NOTHING {
            return;
        }
        if kind == OpenKind::WholeLoadMapped && self.generation.is_complete() {
            // Where the kernel keeps what is mapped, that has another number.
            self.store.look_again(&self.generation);
        }
        self.store.drain_touched(&self.generation);
        let kind = match kind {
            OpenKind::HeaderPeek => UseKind::HeaderPeek,
            OpenKind::HashScan if !is_use => UseKind::Scan,
            _ => UseKind::Load,
        };
        self.store.residency.lock().closed(self.generation.file_id(), UseKind::Unknown, kind, self.store.now());
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        self.end();
        let generation = &self.generation;
        if generation.handles.fetch_sub(1, Ordering::AcqRel) != 1 {
            return;
        }
        generation.cancel_prefetch();
        generation.loaded.store(false, Ordering::Relaxed);
        self.store.let_go(generation);
    }
}

/// Whether the last change lies far enough back that a later one would show in the times. A time in the future counts as
/// settled, since it does not move by itself, unless a clock that goes a little wrong explains it.
fn is_settled(identity: &SourceIdentity, now: SystemTime) -> bool {
    let Ok(now) = now.duration_since(SystemTime::UNIX_EPOCH) else { return false };
    let now = Timestamp { seconds: now.as_secs() as i64, nanoseconds: now.subsec_nanos() };
    let later = |time: Timestamp| Timestamp { seconds: time.seconds.saturating_add(SETTLE.as_secs() as i64), ..time };
    [identity.modified, identity.changed].into_iter().all(|time| later(time) <= now || time > later(now))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn what_changed_lately_is_not_settled() {
        let at = |seconds| Timestamp { seconds, nanoseconds: 5 };
        let identity = |modified, changed| SourceIdentity { device: 1, inode: 2, size: 3, modified, changed };
        let now = SystemTime::UNIX_EPOCH + Duration::new(1000, 5);
        assert!(is_settled(&identity(at(998), at(998)), now));
        assert!(!is_settled(&identity(at(999), at(0)), now));
        assert!(!is_settled(&identity(at(0), at(999)), now));
        assert!(is_settled(&identity(at(5000), at(0)), now));
        assert!(!is_settled(&identity(at(1001), at(0)), now));
        assert!(!is_settled(&identity(at(5000), at(999)), now));
    }
}
