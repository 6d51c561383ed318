//! LRU by block, the baseline: what a page cache does.
//!
//! In a loop over more than fits it evicts each block just before it is needed again and hits nothing. Good only where
//! recent use foretells the next, as with small working sets that move.

use std::collections::{BTreeMap, HashMap};

use super::blocks::Blocks;
use super::policy::{Access, Policy};
use crate::ids::FileId;

#[derive(Default)]
pub struct Lru {
    capacity: u64,
    used: u64,
    kept: HashMap<FileId, Blocks>,
    stamps: HashMap<(FileId, u32), u64>,
    /// Oldest first, with the weight.
    order: BTreeMap<u64, (FileId, u32, u64)>,
    stamp: u64,
}

impl Lru {
    pub fn new() -> Lru {
        Lru::default()
    }

    fn take(&mut self, file: FileId, block: u32) {
        if let Some(stamp) = self.stamps.remove(&(file, block))
            && let Some((_, _, weight)) = self.order.remove(&stamp)
        {
            self.used -= weight;
            let kept = self.kept.entry(file).or_default();
            *kept = kept.without(block);
        }
    }

    fn shrink(&mut self, changed: &mut Vec<FileId>) {
        while self.used > self.capacity
            && let Some((_, &(file, block, _))) = self.order.first_key_value()
        {
            self.take(file, block);
            changed.push(file);
        }
    }
}

impl Policy for Lru {
    fn name(&self) -> String {
        "lru".to_owned()
    }

    fn touch(&mut self, access: &Access, changed: &mut Vec<FileId>) -> Blocks {
        let before = self.kept(access.file);
        for block in access.blocks.iter() {
            self.take(access.file, block);
            self.stamp += 1;
            let weight = access.layout.weight(block);
            self.used += weight;
            self.stamps.insert((access.file, block), self.stamp);
            self.order.insert(self.stamp, (access.file, block, weight));
            let kept = self.kept.entry(access.file).or_default();
            *kept = kept.with(block);
            self.shrink(changed);
        }
        changed.push(access.file);
        access.blocks.and(before)
    }

    fn kept(&self, file: FileId) -> Blocks {
        self.kept.get(&file).copied().unwrap_or_default()
    }

    fn set_capacity(&mut self, extents: u64, changed: &mut Vec<FileId>) {
        self.capacity = extents;
        self.shrink(changed);
    }

    fn reclass(&mut self, _file: FileId, _class: u8) {}

    fn forget(&mut self, file: FileId) {
        self.kept(file).iter().for_each(|block| self.take(file, block));
        self.kept.remove(&file);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::residency::testing::access;

    #[test]
    fn the_oldest_block_goes_first_and_a_loop_hits_nothing() {
        let mut lru = Lru::new();
        lru.set_capacity(192, &mut Vec::new());
        for turn in 0..3 {
            for file in 0..3 {
                let hit = lru.touch(&access(file, 96, (turn * 3 + file) * 96), &mut Vec::new());
                assert!(hit.is_empty());
            }
        }
        let half = Access { blocks: Blocks(0b11_1111), ..access(0, 96, 1000) };
        lru.touch(&half, &mut Vec::new());
        // Files 1 and 2 were kept; the head of file 1 was the oldest.
        assert_eq!([0, 1, 2].map(|file| lru.kept(FileId(file)).0), [0b11_1111, 0b1111_1100_0000, 0b1111_1111_1111]);
    }
}
