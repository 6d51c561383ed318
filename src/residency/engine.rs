//! The residency engine: what happens goes in, what to keep and what to evict comes out.
//!
//! It knows which extents are resident because it is told ([`Residency::filled`], [`Residency::evicted`]); it keeps no
//! clock and no memory of its own, and the same calls always give the same answers. Sizes are in bytes of whole
//! extents, since that is what an extent occupies, also at the end of a file.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::time::Duration;

use super::PolicyKind;
use super::blocks::Blocks;
use super::extents::ExtentSet;
use super::file::{File, LastUse};
use super::order::Order;
use super::policy::{Access, Policy};
use super::queue::Queue;
use super::types::{PinError, Priority, RefetchCost, Scope, UseKind};
use crate::ids::{ExtentIndex, FileId};
use crate::units::EXTENT_SIZE;

/// Decides what stays in RAM. All times are since one fixed point, on a clock that never goes back.
pub struct Residency {
    pub(super) files: BTreeMap<FileId, File>,
    pub(super) policy: Box<dyn Policy>,
    pub(super) order: Order,
    /// Files whose place in the order is out of date.
    pub(super) stale: BTreeSet<FileId>,
    pub(super) budget: u64,
    pub(super) resident: u64,
    pub(super) pinned: u64,
    pub(super) queue: Queue,
    /// Extents used so far.
    traffic: u64,
    stamp: u64,
}

impl Residency {
    /// `budget` is in bytes: see [`Residency::set_budget`].
    pub fn new(policy: PolicyKind, budget: u64) -> Residency {
        let mut residency = Residency {
            files: BTreeMap::new(),
            policy: policy.build(),
            order: Order::default(),
            stale: BTreeSet::new(),
            budget: budget / EXTENT_SIZE,
            resident: 0,
            pinned: 0,
            queue: Queue::default(),
            traffic: 0,
            stamp: 0,
        };
        residency.resize();
        residency
    }

    /// What may stay resident for good, in bytes. Give it the low watermark: what lies between the marks is room for
    /// newcomers in passing, and reclaim then touches nothing that the policy keeps.
    pub fn set_budget(&mut self, bytes: u64) {
        self.budget = bytes / EXTENT_SIZE;
        self.resize();
    }

    /// Makes a file known, or updates its cost. A file that comes with another size than before is another content:
    /// everything known of the old one is forgotten.
    pub fn register(&mut self, id: FileId, size: u64, cost: RefetchCost) {
        if self.files.get(&id).is_some_and(|known| known.size != size) {
            self.forget(id);
        }
        self.files.entry(id).or_insert_with(|| File::new(size, cost));
        self.rate(id, |file| file.cost = cost);
    }

    pub fn knows(&self, id: FileId) -> bool {
        self.files.contains_key(&id)
    }

    /// The file was deleted or replaced. What it occupies is no longer counted here, nor its pin.
    pub fn forget(&mut self, id: FileId) {
        if let Some(mut file) = self.files.remove(&id) {
            self.order.remove(&mut file);
            self.stale.remove(&id);
            self.policy.forget(id);
            self.resident -= file.resident.count();
            self.queue.forget(id);
            if let Some(pin) = file.pin {
                self.pinned -= pin.count();
                self.resize();
            }
        }
    }

    /// Somebody opened the file.
    pub fn opened(&mut self, id: FileId, kind: UseKind) {
        let Some(file) = self.files.get_mut(&id) else { return };
        match kind {
            UseKind::HeaderPeek | UseKind::Scan => return,
            UseKind::Unknown => file.undecided_opens += 1,
            UseKind::Load => {}
        }
        file.end_pass();
        if kind == UseKind::Load {
            self.load_queued(id);
        }
    }

    /// These extents were read, by an open of which `kind` is known now. Extents of an [`UseKind::Unknown`] open count
    /// when it is closed. Order matters only between files; reads of one file may come in batches.
    pub fn touched(&mut self, id: FileId, extents: &[Range<ExtentIndex>], kind: UseKind, now: Duration) {
        let Some(file) = self.files.get_mut(&id) else { return };
        match kind {
            UseKind::Load => {
                let extents = file.clip(extents);
                self.used(id, &extents, true, now);
            }
            UseKind::Unknown => {
                for run in file.clip(extents).runs() {
                    file.undecided.insert(run.clone());
                }
            }
            UseKind::HeaderPeek | UseKind::Scan => {}
        }
    }

