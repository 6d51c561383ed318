//! What people ask of the store: pins, evictions, explanations.

use std::ops::Range;
use std::sync::Arc;

use super::filling::read_header;
use super::{Generation, Opened, Store};
use crate::fill::Class;
use crate::ids::ExtentIndex;
use crate::pattern::Pattern;
use crate::residency::{Explanation, PinError, Scope, UseKind};
use crate::units::{EXTENT_SIZE, extents_of};

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
        let map = self.headers.get_with(generation.identity(), || Arc::new(read_header(generation)));
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

    /// Frees what is resident of a generation and nobody looks at, except for pins.
    pub fn evict_file(self: &Arc<Self>, generation: &Arc<Generation>) -> Evicted {
        let before = generation.resident_bytes();
        let file = generation.file_id();
        let wanted = {
            let residency = self.residency.lock();
            residency.resident(file).difference(&residency.pinned(file))
        };
        for run in wanted.runs() {
            self.evict_from(generation, run);
        }
        let kept = generation.resident_bytes();
        Evicted { freed: before.saturating_sub(kept), kept }
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
