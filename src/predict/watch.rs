//! Follows the reads of one open.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use crate::format::TensorMap;

use super::kind::{Facts, PEEK_LIMIT};
use super::order::{Order, OrderRecorder};

/// What is touched is kept as one bit for each of so many equal pieces of a file: 8 KiB an open.
const PIECES: u64 = 1 << 16;
const PAGE: u64 = 4096;
/// Reads of one program that arrive through several threads are out of order by about as much as it has in flight.
const SLACK: u64 = 4 << 20;

/// How a read came to us, as far as that can be told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    Read,
    /// A page fault in a mapping, or the readahead of one.
    Fault,
    Unknown,
}

/// The reads of one open, boiled down as they come, in as many threads as they come in: nothing here waits. Takes 8 KiB
/// and a bit for each tensor.
#[derive(Debug)]
pub struct OpenWatch {
    order: OrderRecorder,
    touched: Box<[AtomicU64]>,
    /// Bytes for each bit of `touched`.
    piece: u64,
    data_bytes: u64,
    data_read: AtomicU64,
    data_touched: AtomicU64,
    furthest: AtomicU64,
    jumped: AtomicBool,
    unaligned: AtomicBool,
    ran_over: AtomicBool,
    faulted: AtomicBool,
    not_told: AtomicBool,
}

impl OpenWatch {
    pub fn new(map: &TensorMap) -> Self {
        let piece = map.size().div_ceil(PIECES).next_power_of_two().max(PAGE);
        let words = map.size().div_ceil(piece).div_ceil(64);
        OpenWatch {
            order: OrderRecorder::new(map.tensors().len()),
            touched: (0..words).map(|_| AtomicU64::new(0)).collect(),
            piece,
            data_bytes: map.data_bytes(),
            data_read: AtomicU64::new(0),
            data_touched: AtomicU64::new(0),
            furthest: AtomicU64::new(0),
            jumped: AtomicBool::new(false),
            unaligned: AtomicBool::new(false),
            ran_over: AtomicBool::new(false),
            faulted: AtomicBool::new(false),
            not_told: AtomicBool::new(false),
        }
    }

    /// Takes in one read of `bytes`. `map` is the one that this watch was made for.
    pub fn touch(&self, map: &TensorMap, bytes: Range<u64>, access: Access) {
        let bytes = bytes.start..bytes.end.min(map.size());
        if bytes.start >= bytes.end {
            return;
        }
        let furthest = self.furthest.fetch_max(bytes.end, Relaxed);
        note(&self.jumped, bytes.start.abs_diff(furthest) > SLACK);
        note(&self.faulted, access == Access::Fault);
        note(&self.not_told, access == Access::Unknown);

        // What is read along with the header says nothing about tensors, and a header is read from anywhere.
        let header = map.header();
        let with_header = header.contains(&bytes.start);
        let spill_end = if with_header { header.end + PEEK_LIMIT } else { 0 };
        let mut tensors = 0;
        for index in map.within(&bytes) {
            let tensor = &map.tensors()[index].bytes;
            let part = tensor.start.max(bytes.start)..tensor.end.min(bytes.end);
            if part.start >= part.end {
                continue;
            }
            self.mark(&part);
            self.data_read.fetch_add(part.end.saturating_sub(part.start.max(spill_end)), Relaxed);
            if !with_header {
                self.order.touch(index);
            }
            tensors += 1;
        }
        note(&self.ran_over, tensors > 1 && !with_header);
        note(&self.unaligned, !bytes.start.is_multiple_of(PAGE) && !with_header);
    }

    pub fn facts(&self) -> Facts {
        let mapped = match (self.faulted.load(Relaxed), self.not_told.load(Relaxed)) {
            (true, _) => Some(true),
            (false, true) => None,
            (false, false) => (self.furthest.load(Relaxed) > 0).then_some(false),
        };
        Facts {
            data_bytes: self.data_bytes,
            data_read: self.data_read.load(Relaxed),
            data_touched: self.data_touched.load(Relaxed).min(self.data_bytes),
            front_to_back: !self.jumped.load(Relaxed),
            ignores_tensors: !self.unaligned.load(Relaxed) || self.ran_over.load(Relaxed),
            mapped,
        }
    }

    /// The order in which the tensors were first read, so far.
    pub fn order(&self) -> Order {
        self.order.order()
    }

    fn mark(&self, part: &Range<u64>) {
        for piece in part.start / self.piece..part.end.div_ceil(self.piece) {
            let (word, bit) = (&self.touched[(piece / 64) as usize], 1 << (piece % 64));
            if word.load(Relaxed) & bit == 0 && word.fetch_or(bit, Relaxed) & bit == 0 {
                self.data_touched.fetch_add(self.piece, Relaxed);
            }
        }
    }
}

/// Writes only what is news, so that parallel reads do not pass one cache line around.
fn note(flag: &AtomicBool, seen: bool) {
    if seen && !flag.load(Relaxed) {
        flag.store(true, Relaxed);
    }
}

