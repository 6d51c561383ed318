//! From a touch to the extents that are worth reading.
//!
//! Programs read models tensor by tensor, in their own order, by pieces of any size. The offset of the last read says
//! little about the next one; the tensor that it lies in says nearly all. So a touch brings its whole tensor, and then
//! the tensors that followed it when this file was read last.

use std::collections::BTreeSet;
use std::ops::Range;

use crate::format::TensorMap;
use crate::ids::ExtentIndex;
use crate::units::{EXTENT_SIZE, extents_of};

/// How much a touch may bring, in bytes. Both are rounded up to whole extents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// The largest tensor that is read whole on demand; of larger ones, this much around the touch.
    pub demand: u64,
    /// How far to read ahead after that.
    pub ahead: u64,
}

/// What a touch asks for. No extent is in both lists, or twice in one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// What the reader waits for or will in a moment, in file order.
    pub demand: Vec<Range<ExtentIndex>>,
    /// What it is expected to touch next, the most urgent first.
    pub prefetch: Vec<Range<ExtentIndex>>,
}

/// Plans for one touch of `touch`, a range of bytes, of which only what lies in the file counts.
///
/// `learned` has the indices of tensors in the order in which the file was read last time. Where it is empty, or does not
/// have the touched tensor, file order stands in. A touch that starts in the header brings the header, and tensors only
/// if it reaches beyond the last extent of the header: programs that peek at headers read a little too far.
pub fn plan(map: &TensorMap, touch: Range<u64>, learned: &[u32], window: Window) -> Plan {
    let touch = touch.start..touch.end.min(map.size());
    if touch.start >= touch.end {
        return Plan::default();
    }
    let mut planned = Planned::default();
    planned.demand(extents_of(&touch));
    let header = map.header();
    let mut data = touch.clone();
    if touch.start < header.end && header.start < touch.end {
        planned.demand(around(&header, &touch, window.demand));
        if header.start <= touch.start {
            data.start = header.end.next_multiple_of(EXTENT_SIZE);
        }
    }
    let touched = map.within(&data);
    let (Some(first), Some(last)) = (touched.clone().next(), touched.clone().next_back()) else {
        return planned.finish();
    };
    let rest = extents_of(&map.tensors()[last].bytes);
    let mut resume = extents_of(&data).end;
    // Those between the first and the last lie within the touch.
    for index in [first, last] {
        let demanded = around(&map.tensors()[index].bytes, &data, window.demand);
        resume = resume.max(demanded.end);
        planned.demand(demanded);
    }

    let mut budget = window.ahead.div_ceil(EXTENT_SIZE);
    let resume = resume.clamp(rest.start, rest.end);
    planned.prefetch(resume..rest.end, &mut budget);
    planned.prefetch(rest.start..resume, &mut budget);
    let mut follow = |index: usize| {
        if let Some(tensor) = map.tensors().get(index) {
            planned.prefetch(extents_of(&tensor.bytes), &mut budget);
        }
        budget > 0
    };
    match learned.iter().position(|index| *index as usize == last) {
        Some(place) => learned[place + 1..].iter().all(|index| follow(*index as usize)),
        None => (last + 1..map.tensors().len()).all(follow),
    };
    planned.finish()
}

/// The extents of `whole` if it fits into `window` bytes; otherwise a window of it that starts where `touch` does, or
/// earlier where the end is near.
fn around(whole: &Range<u64>, touch: &Range<u64>, window: u64) -> Range<ExtentIndex> {
    let whole_extents = extents_of(whole);
    if whole.end - whole.start <= window || whole_extents.is_empty() {
        return whole_extents;
    }
    let length = window.div_ceil(EXTENT_SIZE).min(whole_extents.len() as u64) as ExtentIndex;
    let touched = extents_of(touch).start;
    let start = touched.clamp(whole_extents.start, whole_extents.end - length);
    start..start + length
}

#[derive(Default)]
struct Planned {
    demand: BTreeSet<ExtentIndex>,
    ahead: BTreeSet<ExtentIndex>,
    prefetch: Vec<Range<ExtentIndex>>,
}