    /// All of the file is about to be read. Told of before anything of it is asked for, no part of the file seems to be
    /// used more than another for being missed first.
    pub fn expected(&mut self, id: FileId, now: Duration) {
        if let Some(file) = self.files.get(&id).filter(|file| file.queued.is_empty()) {
            let all = file.covered_by(&Scope::Whole);
            // By then all of it will have been read.
            self.used_after(id, &all, false, now, all.count());
        }
    }

    /// An open that began as `opened_as` ended, and this is what it was.
    pub fn closed(&mut self, id: FileId, opened_as: UseKind, kind: UseKind, now: Duration) {
        if matches!(kind, UseKind::Load | UseKind::Unknown) {
            self.loaded_queued(id, opened_as);
        }
        let Some(file) = self.files.get_mut(&id).filter(|_| opened_as == UseKind::Unknown) else { return };
        file.undecided_opens = file.undecided_opens.saturating_sub(1);
        match kind {
            UseKind::Load | UseKind::Unknown => {
                let extents = std::mem::take(&mut file.undecided);
                if !extents.is_empty() {
                    self.used(id, &extents, true, now);
                }
            }
            // What other opens read in the meantime is theirs to decide about.
            UseKind::HeaderPeek | UseKind::Scan if file.undecided_opens == 0 => file.undecided = ExtentSet::new(),
            UseKind::HeaderPeek | UseKind::Scan => {}
        }
    }

    /// These extents are complete in the arena.
    pub fn filled(&mut self, id: FileId, extents: Range<ExtentIndex>, now: Duration) {
        self.occupy(id, |file| {
            if file.resident.is_empty() {
                file.since = Some(now);
            }
            file.leaving.remove(extents.clone());
            file.resident.insert(extents);
        });
    }

    /// These extents are in the arena from before anything was known of their use: taken for used once.
    pub fn restored(&mut self, id: FileId, extents: &ExtentSet, now: Duration) {
        let Some(file) = self.files.get(&id) else { return };
        let extents = file.clip(extents.runs());
        self.used(id, &extents, false, now);
        for run in extents.runs() {
            self.filled(id, run.clone(), now);
        }
    }

    /// These extents are gone from the arena, for whatever reason.
    pub fn evicted(&mut self, id: FileId, extents: Range<ExtentIndex>) {
        self.occupy(id, |file| {
            file.leaving.remove(extents.clone());
            file.resident.remove(extents);
            if file.resident.is_empty() {
                file.since = None;
            }
        });
    }

    /// These extents were named as victims and stay after all. Every victim must be answered with this or with
    /// [`Residency::evicted`]; until then it is not named again.
    pub fn refused(&mut self, id: FileId, extents: Range<ExtentIndex>) {
        self.occupy(id, |file| file.leaving.remove(extents));
    }

    /// Whether clients hold the file, so that dropping a part of it frees nothing now.
    pub fn held(&mut self, id: FileId, held: bool) {
        self.occupy(id, |file| file.held = held);
    }

    pub fn set_priority(&mut self, id: FileId, priority: Priority) {
        self.rate(id, |file| file.priority = priority);
    }

    /// Evicts nothing of the file before `until` while there is anything else.
    pub fn in_use(&mut self, id: FileId, until: Duration) {
        self.occupy(id, |file| file.in_use_until = Some(until));
    }

    /// Whether a GPU holds all of what is read of the file, so that nobody reads it from RAM for now.
    pub fn in_vram(&mut self, id: FileId, in_vram: bool) {
        self.occupy(id, |file| file.in_vram = in_vram);
    }

    /// Promises not to evict these extents. Adds to what of the file is pinned already.
    pub fn pin(&mut self, id: FileId, scope: &Scope) -> Result<(), PinError> {
        let file = self.files.get_mut(&id).ok_or(PinError::UnknownFile(id))?;
        let mut pin = file.pin.clone().unwrap_or_default();
        let before = pin.count();
        for run in file.covered_by(scope).runs() {
            pin.insert(run.clone());
        }
        let more = pin.count() - before;
        if self.pinned + more > self.budget {
            return Err(PinError::OverBudget {
                more: more * EXTENT_SIZE,
                budget: self.budget * EXTENT_SIZE,
                pinned: self.pinned * EXTENT_SIZE,
                by_file: self.pins(),
            });
        }
        self.pinned += more;
        file.pin = Some(pin);
        // What it decides about is what is not pinned.
        self.policy.forget(id);
        self.stale.insert(id);
        self.resize();
        Ok(())
    }

    /// Takes every pin of the file back.
    pub fn unpin(&mut self, id: FileId) {
        if let Some(pin) = self.files.get_mut(&id).and_then(|file| file.pin.take()) {
            self.pinned -= pin.count();
            self.stale.insert(id);
            self.resize();
        }
    }

