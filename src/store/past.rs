//! Reading past the arena: what of an extent goes to a slot, and how it gets there.

use std::ops::Range;
use std::sync::Arc;

use super::bypass::{Claim, Portion};
use super::filling::make_findable;
use super::read::SMALL;
use super::{Generation, Store};
use crate::fill::{Class, Job};
use crate::format::TensorMap;
use crate::ids::ExtentIndex;
use crate::units::{EXTENT_SIZE, extent_bytes};

/// A tensor from this on is read by itself: those beside it may be read by other threads, and long before or after.
const LARGE: u64 = EXTENT_SIZE;

/// Parts begin and end at multiples of this: what direct reads of any device are aligned to.
const ROUND: u64 = 64 << 10;

/// The bytes of a file that belong to what is read: what lies beside them in the same extents is another's to read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct About(Range<u64>);

impl About {
    /// Everything, where nothing is known of who reads.
    pub fn all() -> Self {
        Self(0..u64::MAX)
    }

    /// For a read of `range`: the large tensors in it; else all small ones around it, since they are read by one.
    pub fn read(generation: &Generation, range: &Range<u64>) -> Self {
        generation.tensors.get().map_or_else(Self::all, |map| Self::of(map, range))
    }

    fn of(map: &TensorMap, range: &Range<u64>) -> Self {
        let touched = map.within(range);
        let tensors = map.tensors();
        let is_large = |index: usize| tensors[index].bytes.end - tensors[index].bytes.start >= LARGE;
        let (Some(mut first), Some(mut last)) = (touched.clone().next(), touched.clone().next_back()) else {
            return Self::all();
        };
        if !touched.into_iter().any(is_large) {
            // No extent holds what lies further away.
            let near = range.start.saturating_sub(EXTENT_SIZE)..range.end.saturating_add(EXTENT_SIZE);
            while first > 0 && !is_large(first - 1) && tensors[first - 1].bytes.end > near.start {
                first -= 1;
            }
            while last + 1 < tensors.len() && !is_large(last + 1) && tensors[last + 1].bytes.start < near.end {
                last += 1;
            }
        }
        Self(tensors[first].bytes.start.min(range.start)..tensors[last].bytes.end.max(range.end))
    }

    /// What of an extent is to be read. None for one that is about something else, if that is large, and where it is so
    /// little that whoever reads it has it by then.
    pub fn part(&self, generation: &Generation, extent: ExtentIndex) -> Option<Portion> {
        let whole = extent_bytes(extent, generation.size);
        let bytes = self.0.start.max(whole.start)..self.0.end.min(whole.end);
        if bytes.is_empty() {
            let map = generation.tensors.get();
            let tensor = map.and_then(|map| map.at(whole.start).map(|index| &map.tensors()[index].bytes));
            let is_large = tensor.is_some_and(|bytes| bytes.end - bytes.start >= LARGE);
            return (!is_large).then(|| part_of(&whole, &whole));
        }
        (self.0.end - self.0.start > SMALL).then(|| part_of(&whole, &bytes))
    }
}

fn part_of(whole: &Range<u64>, bytes: &Range<u64>) -> Portion {
    let (start, end) = (bytes.start - whole.start, bytes.end - whole.start);
    let rounded = start / ROUND * ROUND..end.next_multiple_of(ROUND).min(whole.end - whole.start);
    Portion { bytes: rounded.start as usize..rounded.end as usize, worth: end - start }
}

impl Store {
    /// Reads a part of an extent into a slot.
    pub(super) fn submit_past(
        self: &Arc<Self>,
        generation: &Arc<Generation>,
        extent: ExtentIndex,
        slot: Claim,
        part: Range<usize>,
        class: Class,
    ) {
        let engine = match self.engine_of(generation) {
            Ok(engine) => engine,
            Err(error) => {
                tracing::error!(%error, "an extent cannot be read");
                return self.give_up(generation, &(extent..extent + 1));
            }
        };
        tracing::trace!(file = %generation.file_id(), extent, ?part, ?class, "reading past the arena");
        let start = extent_bytes(extent, generation.size).start;
        let (memory, at) = (slot.memory(), slot.at());
        let (store, filled) = (Arc::clone(self), Arc::clone(generation));
        let job = engine.submit(Job {
            source: Arc::clone(&generation.source),
            bytes: start + part.start as u64..start + part.end as u64,
            memory,
            at,
            class,
            ticket: None,
            done: Box::new(move |result| {
                filled.forget_job(&(extent..extent + 1));
                if store.is_trusted(&filled, result) {
                    slot.full();
                } else {
                    // Empty before anyone can begin to read the extent again.
                    drop(slot);
                }
                store.give_up(&filled, &(extent..extent + 1));
            }),
        });
        make_findable(generation, &(extent..extent + 1), job, &engine, class);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::{self, Bytes};

    /// The head of a safetensors file.
    struct Head(Vec<u8>, u64);

    impl Bytes for Head {
        fn size(&self) -> u64 {
            self.1
        }

        fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> std::io::Result<()> {
            self.0.as_slice().read_exact_at(buf, offset)
        }
    }

    fn map(lengths: &[u64]) -> TensorMap {
        let mut end = 0;
        let mut entry = |(index, length): (usize, &u64)| {
            let start = end;
            end += length;
            format!(r#""{index}":{{"dtype":"U8","shape":[{length}],"data_offsets":[{start},{end}]}}"#)
        };
        let entries: Vec<_> = lengths.iter().enumerate().map(&mut entry).collect();
        let header = format!("{{{}}}", entries.join(","));
        let head = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes()].concat();
        let size = head.len() as u64 + end;
        format::read(&Head(head, size)).unwrap()
    }

    #[test]
    fn a_slot_gets_what_belongs_to_the_tensors_that_are_read() {
        const MIB: u64 = 1 << 20;
        // Two large ones with two small ones between them, and more small ones at the end.
        let map = map(&[5 * MIB, 100, 3000, 5 * MIB, 1000, 2000, 3000]);
        let tensor = |index: usize| map.tensors()[index].bytes.clone();
        let about = |range: Range<u64>| About::of(&map, &range).0;
        assert_eq!(about(tensor(0).start + 10..tensor(0).start + 20), tensor(0));
        assert_eq!(about(tensor(1)), tensor(1).start..tensor(2).end);
        assert_eq!(about(tensor(3).end - 1..tensor(3).end + 1), tensor(3).start..tensor(4).end);
        assert_eq!(about(tensor(5)), tensor(4).start..tensor(6).end);
        assert_eq!(About::of(&map, &(0..5)), About::all());
    }

    #[test]
    fn parts_are_rounded_within_their_extent() {
        let whole = 2 * EXTENT_SIZE..3 * EXTENT_SIZE - 7;
        let all = part_of(&whole, &whole);
        assert_eq!((all.bytes.clone(), all.worth), (0..EXTENT_SIZE as usize - 7, EXTENT_SIZE - 7));
        let part = part_of(&whole, &(2 * EXTENT_SIZE + 65_537..2 * EXTENT_SIZE + 65_540));
        assert_eq!(part, Portion { bytes: 65_536..131_072, worth: 3 });
    }
}
