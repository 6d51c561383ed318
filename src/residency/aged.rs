//! MRU with ageing: what came first stays until it is out of use.
//!
//! Like `mru`, a newcomer does not displace what is in use. But blocks that were not touched while `k` times the
//! capacity went by are out of use, and go first, from the tail of their file. In a loop over n times the capacity each file comes
//! back after n capacities of traffic: any `k` above that keeps the loop, and the smaller it is, the sooner a dead
//! workflow makes room. No `k` is best everywhere, which is why `auto` runs several.
//!
//! Not for loops longer than `k` capacities: those it takes for dead.

use super::blocks::Blocks;
use super::policy::{Access, Policy};
use super::shelf::Shelf;
use crate::ids::FileId;

pub struct Aged {
    k: u32,
    shelf: Shelf,
}

impl Aged {
    pub fn new(k: u32) -> Aged {
        Aged { k, shelf: Shelf::default() }
    }

    /// What makes room first: what is out of use, else what is clearly worth less.
    fn victim(&self, access: &Access) -> Option<(FileId, u32)> {
        let age = u64::from(self.k).saturating_mul(self.shelf.capacity());
        let dead = |(_, last): &((FileId, u32), u64)| access.traffic.saturating_sub(*last) > age;
        let dead = self.shelf.oldest().find(dead).map(|(block, _)| block);
        dead.or_else(|| self.shelf.clearly_less_than(access.class))
    }
}

impl Policy for Aged {
    fn name(&self) -> String {
        format!("aged:{}", self.k)
    }

    fn touch(&mut self, access: &Access, changed: &mut Vec<FileId>) -> Blocks {
        let before = self.shelf.kept(access.file);
        self.shelf.refresh(access);
        for block in access.blocks.minus(before).iter() {
            let weight = access.layout.weight(block);
            while self.shelf.free() < weight
                && let Some(victim) = self.victim(access)
            {
                self.shelf.drop(victim);
                changed.push(victim.0);
            }
            if self.shelf.free() < weight {
                break;
            }
            self.shelf.keep(access, block);
            changed.push(access.file);
        }
        access.blocks.and(before)
    }

    fn kept(&self, file: FileId) -> Blocks {
        self.shelf.kept(file)
    }

    fn set_capacity(&mut self, extents: u64, changed: &mut Vec<FileId>) {
        self.shelf.set_capacity(extents);
        while self.shelf.over() > 0
            && let Some(tail) = self.shelf.newest_of_least()
        {
            self.shelf.drop(tail);
            changed.push(tail.0);
        }
    }

    fn reclass(&mut self, file: FileId, class: u8) {
        self.shelf.reclass(file, class);
    }

    fn forget(&mut self, file: FileId) {
        self.shelf.forget(file);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::residency::testing::access;

    #[test]
    fn a_dead_workflow_makes_room_after_k_capacities_from_its_tail() {
        let mut aged = Aged::new(2);
        let mut changed = Vec::new();
        aged.set_capacity(192, &mut changed);
        aged.touch(&access(0, 96, 0), &mut changed);
        aged.touch(&access(1, 96, 96), &mut changed);
        // Until 2 x 192 extents of other traffic went by, file 2 is bypassed.
        for traffic in [192, 288, 384] {
            aged.touch(&access(2, 96, traffic), &mut changed);
            assert!(aged.kept(FileId(2)).is_empty());
        }
        changed.clear();
        let first_half = Access { blocks: Blocks(0b11_1111), ..access(2, 96, 400) };
        aged.touch(&first_half, &mut changed);
        changed.dedup();
        assert_eq!(changed[..2], [FileId(0), FileId(2)]);
        assert_eq!((aged.kept(FileId(0)).0, aged.kept(FileId(1)).0.count_ones()), (0b11_1111, 12));
    }
}