    /// What is pinned, in bytes by file, largest first.
    pub fn pins(&self) -> Vec<(FileId, u64)> {
        let pinned = |(id, file): (&FileId, &File)| Some((*id, file.pin.as_ref()?.count() * EXTENT_SIZE));
        let mut pins: Vec<_> = self.files.iter().filter_map(pinned).collect();
        pins.sort_by_key(|(id, bytes)| (!bytes, *id));
        pins
    }

    /// As the user names it, with the rule in force if the policy chooses among several.
    pub fn policy_name(&self) -> String {
        self.policy.name()
    }

    /// What of the file is pinned.
    pub fn pinned(&self, id: FileId) -> ExtentSet {
        self.files.get(&id).and_then(|file| file.pin.clone()).unwrap_or_default()
    }

    /// Bytes.
    pub fn pinned_bytes(&self) -> u64 {
        self.pinned * EXTENT_SIZE
    }

    /// Bytes.
    pub fn resident_bytes(&self) -> u64 {
        self.resident * EXTENT_SIZE
    }

    /// What is resident of each file, those first that will be evicted last.
    pub fn resident_files(&mut self) -> Vec<(FileId, ExtentSet)> {
        self.settle();
        let mut named = BTreeSet::new();
        let pinned = self.files.iter().filter(|(_, file)| file.keys.is_empty()).map(|(id, _)| *id);
        let last_first: Vec<_> = pinned.chain(self.order.iter().rev().map(|key| key.file)).collect();
        let resident = |id| (id, self.files[&id].resident.clone());
        let all = last_first.into_iter().filter(|id| named.insert(*id)).map(resident);
        all.filter(|(_, extents)| !extents.is_empty()).collect()
    }

    /// What of the file is resident.
    pub fn resident(&self, id: FileId) -> ExtentSet {
        self.files.get(&id).map_or_else(ExtentSet::new, |file| file.resident.clone())
    }

    /// Tells the policy of the blocks that are read for the first time in this pass. `counted` is false for what is
    /// only about to be read.
    pub(super) fn used(&mut self, id: FileId, extents: &ExtentSet, counted: bool, now: Duration) {
        self.used_after(id, extents, counted, now, 0);
    }

    /// As [`Residency::used`], when `coming` extents more will have been read.
    fn used_after(&mut self, id: FileId, extents: &ExtentSet, counted: bool, now: Duration, coming: u64) {
        let Some(file) = self.files.get_mut(&id) else { return };
        self.stamp += 1;
        let first = file.first_reached(extents, counted, self.traffic, self.stamp, now);
        let pinned = file.pin.as_ref().map_or(Blocks::NONE, |pin| file.layout.within(pin));
        let blocks = first.blocks.minus(pinned);
        if counted {
            file.last_use = Some(LastUse { stamp: self.stamp, at: now });
        }
        if !blocks.is_empty() {
            let access = Access {
                file: id,
                layout: file.layout,
                blocks,
                pass: file.pass(),
                traffic: self.traffic + coming,
                class: file.class(),
            };
            let mut changed = Vec::new();
            self.policy.touch(&access, &mut changed);
            self.stale.extend(changed);
        }
        if counted {
            self.traffic += first.extents;
        }
        self.stale.insert(id);
    }

    /// Brings the order of eviction up to date.
    pub(super) fn settle(&mut self) {
        while let Some(id) = self.stale.pop_first() {
            if let Some(file) = self.files.get_mut(&id) {
                self.order.update(id, file, self.policy.kept(id));
            }
        }
    }

    pub(super) fn mark_leaving(&mut self, id: FileId, extents: Range<ExtentIndex>) {
        self.occupy(id, |file| file.leaving.insert(extents));
    }

    /// Changes what extents of a file are worth.
    fn rate(&mut self, id: FileId, change: impl FnOnce(&mut File)) {
        let Some(file) = self.files.get_mut(&id) else { return };
        let before = file.class();
        change(file);
        let class = file.class();
        if class != before {
            self.policy.reclass(id, class);
        }
        self.stale.insert(id);
    }

    fn occupy(&mut self, id: FileId, change: impl FnOnce(&mut File)) {
        if let Some(file) = self.files.get_mut(&id) {
            self.resident -= file.resident.count();
            change(file);
            self.resident += file.resident.count();
            self.stale.insert(id);
        }
    }

    fn resize(&mut self) {
        let mut changed = Vec::new();
        self.policy.set_capacity(self.budget.saturating_sub(self.pinned), &mut changed);
        self.stale.extend(changed);
    }
}
