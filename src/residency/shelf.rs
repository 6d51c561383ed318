//! What a policy keeps, for the policies that think in files: blocks by file, in order of worth and of last use.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::blocks::Blocks;
use super::policy::Access;
use crate::ids::FileId;

/// A class of worth must lie this far under a newcomer's before it gives way to it while it is in use itself: sources
/// of about the same speed must not push each other out.
const CLEARLY_LESS: u8 = 2;

#[derive(Default)]
pub(super) struct Shelf {
    capacity: u64,
    used: u64,
    files: HashMap<FileId, Place>,
    /// Files of which something is kept, by class, then by last use.
    order: BTreeMap<u8, BTreeSet<(u64, FileId)>>,
}

struct Place {
    last: Access,
    kept: Blocks,
    /// The number of the last use: no two files have the same.
    stamp: u64,
}

impl Shelf {
    pub fn kept(&self, file: FileId) -> Blocks {
        self.files.get(&file).map_or(Blocks::NONE, |place| place.kept)
    }

    pub fn free(&self) -> u64 {
        self.capacity.saturating_sub(self.used)
    }

    pub fn over(&self) -> u64 {
        self.used.saturating_sub(self.capacity)
    }

    pub fn set_capacity(&mut self, extents: u64) {
        self.capacity = extents;
    }

    /// Makes the file the most recently used one.
    pub fn refresh(&mut self, access: &Access, stamp: u64) {
        let kept = self.kept(access.file);
        self.place(Place { last: *access, kept, stamp });
    }

    pub fn keep(&mut self, file: FileId, block: u32) {
        self.change(file, |blocks| blocks.with(block));
    }

    /// Drops the last kept block of `file`.
    pub fn drop_tail(&mut self, file: FileId) {
        self.change(file, |blocks| blocks.last().map_or(blocks, |last| blocks.without(last)));
    }

    pub fn forget(&mut self, file: FileId) {
        self.change(file, |_| Blocks::NONE);
        self.files.remove(&file);
    }

    /// The file of which something is kept that was used last, in the lowest class.
    pub fn newest_of_least(&self) -> Option<FileId> {
        self.order.values().next().and_then(|files| files.last()).map(|(_, file)| *file)
    }

    /// The file that was used last in a class clearly under `class`, lowest first.
    pub fn clearly_less_than(&self, class: u8) -> Option<FileId> {
        let (least, files) = self.order.first_key_value()?;
        (least.saturating_add(CLEARLY_LESS) <= class).then(|| files.last().map(|(_, file)| *file)).flatten()
    }

    fn change(&mut self, file: FileId, to: impl FnOnce(Blocks) -> Blocks) {
        if let Some(place) = self.files.get(&file) {
            let kept = to(place.kept);
            self.place(Place { kept, ..*place });
        }
    }

    fn place(&mut self, place: Place) {
        let (file, layout) = (place.last.file, place.last.layout);
        if let Some(old) = self.files.get(&file).filter(|old| !old.kept.is_empty()) {
            self.used -= old.last.layout.weights(old.kept);
            if let Some(class) = self.order.get_mut(&old.last.class) {
                class.remove(&(old.stamp, file));
                if class.is_empty() {
                    self.order.remove(&old.last.class);
                }
            }
        }
        if !place.kept.is_empty() {
            self.used += layout.weights(place.kept);
            self.order.entry(place.last.class).or_default().insert((place.stamp, file));
        }
        self.files.insert(file, place);
    }
}
