//! Blocks: the coarse unit in which policies think.
//!
//! A policy sees each file as at most 128 blocks, so that what it keeps of a file is one integer and a decision about
//! 27 GB costs a few instructions. Reality is exact to the extent: the engine translates.

use std::ops::Range;

use super::extents::ExtentSet;
use crate::ids::ExtentIndex;

/// Below 16 MiB a finer choice gains nothing and costs memory for each of many small files.
const MIN_BLOCK: ExtentIndex = 8;

/// A set of blocks of one file, bit i for block i.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Blocks(pub u128);

impl Blocks {
    pub const NONE: Blocks = Blocks(0);

    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    pub fn contains(self, block: u32) -> bool {
        self.0 >> block & 1 == 1
    }

    pub fn with(self, block: u32) -> Blocks {
        Blocks(self.0 | 1 << block)
    }

    pub fn without(self, block: u32) -> Blocks {
        Blocks(self.0 & !(1 << block))
    }

    pub fn and(self, other: Blocks) -> Blocks {
        Blocks(self.0 & other.0)
    }

    pub fn or(self, other: Blocks) -> Blocks {
        Blocks(self.0 | other.0)
    }

    pub fn minus(self, other: Blocks) -> Blocks {
        Blocks(self.0 & !other.0)
    }

    pub fn last(self) -> Option<u32> {
        (!self.is_empty()).then(|| 127 - self.0.leading_zeros())
    }

    /// In ascending order.
    pub fn iter(self) -> impl Iterator<Item = u32> {
        let mut rest = self.0;
        std::iter::from_fn(move || {
            let block = (rest != 0).then(|| rest.trailing_zeros())?;
            rest &= rest - 1;
            Some(block)
        })
    }
}

/// How the extents of one file fall into blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    extents: ExtentIndex,
    block: ExtentIndex,
}

impl Layout {
    /// The layout of a file of `extents` extents.
    pub fn new(extents: ExtentIndex) -> Layout {
        Layout { extents, block: extents.div_ceil(128).max(MIN_BLOCK) }
    }

    /// How many extents the file has.
    pub fn extents(&self) -> ExtentIndex {
        self.extents
    }

    /// How many extents `block` has.
    pub fn weight(&self, block: u32) -> u64 {
        let start = block.saturating_mul(self.block).min(self.extents);
        u64::from(self.block.min(self.extents - start))
    }

    /// How many extents `blocks` have.
    pub fn weights(&self, blocks: Blocks) -> u64 {
        // Only the last block of a file can be short.
        let whole = u64::from(blocks.0.count_ones()) * u64::from(self.block);
        match blocks.last() {
            Some(last) => whole - u64::from(self.block) + self.weight(last),
            None => 0,
        }
    }

    /// The blocks that `extents` touch.
    pub fn touching(&self, extents: &Range<ExtentIndex>) -> Blocks {
        let end = extents.end.min(self.extents);
        if extents.start >= end {
            return Blocks::NONE;
        }
        let (first, count) = (extents.start / self.block, end.div_ceil(self.block) - extents.start / self.block);
        Blocks((u128::MAX >> (128 - count)) << first)
    }

    /// The blocks that lie wholly in `extents`.
    pub fn within(&self, extents: &ExtentSet) -> Blocks {
        extents.runs().iter().fold(Blocks::NONE, |blocks, run| {
            let whole = self.touching(run);
            let inside = whole.iter().filter(|block| {
                let span = self.span(*block);
                run.start <= span.start && span.end <= run.end
            });
            inside.fold(blocks, Blocks::with)
        })
    }

    /// The extents of `blocks`.
    pub fn spread(&self, blocks: Blocks) -> ExtentSet {
        blocks.iter().map(|block| self.span(block)).collect()
    }

    fn span(&self, block: u32) -> Range<ExtentIndex> {
        let start = (block * self.block).min(self.extents);
        start..start.saturating_add(self.block).min(self.extents)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_diffusion_model_is_a_hundred_and_some_blocks() {
        let layout = Layout::new(13_500);
        let all = layout.touching(&(0..13_500));
        assert_eq!(all.0.count_ones(), 128);
        assert_eq!(layout.weights(all), 13_500);
    }

    proptest! {
        #[test]
        fn blocks_cover_the_file_once(extents in 0u32..40_000, start in 0u32..40_000, length in 0u32..40_000) {
            let layout = Layout::new(extents);
            let all = layout.touching(&(0..extents));
            prop_assert_eq!(layout.spread(all).count(), u64::from(extents));
            prop_assert_eq!(layout.weights(all), u64::from(extents));
            let some = layout.touching(&(start..start + length));
            prop_assert_eq!(layout.weights(some), some.iter().map(|block| layout.weight(block)).sum::<u64>());
            let run: ExtentSet = std::iter::once(start.min(extents)..(start + length).min(extents)).collect();
            prop_assert_eq!(run.difference(&layout.spread(some)), ExtentSet::new());
            let inside = layout.within(&run);
            prop_assert_eq!(layout.spread(inside).difference(&run), ExtentSet::new());
            prop_assert!(inside.minus(some).is_empty());
        }
    }
}