impl Planned {
    fn demand(&mut self, extents: Range<ExtentIndex>) {
        self.demand.extend(extents);
    }

    /// Adds what is not planned yet, as far as the budget of extents goes. Comes after all of the demand.
    fn prefetch(&mut self, extents: Range<ExtentIndex>, budget: &mut u64) {
        for extent in extents {
            if *budget == 0 {
                return;
            }
            if !self.demand.contains(&extent) && self.ahead.insert(extent) {
                push_merged(&mut self.prefetch, extent);
                *budget -= 1;
            }
        }
    }

    fn finish(self) -> Plan {
        let mut demand = Vec::new();
        self.demand.into_iter().for_each(|extent| push_merged(&mut demand, extent));
        Plan { demand, prefetch: self.prefetch }
    }
}

fn push_merged(ranges: &mut Vec<Range<ExtentIndex>>, extent: ExtentIndex) {
    match ranges.last_mut() {
        Some(last) if last.end == extent => last.end += 1,
        _ => ranges.push(extent..extent + 1),
    }
}

#[cfg(test)]
// Lists of one range are what is meant.
#[allow(clippy::single_range_in_vec_init)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::format;
    use crate::units::extent_count;

    const MIB: u64 = 1 << 20;
    const WIDE: Window = Window { demand: 64 * MIB, ahead: 8 * MIB };

    /// A sparse stand-in for a safetensors file: the header is real, the data is not there.
    struct Sparse {
        head: Vec<u8>,
        size: u64,
    }

    impl format::Bytes for Sparse {
        fn size(&self) -> u64 {
            self.size
        }

        fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> std::io::Result<()> {
            self.head.as_slice().read_exact_at(buf, offset)
        }
    }

    /// Tensors of these lengths in bytes, with the data starting at `data_start`.
    fn map(data_start: u64, lengths: &[u64]) -> TensorMap {
        let mut offset = 0;
        let mut entries = Vec::new();
        for (index, length) in lengths.iter().enumerate() {
            let end = offset + length;
            entries.push(format!(r#""t{index}":{{"dtype":"U8","shape":[{length}],"data_offsets":[{offset},{end}]}}"#));
            offset = end;
        }
        let mut head = (data_start - 8).to_le_bytes().to_vec();
        head.extend(format!("{{{}}}", entries.join(",")).into_bytes());
        assert!(head.len() as u64 <= data_start, "the header does not fit");
        head.resize(data_start as usize, b' ');
        format::read(&Sparse { head, size: data_start + offset }).unwrap()
    }

    /// A header of one extent, then tensors of 4, 1, 1, 6 and 2 MiB: extents 1-2, 3, 3, 4-6, 7.
    fn example() -> TensorMap {
        map(2 * MIB, &[4 * MIB, MIB, MIB, 6 * MIB, 2 * MIB])
    }

    fn touch(offset: u64) -> Range<u64> {
        offset..offset + 4096
    }

    #[test]
    fn a_touch_brings_its_tensor_and_then_the_next_ones_in_file_order() {
        let plan = plan(&example(), touch(5 * MIB), &[], WIDE);
        assert_eq!(plan, Plan { demand: vec![1..3], prefetch: vec![3..7] });
    }

    #[test]
    fn a_learned_order_goes_before_file_order() {
        let learned = [4, 0, 3, 1, 2];
        assert_eq!(plan(&example(), touch(2 * MIB), &learned, WIDE).prefetch, [4..7, 3..4]);
        assert_eq!(plan(&example(), touch(14 * MIB), &learned, WIDE).prefetch, [1..3, 4..6]);
        let short = Window { ahead: 1, ..WIDE };
        assert_eq!(plan(&example(), touch(2 * MIB), &learned, short).prefetch, [4..5]);
        let without_the_touched = [4, 1000, 3];
        assert_eq!(plan(&example(), touch(2 * MIB), &without_the_touched, WIDE).prefetch, [3..7]);
    }

    #[test]
    fn of_a_large_tensor_a_window_comes_first() {
        let window = Window { demand: 4 * MIB, ahead: 100 * MIB };
        let map = TensorMap::opaque(21 * MIB);
        let opaque = |offset| plan(&map, touch(offset), &[], window);
        assert_eq!(opaque(8 * MIB + 5), Plan { demand: vec![4..6], prefetch: vec![6..11, 0..4] });
        assert_eq!(opaque(20 * MIB), Plan { demand: vec![9..11], prefetch: vec![0..9] });
        assert_eq!(opaque(0), Plan { demand: vec![0..2], prefetch: vec![2..11] });
        let long = plan(&map, MIB..13 * MIB, &[], window);
        assert_eq!(long, Plan { demand: vec![0..7], prefetch: vec![7..11] });
    }

    #[test]
    fn a_touch_in_the_header_brings_the_header_only() {
        let map = map(5 * MIB, &[MIB; 8]);
        let header = Plan { demand: vec![0..3], prefetch: vec![] };
        assert_eq!(plan(&map, 0..8, &[], WIDE), header);
        assert_eq!(plan(&map, 4 * MIB..6 * MIB, &[], WIDE), header);
        let beyond = plan(&map, 4 * MIB..6 * MIB + 1, &[], WIDE);
        assert_eq!(beyond, Plan { demand: vec![0..4], prefetch: vec![4..7] });
    }

    #[test]
    fn touches_outside_of_the_file_ask_for_nothing() {
        let map = example();
        assert_eq!(plan(&map, map.size()..u64::MAX, &[], WIDE), Plan::default());
        assert_eq!(plan(&map, 5..5, &[], WIDE), Plan::default());
        assert_eq!(plan(&map, map.size() - 1..u64::MAX, &[], WIDE).demand, [7..8]);
        let small = TensorMap::opaque(100);
        assert_eq!(plan(&small, 3..4, &[], WIDE), Plan { demand: vec![0..1], prefetch: vec![] });
    }

    proptest! {
        #[test]
        fn plans_hold_what_they_promise(
            lengths in prop::collection::vec(prop_oneof![0u64..100, 0..3 * MIB, 0..40 * MIB], 0..40),
            header in prop_oneof![9 => 10_000..100_000u64, 1 => 10_000..5 * MIB],
            (start, length) in (0u64..200 * MIB, prop_oneof![1u64..5000, 1..10 * MIB]),
            learned in prop::collection::vec(0u32..45, 0..45),
            window in (0u64..50 * MIB, 0u64..50 * MIB),
        ) {
            let map = map(header, &lengths);
            let window = Window { demand: window.0, ahead: window.1 };
            let plan = plan(&map, start..start + length, &learned, window);
            let all: Vec<_> = plan.demand.iter().chain(&plan.prefetch).cloned().flatten().collect();
            prop_assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), all.len(), "planned twice");
            prop_assert!(all.iter().all(|extent| *extent < extent_count(map.size())), "beyond the file");
            prop_assert!(plan.demand.is_sorted_by(|a, b| a.end < b.start), "not merged");
            let count = |ranges: &[Range<ExtentIndex>]| ranges.iter().map(|range| range.len() as u64).sum::<u64>();
            prop_assert!(count(&plan.prefetch) <= window.ahead.div_ceil(EXTENT_SIZE));

            let touch = start..(start + length).min(map.size());
            let demanded = |extent| plan.demand.iter().any(|range| range.contains(&extent));
            prop_assert!(extents_of(&touch).all(demanded), "the touched extents are missing");
            // The touch, and at most a window at each of its ends or for the header.
            let slack = 3 * (window.demand.div_ceil(EXTENT_SIZE) + 1);
            prop_assert!(count(&plan.demand) <= extents_of(&touch).len() as u64 + slack);
            if start >= header && let Some(index) = map.at(start) {
                let tensor = &map.tensors()[index].bytes;
                if tensor.end - tensor.start <= window.demand {
                    prop_assert!(extents_of(tensor).all(demanded), "the touched tensor is not whole");
                }
            }
        }
    }
}
