//! What people ask of the store: pins, evictions, explanations.

use std::ops::Range;
use std::sync::Arc;

use super::{Generation, Opened, Store, StoreEvent};
use crate::fill::Class;
use crate::format::Tensor;
use crate::ids::ExtentIndex;
use crate::pattern::Pattern;
use crate::residency::{Explanation, ExtentSet, PinError, Scope, UseKind};
use crate::units::{EXTENT_SIZE, extent_bytes, extents_of};

/// What came of a wish to evict a file, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Evicted {
    pub freed: u64,
    /// Stayed because it is pinned, or because a program reads it, has it open or maps it.
    pub kept: u64,
}

impl Store {
    /// Promises not to evict what `tensors` names of a file, all of it without a pattern. Adds to what of it is pinned
    /// already. The pin lasts as long as the generation: hold `opened` for that. Reads the header of the file.
    ///
    /// # Errors
    /// Where so much may not be pinned.
    pub fn pin(self: &Arc<Self>, opened: &Opened, tensors: Option<&Pattern>) -> Result<(), PinError> {
        let generation = &opened.generation;
        let scope = match tensors {
            None => Scope::Whole,
            Some(pattern) => Scope::Extents(self.extents_named(generation, pattern).into_iter().collect()),
        };
        self.register(generation);
        self.residency.lock().pin(generation.file_id(), &scope)
    }

    /// Where the tensors lie whose names match. Reads the header of the file.
    pub(super) fn extents_named(&self, generation: &Generation, pattern: &Pattern) -> Vec<Range<ExtentIndex>> {
        let map = self.tensor_map(generation);
        let named = map.tensors().iter().filter(|tensor| pattern.matches(tensor.name.as_bytes()));
        named.map(|tensor| extents_of(&tensor.bytes)).collect()
    }

    /// Takes every pin of a generation back.
    pub fn unpin(&self, generation: &Generation) {
        self.residency.lock().unpin(generation.file_id());
    }

    /// Bytes of a generation that are pinned, in whole extents.
    pub fn pinned_bytes(&self, generation: &Generation) -> u64 {
        self.residency.lock().pinned(generation.file_id()).count() * EXTENT_SIZE
    }

    /// Starts to fill what is pinned of a generation and is not there.
    pub fn fill_pinned(self: &Arc<Self>, generation: &Arc<Generation>) {
        let pinned: Vec<Range<ExtentIndex>> = self.residency.lock().pinned(generation.file_id()).runs().to_vec();
        self.fill(generation, &pinned, Class::Prefetch, UseKind::Load);
    }

    /// Frees what is resident of a generation, or of what `tensors` names of it, and nobody looks at, except for pins.
    pub fn evict_file(self: &Arc<Self>, generation: &Arc<Generation>, tensors: Option<&Pattern>) -> Evicted {
        let before = generation.resident_bytes();
        let file = generation.file_id();
        let named = match tensors {
            None => std::iter::once(0..generation.extents.count()).collect(),
            // What it shares with other tensors stays.
            Some(pattern) => {
                let map = self.tensor_map(generation);
                let (named, others): (Vec<_>, Vec<_>) =
                    map.tensors().iter().partition(|tensor| pattern.matches(tensor.name.as_bytes()));
                let extents = |tensors: &[&Tensor]| tensors.iter().map(|tensor| extents_of(&tensor.bytes)).collect();
                let (named, others): (ExtentSet, ExtentSet) = (extents(&named), extents(&others));
                named.difference(&others)
            }
        };
        let wanted = {
            let residency = self.residency.lock();
            residency.resident(file).intersection(&named).difference(&residency.pinned(file))
        };
        for run in wanted.runs() {
            self.evict_from(generation, run);
        }
        let after = generation.resident_bytes();
        let freed = before.saturating_sub(after);
        if freed > 0 {
            self.happened(StoreEvent::Evicted { generation: Arc::clone(generation), bytes: freed, reason: None });
        }
        let kept = named.runs().iter().map(|run| generation.resident_within(&bytes_of(run, generation.size))).sum();
        Evicted { freed, kept }
    }

    /// Starts to read into the arena what is missing of `ranges` of a file, all of it without any, as far as the policy
    /// admits it. It ends with [`Store::cancel_prefetch`], or when nobody has the file open any more: hold `opened`.
    pub fn prefetch(self: &Arc<Self>, opened: &Opened, ranges: Option<&[Range<u64>]>) {
        let generation = &opened.generation;
        self.register(generation);
        match ranges {
            None => self.fill_whole(generation),
            Some(ranges) => {
                let wanted: ExtentSet = ranges.iter().filter(|range| !range.is_empty()).map(extents_of).collect();
                self.fill(generation, wanted.runs(), Class::Prefetch, UseKind::Load);
            }
        }
    }

    /// Ends what is read ahead of a file. What its readers need they still get.
    pub fn cancel_prefetch(&self, generation: &Generation) {
        generation.cancel_prefetch();
    }

    /// Frees everything that is neither pinned nor in use.
    pub fn flush(self: &Arc<Self>) -> Evicted {
        let mut all = Evicted::default();
        for generation in self.generations() {
            let in_use = generation.is_held() || {
                let now = self.now();
                self.residency.lock().glance(generation.file_id(), now).is_some_and(|known| known.in_use)
            };
            if in_use {
                all.kept += generation.resident_bytes();
                continue;
            }
            let evicted = self.evict_file(&generation, None);
            all.freed += evicted.freed;
            all.kept += evicted.kept;
        }
        all
    }

    /// What is known of a generation and would be done with it next. None where nothing of it was ever wanted.
    pub fn explain(&self, generation: &Generation) -> Option<Explanation> {
        let now = self.now();
        self.residency.lock().explain(generation.file_id(), now)
    }

    /// The policy, and which of its rules is in force if it chooses among several.
    pub fn policy(&self) -> String {
        self.residency.lock().policy_name()
    }

    /// The clock by which explanations tell times.
    pub fn clock(&self) -> std::time::Duration {
        self.now()
    }
}

fn bytes_of(run: &Range<ExtentIndex>, size: u64) -> Range<u64> {
    if run.is_empty() { 0..0 } else { extent_bytes(run.start, size).start..extent_bytes(run.end - 1, size).end }
}
