//! The residency engine, with a record of what it is told and decides where somebody asked for one.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::{Deref, DerefMut, Range};
use std::time::Duration;

use super::recorder::Recorder;
use crate::ids::{ExtentIndex, FileId};
use crate::residency::{Decision, EvictReason, PolicyKind, RefetchCost, Residency, UseKind, Victim};
use crate::trace::What;

/// Used as the engine itself. The calls that a trace is made of are noted on their way to it.
pub(super) struct Traced {
    engine: Residency,
    budget: u64,
    /// What a trace has to begin with.
    files: BTreeMap<FileId, (u64, RefetchCost)>,
    in_vram: BTreeSet<FileId>,
    recorder: Option<Recorder>,
    /// Why something of a file was to go, the last time.
    reasons: HashMap<FileId, EvictReason>,
}

impl Traced {
    pub(super) fn new(policy: PolicyKind) -> Self {
        let engine = Residency::new(policy, 0);
        Self {
            engine,
            budget: 0,
            files: BTreeMap::new(),
            in_vram: BTreeSet::new(),
            recorder: None,
            reasons: HashMap::new(),
        }
    }

    pub(super) fn recorder(&self) -> Option<&Recorder> {
        self.recorder.as_ref()
    }

    /// Gives the recorder back where there is one already.
    pub(super) fn record_into(&mut self, mut recorder: Recorder) -> Option<Recorder> {
        if self.recorder.is_some() {
            return Some(recorder);
        }
        recorder.record(What::Budget { bytes: self.budget });
        for (file, (size, cost)) in &self.files {
            recorder.record(What::File { file: *file, size: *size, cost: *cost });
        }
        for file in &self.in_vram {
            recorder.record(What::InVram { file: *file, held: true });
        }
        // Those that go last come first: a replay under a smaller budget keeps them.
        for (file, extents) in self.engine.resident_files() {
            for extents in extents.runs().iter().cloned() {
                recorder.record(What::Resident { file, extents });
            }
        }
        self.recorder = Some(recorder);
        None
    }

    pub(super) fn stop_recording(&mut self) -> Option<Recorder> {
        self.reasons.clear();
        self.recorder.take()
    }

    pub(super) fn set_budget(&mut self, bytes: u64) {
        self.budget = bytes;
        if let Some(recorder) = &mut self.recorder {
            recorder.record(What::Budget { bytes });
        }
        self.engine.set_budget(bytes);
    }

    pub(super) fn register(&mut self, file: FileId, size: u64, cost: RefetchCost) {
        let is_news = self.files.insert(file, (size, cost)) != Some((size, cost));
        if let Some(recorder) = self.recorder.as_mut().filter(|_| is_news) {
            recorder.record(What::File { file, size, cost });
        }
        self.engine.register(file, size, cost);
    }

    pub(super) fn in_vram(&mut self, file: FileId, held: bool) {
        let is_news = if held { self.in_vram.insert(file) } else { self.in_vram.remove(&file) };
        if let Some(recorder) = self.recorder.as_mut().filter(|_| is_news) {
            recorder.record(What::InVram { file, held });
        }
        self.engine.in_vram(file, held);
    }

    pub(super) fn forget(&mut self, file: FileId) {
        self.files.remove(&file);
        self.in_vram.remove(&file);
        self.reasons.remove(&file);
        if let Some(recorder) = &mut self.recorder {
            recorder.forget(file);
        }
        self.engine.forget(file);
    }

    pub(super) fn opened(&mut self, file: FileId, kind: UseKind) {
        if let Some(recorder) = &mut self.recorder {
            recorder.opened(file, kind);
        }
        self.engine.opened(file, kind);
    }

    pub(super) fn touched(&mut self, file: FileId, extents: &[Range<ExtentIndex>], kind: UseKind, now: Duration) {
        if let Some(recorder) = &mut self.recorder {
            recorder.read(file, extents, kind);
        }
        self.engine.touched(file, extents, kind, now);
    }

    pub(super) fn closed(&mut self, file: FileId, opened_as: UseKind, kind: UseKind, now: Duration) {
        if let Some(recorder) = &mut self.recorder {
            recorder.closed(file, kind);
        }
        self.engine.closed(file, opened_as, kind, now);
    }

    pub(super) fn want(
        &mut self,
        file: FileId,
        extents: &[Range<ExtentIndex>],
        kind: UseKind,
        room: u64,
        now: Duration,
    ) -> Decision {
        let decision = self.engine.want(file, extents, kind, room, now);
        self.note(&decision.evict);
        if let Some(recorder) = &mut self.recorder {
            for (set, admitted) in [(&decision.admit, true), (&decision.bypass, false)] {
                for extents in set.runs().iter().cloned() {
                    recorder.record(What::Decided { file, extents, admitted, reason: decision.reason });
                }
            }
        }
        decision
    }

    pub(super) fn reclaim(&mut self, bytes: u64, now: Duration) -> Vec<Victim> {
        let victims = self.engine.reclaim(bytes, now);
        self.note(&victims);
        victims
    }

    pub(super) fn trim(&mut self, bytes: u64, now: Duration) -> Vec<Victim> {
        let victims = self.engine.trim(bytes, now);
        self.note(&victims);
        victims
    }

    pub(super) fn surrender(&mut self, bytes: u64, now: Duration) -> Vec<Victim> {
        let victims = self.engine.surrender(bytes, now);
        self.note(&victims);
        victims
    }

    pub(super) fn evicted(&mut self, file: FileId, extents: Range<ExtentIndex>) {
        if let Some(recorder) = &mut self.recorder {
            let reason = self.reasons.get(&file).copied().unwrap_or(EvictReason::OverBudget);
            recorder.record(What::Evicted { file, extents: extents.clone(), reason });
        }
        self.engine.evicted(file, extents);
    }

    fn note(&mut self, victims: &[Victim]) {
        if self.recorder.is_some() {
            self.reasons.extend(victims.iter().map(|victim| (victim.file, victim.reason)));
        }
    }
}

impl Deref for Traced {
    type Target = Residency;

    fn deref(&self) -> &Residency {
        &self.engine
    }
}

impl DerefMut for Traced {
    fn deref_mut(&mut self) -> &mut Residency {
        &mut self.engine
    }
}
