//! Sets of extents of one file, as sorted runs. A file is resident in a few long runs, so a run list is both smaller
//! and faster than a bitmap of 14,000 extents.

use std::ops::Range;

use crate::ids::ExtentIndex;

/// A set of extents: sorted, disjoint, non-empty runs that do not touch each other.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExtentSet {
    runs: Vec<Range<ExtentIndex>>,
}

impl ExtentSet {
    pub fn new() -> ExtentSet {
        ExtentSet::default()
    }

    pub fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// How many extents are in the set.
    pub fn count(&self) -> u64 {
        self.runs.iter().map(|run| u64::from(run.end - run.start)).sum()
    }

    pub fn runs(&self) -> &[Range<ExtentIndex>] {
        &self.runs
    }

    pub fn contains(&self, index: ExtentIndex) -> bool {
        let next = self.runs.partition_point(|run| run.end <= index);
        self.runs.get(next).is_some_and(|run| run.start <= index)
    }

    pub fn insert(&mut self, extents: Range<ExtentIndex>) {
        if extents.is_empty() {
            return;
        }
        // Every run that overlaps or touches the new one melts into it.
        let first = self.runs.partition_point(|run| run.end < extents.start);
        let last = self.runs.partition_point(|run| run.start <= extents.end);
        let mut merged = extents;
        if first < last {
            merged.start = merged.start.min(self.runs[first].start);
            merged.end = merged.end.max(self.runs[last - 1].end);
        }
        self.runs.splice(first..last, [merged]);
    }

    pub fn remove(&mut self, extents: Range<ExtentIndex>) {
        if extents.is_empty() {
            return;
        }
        let first = self.runs.partition_point(|run| run.end <= extents.start);
        let last = self.runs.partition_point(|run| run.start < extents.end);
        if first >= last {
            return;
        }
        let left = self.runs[first].start..extents.start;
        let right = extents.end..self.runs[last - 1].end;
        self.runs.splice(first..last, [left, right].into_iter().filter(|run| !run.is_empty()));
    }

    pub fn extend(&mut self, other: &ExtentSet) {
        other.runs.iter().for_each(|run| self.insert(run.clone()));
    }

    /// The extents of `self` that are also in `other`.
    pub fn intersection(&self, other: &ExtentSet) -> ExtentSet {
        let (mut mine, mut theirs) = (self.runs.iter().peekable(), other.runs.iter().peekable());
        let mut runs = Vec::new();
        while let (Some(a), Some(b)) = (mine.peek(), theirs.peek()) {
            let both = a.start.max(b.start)..a.end.min(b.end);
            if !both.is_empty() {
                runs.push(both);
            }
            if a.end <= b.end {
                mine.next();
            } else {
                theirs.next();
            }
        }
        ExtentSet { runs }
    }

    /// The extents of `self` that are not in `other`.
    pub fn difference(&self, other: &ExtentSet) -> ExtentSet {
        let mut left = self.clone();
        for run in &other.runs {
            left.remove(run.clone());
        }
        left
    }

    /// Splits off the first `count` extents.
    pub fn take_head(&mut self, count: u64) -> ExtentSet {
        let mut head = ExtentSet::new();
        let mut wanted = count;
        for run in &self.runs {
            let length = u64::from(run.end - run.start).min(wanted) as ExtentIndex;
            if length == 0 {
                break;
            }
            head.runs.push(run.start..run.start + length);
            wanted -= u64::from(length);
        }
        for run in &head.runs {
            self.remove(run.clone());
        }
        head
    }

    /// Splits off the last `count` extents.
    pub fn take_tail(&mut self, count: u64) -> ExtentSet {
        let head = self.take_head(self.count().saturating_sub(count));
        std::mem::replace(self, head)
    }
}

impl FromIterator<Range<ExtentIndex>> for ExtentSet {
    fn from_iter<T: IntoIterator<Item = Range<ExtentIndex>>>(runs: T) -> ExtentSet {
        let mut set = ExtentSet::new();
        for run in runs {
            set.insert(run);
        }
        set
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn members(set: &ExtentSet) -> BTreeSet<u32> {
        set.runs().iter().cloned().flatten().collect()
    }

    fn runs() -> impl Strategy<Value = Vec<(bool, Range<u32>)>> {
        prop::collection::vec((any::<bool>(), (0u32..60, 0u32..12).prop_map(|(start, len)| start..start + len)), 0..30)
    }

    fn build(steps: &[(bool, Range<u32>)]) -> (ExtentSet, BTreeSet<u32>) {
        let (mut set, mut model) = (ExtentSet::new(), BTreeSet::new());
        for (insert, run) in steps {
            if *insert {
                set.insert(run.clone());
                model.extend(run.clone());
            } else {
                set.remove(run.clone());
                model.retain(|index| !run.contains(index));
            }
        }
        (set, model)
    }

    proptest! {
        #[test]
        fn it_is_a_set(a in runs(), b in runs(), count in 0u64..80) {
            let (a, model_a) = build(&a);
            let (b, model_b) = build(&b);
            prop_assert_eq!(members(&a), model_a.clone());
            prop_assert_eq!(a.count(), model_a.len() as u64);
            prop_assert!(a.runs().windows(2).all(|pair| pair[0].end < pair[1].start));
            prop_assert!((0..80).all(|index| a.contains(index) == model_a.contains(&index)));
            prop_assert_eq!(members(&a.intersection(&b)), &model_a & &model_b);
            prop_assert_eq!(members(&a.difference(&b)), &model_a - &model_b);
            let mut rest = a.clone();
            let tail = rest.take_tail(count);
            prop_assert_eq!(tail.count(), count.min(a.count()));
            prop_assert_eq!(members(&tail), model_a.iter().rev().take(count as usize).copied().collect());
            prop_assert_eq!(&members(&rest) | &members(&tail), model_a);
        }
    }
}
