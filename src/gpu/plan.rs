//! Which reads bring what is wanted of a file: aligned for direct I/O, at most one of them for each byte.
//!
//! Each read goes into an aligned place of its own, and what is wanted of it is then copied within the device's memory
//! to where it belongs, which may be anywhere.

/// What direct I/O and the pages of a GPU are aligned to.
pub const ALIGNMENT: u64 = 4096;

/// `len` bytes of the file from `start` are wanted at `at` of the target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    pub start: u64,
    pub len: u64,
    pub at: u64,
}

/// One read, and where its bytes go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Read {
    /// A multiple of [`ALIGNMENT`].
    pub offset: u64,
    /// A multiple too, unless the file ends there.
    pub len: u64,
    pub copies: Vec<Copy>,
}

/// `len` bytes from `from` of what was read to `to` of the target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Copy {
    pub from: u64,
    pub to: u64,
    pub len: u64,
}

/// A span that is not in the file or not in the target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{} + {} bytes to {} do not lie in a file of {file_len} bytes and a memory of {target_len}", span.start, span.len, span.at)]
pub struct OutOfBounds {
    pub span: Span,
    pub file_len: u64,
    pub target_len: u64,
}

/// The reads for `spans`, each of at most `chunk` bytes (a multiple of [`ALIGNMENT`]), in the order of the file.
///
/// # Panics
/// Where `chunk` is no such multiple.
pub fn reads(spans: &[Span], file_len: u64, target_len: u64, chunk: u64) -> Result<Vec<Read>, OutOfBounds> {
    assert!(chunk > 0 && chunk.is_multiple_of(ALIGNMENT), "{chunk} is no multiple of {ALIGNMENT}");
    let inside = |start: u64, len: u64, all: u64| start.checked_add(len).is_some_and(|end| end <= all);
    if let Some(&span) =
        spans.iter().find(|span| !inside(span.start, span.len, file_len) || !inside(span.at, span.len, target_len))
    {
        return Err(OutOfBounds { span, file_len, target_len });
    }
    let mut spans: Vec<Span> = spans.iter().copied().filter(|span| span.len > 0).collect();
    spans.sort_by_key(|span| span.start);
    let mut reads: Vec<Read> = Vec::new();
    for (start, end) in windows(&spans, file_len) {
        let mut offset = start;
        while offset < end {
            let len = chunk.min(end - offset);
            reads.push(Read { offset, len, copies: Vec::new() });
            offset += len;
        }
    }
    for span in &spans {
        let first = reads.partition_point(|read| read.offset + read.len <= span.start);
        for read in reads[first..].iter_mut().take_while(|read| read.offset < span.start + span.len) {
            let from = span.start.max(read.offset);
            let until = (span.start + span.len).min(read.offset + read.len);
            read.copies.push(Copy { from: from - read.offset, to: span.at + from - span.start, len: until - from });
        }
    }
    Ok(reads)
}

/// The aligned parts of the file that hold `spans`, which are sorted. They neither touch nor overlap.
fn windows(spans: &[Span], file_len: u64) -> Vec<(u64, u64)> {
    let mut windows: Vec<(u64, u64)> = Vec::new();
    for span in spans {
        let start = span.start / ALIGNMENT * ALIGNMENT;
        let end = (span.start + span.len).next_multiple_of(ALIGNMENT).min(file_len);
        match windows.last_mut() {
            Some(last) if start <= last.1 => last.1 = last.1.max(end),
            _ => windows.push((start, end)),
        }
    }
    windows
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_is_outside_is_refused() {
        let span = |start, len, at| [Span { start, len, at }];
        for bad in [span(0, 11, 0), span(10, 1, 0), span(0, 10, 91), span(u64::MAX, 2, 0), span(0, 1, u64::MAX)] {
            assert!(reads(&bad, 10, 100, 4096).is_err(), "{bad:?}");
        }
        assert_eq!(reads(&span(10, 0, 0), 10, 100, 4096), Ok(Vec::new()));
    }

    #[test]
    fn neighbours_share_their_pages() {
        let spans = [Span { start: 5000, len: 10, at: 0 }, Span { start: 5010, len: 4000, at: 100 }];
        let reads = reads(&spans, 9500, 4100, 4096).unwrap();
        assert_eq!(reads.iter().map(|read| (read.offset, read.len)).collect::<Vec<_>>(), [(4096, 4096), (8192, 1308)]);
        assert_eq!(reads[0].copies.len(), 2);
    }

    proptest! {
        #[test]
        fn every_byte_gets_to_its_place_and_none_is_read_twice(
            file_len in 1u64..60_000,
            raw in prop::collection::vec((0u64..60_000, 0u64..20_000), 1..8),
            chunk in 1u64..5,
        ) {
            let file: Vec<u8> = (0..file_len).map(|at| (at * 31 % 251) as u8).collect();
            let mut end = 0;
            let spans: Vec<Span> = raw
                .into_iter()
                .map(|(start, len)| {
                    let start = start.min(file_len);
                    let span = Span { start, len: len.min(file_len - start), at: end };
                    end += span.len + 3;
                    span
                })
                .collect();
            let reads = reads(&spans, file_len, end, chunk * ALIGNMENT).unwrap();
            let mut target = vec![0; end as usize];
            let mut reached = 0;
            for read in &reads {
                prop_assert!(read.offset % ALIGNMENT == 0 && read.offset >= reached && read.len <= chunk * ALIGNMENT);
                reached = read.offset + read.len;
                prop_assert!(read.len % ALIGNMENT == 0 || reached == file_len);
                let slot = &file[read.offset as usize..reached as usize];
                for copy in &read.copies {
                    let bytes = &slot[copy.from as usize..(copy.from + copy.len) as usize];
                    target[copy.to as usize..(copy.to + copy.len) as usize].copy_from_slice(bytes);
                }
            }
            for span in &spans {
                let wanted = &file[span.start as usize..(span.start + span.len) as usize];
                prop_assert_eq!(&target[span.at as usize..(span.at + span.len) as usize], wanted);
            }
        }
    }
}
