//! From extents to the requests that are sent to storage.

use std::ops::Range;

use crate::ids::ExtentIndex;
use crate::units::EXTENT_SIZE;

/// The absent ones of `extents`, in the order given, as runs of at most `max_bytes` but at least one extent. Runs go on
/// over the seams of ranges that adjoin. `absent` is asked once for each extent, when its turn comes.
pub fn requests(
    extents: impl IntoIterator<Item = Range<ExtentIndex>>,
    mut absent: impl FnMut(ExtentIndex) -> bool,
    max_bytes: u64,
) -> impl Iterator<Item = Range<ExtentIndex>> {
    let longest = ExtentIndex::try_from(max_bytes / EXTENT_SIZE).unwrap_or(ExtentIndex::MAX).max(1);
    let mut missing = extents.into_iter().flatten().filter(move |extent| absent(*extent)).peekable();
    std::iter::from_fn(move || {
        let start = missing.next()?;
        let mut end = start + 1;
        while end - start < longest && missing.next_if_eq(&end).is_some() {
            end += 1;
        }
        Some(start..end)
    })
}

#[cfg(test)]
// Lists of one range are what is meant.
#[allow(clippy::single_range_in_vec_init)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn adjacent_absent_extents_are_read_together() {
        let present = [3, 4, 9];
        let all: Vec<_> =
            requests([0..6, 6..11, 20..21], |extent| !present.contains(&extent), 2 * EXTENT_SIZE).collect();
        assert_eq!(all, [0..2, 2..3, 5..7, 7..9, 10..11, 20..21]);
        assert_eq!(requests([5..8], |_| true, 1).collect::<Vec<_>>(), [5..6, 6..7, 7..8]);
        assert_eq!(requests([5..8], |_| false, u64::MAX).next(), None);
    }

    #[test]
    fn the_order_of_the_ranges_is_kept() {
        let all: Vec<_> = requests([8..10, 0..2], |_| true, u64::MAX).collect();
        assert_eq!(all, [8..10, 0..2]);
    }

    proptest! {
        #[test]
        fn every_absent_extent_is_asked_for_once(
            starts in prop::collection::btree_set(0u32..200, 0..20),
            present in prop::collection::btree_set(0u32..220, 0..100),
            max_bytes in 0..9 * EXTENT_SIZE,
        ) {
            let starts: Vec<_> = starts.into_iter().collect();
            let ranges = starts.windows(2).map(|pair| pair[0]..pair[1].min(pair[0] + 15));
            let expected: Vec<_> = ranges.clone().flatten().filter(|extent| !present.contains(extent)).collect();
            let sent: Vec<_> = requests(ranges, |extent| !present.contains(&extent), max_bytes).collect();
            let limit = (max_bytes / EXTENT_SIZE).max(1) as usize;
            prop_assert!(sent.iter().all(|range| (1..=limit).contains(&range.len())));
            // A run that stops short of the limit does so before a gap.
            let absent: BTreeSet<_> = expected.iter().copied().collect();
            prop_assert!(sent.iter().all(|range| range.len() == limit || !absent.contains(&range.end)));
            prop_assert_eq!(sent.into_iter().flatten().collect::<Vec<_>>(), expected);
        }
    }
}