#[cfg(test)]
// Lists of one range are what is meant.
#[allow(clippy::single_range_in_vec_init)]
mod tests {
    use super::*;
    use crate::format;
    use crate::predict::OpenKind;

    const MIB: u64 = 1 << 20;
    const TENSOR: u64 = 3 * MIB;
    const COUNT: u64 = 16;

    /// A safetensors file of 16 tensors of 3 MiB behind a header of 2,008 bytes.
    fn file() -> TensorMap {
        let entry = |i: u64| {
            let (start, end) = (i * TENSOR, (i + 1) * TENSOR);
            format!(r#""{i}":{{"dtype":"U8","shape":[{TENSOR}],"data_offsets":[{start},{end}]}}"#)
        };
        let mut header = format!("{{{}}}", (0..COUNT).map(entry).collect::<Vec<_>>().join(","));
        header.extend(std::iter::repeat_n(' ', 2000 - header.len()));
        let mut bytes = 2000u64.to_le_bytes().to_vec();
        bytes.extend(header.into_bytes());
        bytes.resize(bytes.len() + (COUNT * TENSOR) as usize, 0);
        format::read(&bytes.as_slice()).unwrap()
    }

    fn kind(reads: impl IntoIterator<Item = Range<u64>>, access: Access) -> (OpenKind, Vec<u32>) {
        let map = file();
        let watch = OpenWatch::new(&map);
        reads.into_iter().for_each(|bytes| watch.touch(&map, bytes, access));
        (watch.facts().kind(), watch.order().to_vec())
    }

    fn blocks(range: Range<u64>, length: u64) -> impl Iterator<Item = Range<u64>> {
        range.clone().step_by(length as usize).map(move |start| start..(start + length).min(range.end))
    }

    #[test]
    fn readers_are_known_by_their_reads() {
        let map = file();
        let size = map.size();
        let tensors = || map.tensors().iter().map(|tensor| tensor.bytes.clone());
        let header = [0..8, 8..2008];

        assert_eq!(kind([], Access::Unknown).0, OpenKind::HeaderPeek);
        assert_eq!(kind(header.clone(), Access::Read), (OpenKind::HeaderPeek, vec![]));
        assert_eq!(kind([0..128 << 10], Access::Fault), (OpenKind::HeaderPeek, vec![]));
        assert_eq!(kind([MIB..MIB + (64 << 10)], Access::Read).0, OpenKind::HeaderPeek);

        for length in [64 << 10, MIB, 8 * MIB] {
            assert_eq!(kind(blocks(0..size, length), Access::Unknown).0, OpenKind::HashScan);
        }
        assert_eq!(
            kind(header.clone().into_iter().chain(blocks(2008..size, 2 * MIB)), Access::Read).0,
            OpenKind::HashScan
        );
        assert_eq!(kind(blocks(0..size / 2, MIB), Access::Read).0, OpenKind::Partial);

        let in_file_order = header.clone().into_iter().chain(tensors().flat_map(|bytes| blocks(bytes, 2 * MIB)));
        assert_eq!(kind(in_file_order, Access::Read), (OpenKind::WholeLoadRead, (0..16).collect()));
        let shuffled = header.clone().into_iter().chain((0..16).map(|i| tensors().nth(i * 7 % 16).unwrap()));
        let order = (0..16).map(|i| i * 7 % 16).collect();
        assert_eq!(kind(shuffled, Access::Read), (OpenKind::WholeLoadRead, order));
        assert_eq!(kind(blocks(0..size, 128 << 10), Access::Fault).0, OpenKind::WholeLoadMapped);
        assert_eq!(kind(tensors().take(5), Access::Read), (OpenKind::Partial, (0..5).collect()));
    }

    #[test]
    fn parallel_reads_are_all_counted() {
        let map = file();
        let watch = OpenWatch::new(&map);
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let (map, watch) = (&map, &watch);
                scope.spawn(move || {
                    for tensor in map.tensors().iter().skip(thread).step_by(4) {
                        blocks(tensor.bytes.clone(), 4096).for_each(|bytes| watch.touch(map, bytes, Access::Read));
                    }
                });
            }
        });
        let facts = watch.facts();
        assert_eq!((facts.data_read, facts.data_touched), (map.data_bytes(), map.data_bytes()));
        let mut order = watch.order().to_vec();
        order.sort_unstable();
        assert!(order.into_iter().eq(0..COUNT as u32));
    }

    #[test]
    fn a_byte_that_is_read_again_is_not_more_of_the_file() {
        let map = file();
        let watch = OpenWatch::new(&map);
        for _ in 0..100 {
            watch.touch(&map, 4 * MIB..5 * MIB, Access::Read);
        }
        let facts = watch.facts();
        assert_eq!((facts.data_read, facts.data_touched), (100 * MIB, MIB));
        assert_eq!(facts.mapped, Some(false));
        watch.touch(&map, 0..u64::MAX, Access::Unknown);
        assert_eq!(watch.facts().data_touched, map.data_bytes());
        assert_eq!(watch.facts().mapped, None);
    }
}
