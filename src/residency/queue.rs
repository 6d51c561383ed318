//! What will be loaded next, where somebody knows it: the queues of those who say so, woven into one.

use std::collections::BTreeMap;

use super::engine::Residency;
use super::extents::ExtentSet;
use super::types::{Scope, UseKind};
use crate::ids::FileId;

/// A load that is known to come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Upcoming {
    pub file: FileId,
    /// What of it will be read.
    pub scope: Scope,
}

impl From<FileId> for Upcoming {
    /// A load of the whole file.
    fn from(file: FileId) -> Upcoming {
        Upcoming { file, scope: Scope::Whole }
    }
}

/// One of those who know what comes.
type Owner = u64;

#[derive(Default)]
pub(super) struct Queue {
    items: Vec<(Owner, Upcoming)>,
    /// The files that know their place in it.
    placed: Vec<FileId>,
    /// Whether the first is being loaded now.
    loading: bool,
}

impl Queue {
    pub fn forget(&mut self, file: FileId) {
        self.loading &= !self.is_first(file);
        self.items.retain(|(_, item)| item.file != file);
    }

    fn is_first(&self, file: FileId) -> bool {
        self.items.first().is_some_and(|(_, item)| item.file == file)
    }

    fn place_of(&self, file: FileId) -> Option<usize> {
        self.items.iter().position(|(_, item)| item.file == file)
    }

    /// Replaces what `owner` has said. Of several owners nobody knows who is served first: they take turns.
    fn replace(&mut self, owner: Owner, items: Vec<Upcoming>) {
        // What another owner loads just now stays the first.
        let stays = self.loading && self.items.first().is_some_and(|(other, _)| *other != owner);
        let mut old = std::mem::take(&mut self.items).into_iter();
        if stays {
            self.items.extend(old.next());
        }
        self.loading = stays;
        let mut by_owner: BTreeMap<Owner, Vec<Upcoming>> = BTreeMap::new();
        for (other, item) in old.filter(|(other, _)| *other != owner) {
            by_owner.entry(other).or_default().push(item);
        }
        by_owner.insert(owner, items);
        let mut turns: Vec<_> = by_owner.into_iter().map(|(owner, items)| (owner, items.into_iter())).collect();
        while !turns.is_empty() {
            turns.retain_mut(|(owner, items)| match items.next() {
                Some(item) => {
                    self.items.push((*owner, item));
                    true
                }
                None => false,
            });
        }
    }
}

impl Residency {
    /// The loads that will come, in this order, as far as `owner` knows; a file may come more than once. Replaces what
    /// this owner has said before. A load is taken from the queue when the file is closed as [`UseKind::Load`]; from its
    /// opening as such it counts as the next.
    pub fn set_queue(&mut self, owner: u64, items: Vec<Upcoming>) {
        self.queue.replace(owner, items);
        self.place_queue();
    }

    /// The queue as it is now, the next first, without what is being loaded already.
    pub fn upcoming(&self) -> impl Iterator<Item = &Upcoming> {
        self.queue.items.iter().skip(usize::from(self.queue.loading)).map(|(_, item)| item)
    }

    /// The next of the queue that is not resident: a file, and at most the first `most` extents of what is missing.
    /// Files that `skip` names, and those that a GPU holds, are not waited for.
    pub fn next_missing(&self, most: u64, skip: impl Fn(FileId) -> bool) -> Option<(FileId, ExtentSet)> {
        self.upcoming().find_map(|item| {
            let file = self.files.get(&item.file).filter(|file| !file.in_vram && !skip(item.file))?;
            let mut missing = file.covered_by(&item.scope).difference(&file.resident);
            (!missing.is_empty()).then(|| (item.file, missing.take_head(most)))
        })
    }

    pub(super) fn load_queued(&mut self, id: FileId) {
        if let Some(place) = self.queue.place_of(id) {
            // One that was skipped may still come.
            self.queue.items[..=place].rotate_right(1);
            if self.queue.loading && place > 0 {
                self.queue.items.remove(1);
            }
            self.queue.loading = true;
            self.place_queue();
        }
    }

    /// Takes a file that was loaded from the queue. One that was opened as unknown has not become the next by that.
    pub(super) fn loaded_queued(&mut self, id: FileId, opened_as: UseKind) {
        let next = self.queue.loading && self.queue.is_first(id);
        let place = self.queue.place_of(id);
        if let Some(place) = place.filter(|_| next || opened_as == UseKind::Unknown) {
            self.queue.loading &= place > 0;
            self.queue.items.remove(place);
            self.place_queue();
        }
    }

    /// Where in the queue which of `extents`, if admitted now, will be needed; the nearest first. A file that is being
    /// loaded is read now either way, so for it that is the time after this one.
    pub(super) fn needed(&self, id: FileId, extents: &ExtentSet) -> Vec<(u64, ExtentSet)> {
        let mut parts = Vec::new();
        let Some(file) = self.files.get(&id).filter(|file| !file.in_vram && !file.queued.is_empty()) else {
            return parts;
        };
        let now = usize::from(self.queue.loading && self.queue.is_first(id));
        let mut rest = extents.clone();
        for (place, (_, item)) in self.queue.items.iter().enumerate().skip(now) {
            if item.file == id && !rest.is_empty() {
                let covered = file.covered_by(&item.scope);
                let part = rest.intersection(&covered);
                if !part.is_empty() {
                    rest = rest.difference(&covered);
                    parts.push((place as u64, part));
                }
            }
        }
        parts
    }

    fn place_queue(&mut self) {
        for id in std::mem::take(&mut self.queue.placed) {
            if let Some(file) = self.files.get_mut(&id) {
                file.queued.clear();
                self.stale.insert(id);
            }
        }
        for (place, (_, item)) in self.queue.items.iter().enumerate() {
            let Some(file) = self.files.get_mut(&item.file) else { continue };
            let earlier = |part: ExtentSet, (_, earlier): &(u64, ExtentSet)| part.difference(earlier);
            let part = file.queued.iter().fold(file.covered_by(&item.scope), earlier);
            if !part.is_empty() {
                file.queued.push((place as u64, part));
                self.queue.placed.push(item.file);
                self.stale.insert(item.file);
            }
        }
    }
}
