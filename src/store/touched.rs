//! Which extents were read since the policy was last told: one bit each, set without a lock.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::ids::ExtentIndex;

#[derive(Debug)]
pub struct Touched {
    any: AtomicBool,
    words: Box<[AtomicU64]>,
}

impl Touched {
    pub fn new(extents: ExtentIndex) -> Self {
        let words = (0..extents.div_ceil(64)).map(|_| AtomicU64::new(0)).collect();
        Self { any: AtomicBool::new(false), words }
    }

    /// Whether one of them had not been added since the last [`Touched::take`].
    pub fn add(&self, extents: Range<ExtentIndex>) -> bool {
        let mut is_new = false;
        for extent in extents {
            let (word, bit) = (&self.words[extent as usize / 64], 1 << (extent % 64));
            if word.load(Ordering::Relaxed) & bit == 0 {
                word.fetch_or(bit, Ordering::Relaxed);
                self.any.store(true, Ordering::Release);
                is_new = true;
            }
        }
        is_new
    }

    /// The runs of extents added since the last call.
    pub fn take(&self) -> Vec<Range<ExtentIndex>> {
        let mut runs: Vec<Range<ExtentIndex>> = Vec::new();
        if !self.any.swap(false, Ordering::Acquire) {
            return runs;
        }
        for (index, word) in self.words.iter().enumerate() {
            let mut bits = word.swap(0, Ordering::Relaxed);
            while bits != 0 {
                let extent = index as ExtentIndex * 64 + bits.trailing_zeros();
                bits &= bits - 1;
                match runs.last_mut() {
                    Some(run) if run.end == extent => run.end += 1,
                    _ => runs.push(extent..extent + 1),
                }
            }
        }
        runs
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_added_is_taken_once_in_runs() {
        let touched = Touched::new(200);
        assert!(touched.take().is_empty());
        assert!(touched.add(60..70));
        assert!(!touched.add(62..64));
        assert!(touched.add(199..200));
        assert_eq!(touched.take(), [60..70, 199..200]);
        assert!(touched.take().is_empty());
    }
}
