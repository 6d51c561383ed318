//! MRU with bypass: what came first stays.
//!
//! For a loop over more than fits this is optimal: N blocks in a cache of C hit C/N, where LRU hits nothing (Chou and
//! DeWitt, "An Evaluation of Buffer Management Strategies for Relational Database Systems", 1985). A newcomer that
//! finds no room is bypassed; when room must be made, the tail of the file that was used last goes, since in a loop it
//! is the one that is needed again last.
//!
//! Not for workflows that change: what is dead is never left. See `aged`.

use super::blocks::Blocks;
use super::policy::{Access, Policy};
use super::shelf::Shelf;
use crate::ids::FileId;

#[derive(Default)]
pub struct Mru {
    shelf: Shelf,
}

impl Mru {
    pub fn new() -> Mru {
        Mru::default()
    }
}

impl Policy for Mru {
    fn name(&self) -> String {
        "mru".to_owned()
    }

    fn touch(&mut self, access: &Access, changed: &mut Vec<FileId>) -> Blocks {
        let before = self.shelf.kept(access.file);
        self.shelf.refresh(access);
        for block in access.blocks.minus(before).iter() {
            let weight = access.layout.weight(block);
            // Of two files that are used equally often, the one from the slower source is worth more.
            while self.shelf.free() < weight
                && let Some(cheaper) = self.shelf.clearly_less_than(access.class)
            {
                self.shelf.drop(cheaper);
                changed.push(cheaper.0);
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
    use crate::residency::testing::{access, rate};

    #[test]
    fn a_loop_hits_what_fits() {
        let mut mru = Mru::new();
        mru.set_capacity(300, &mut Vec::new());
        let mut hits = 0;
        for turn in 0..10 {
            for file in 0..4 {
                let access = access(file, 96, turn * 384 + file * 96);
                hits += access.layout.weights(mru.touch(&access, &mut Vec::new()));
            }
        }
        // Three files and one block of eight extents, from the second turn on.
        assert_eq!(hits, 9 * (3 * 96 + 8));
    }

    #[test]
    fn shrinking_drops_the_tail_of_the_last_used() {
        let mut mru = Mru::new();
        let mut changed = Vec::new();
        mru.set_capacity(400, &mut changed);
        for file in 0..4 {
            mru.touch(&access(file, 96, file * 96), &mut changed);
        }
        changed.clear();
        mru.set_capacity(250, &mut changed);
        changed.dedup();
        assert_eq!(changed, [FileId(3), FileId(2)]);
        assert_eq!(mru.kept(FileId(3)), Blocks::NONE);
        assert_eq!(mru.kept(FileId(2)), Blocks(0b111_1111));
    }

    #[test]
    fn a_slow_source_displaces_a_fast_one_and_not_the_other_way() {
        let mut mru = Mru::new();
        mru.set_capacity(104, &mut Vec::new());
        let fast = access(1, 96, 0);
        let slow = rate(access(2, 96, 96), 6);
        mru.touch(&fast, &mut Vec::new());
        mru.touch(&slow, &mut Vec::new());
        assert_eq!((mru.kept(FileId(1)).0, mru.kept(FileId(2)).0.count_ones()), (1, 12));
        mru.touch(&fast, &mut Vec::new());
        assert_eq!(mru.kept(FileId(2)).0.count_ones(), 12);
    }
}
