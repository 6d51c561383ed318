//! The file format of traces, version 1.
//!
//! ```text
//! trace   = "WFSTRACE" version:u8 event*
//! event   = tag:u8 elapsed:v field*          elapsed = milliseconds since the event before
//! tag 1   File      file:v size:v ns_per_kib:v
//! tag 2   Open      open:v file:v kind:u8
//! tag 3   Read      open:v first:v count:v    extents first..first+count
//! tag 4   Close     open:v kind:u8
//! tag 5   Decided   file:v first:v count:v admitted:u8 reason:u8
//! tag 6   Evicted   file:v first:v count:v reason:u8
//! tag 7   Budget    bytes:v
//! tag 8   Resident  file:v first:v count:v
//! tag 9   InVram    file:v held:u8
//! kind    = 0 load, 1 header peek, 2 scan, 3 unknown
//! v       = unsigned LEB128, at most 10 bytes
//! ```
//!
//! A run of a hundred extents takes six or seven bytes. A trace that was cut off, say by a crash, is good up to the cut.

use std::io::{self, Write};
use std::ops::Range;

use super::event::{Event, What};
use crate::ids::{ExtentIndex, FileId};
use crate::residency::{AdmitReason, EvictReason, RefetchCost, UseKind};

const MAGIC: &[u8; 8] = b"WFSTRACE";
const VERSION: u8 = 1;

const KINDS: [UseKind; 4] = [UseKind::Load, UseKind::HeaderPeek, UseKind::Scan, UseKind::Unknown];

const ADMIT_REASONS: [AdmitReason; 7] = [
    AdmitReason::Pinned,
    AdmitReason::Queued,
    AdmitReason::FreeRoom,
    AdmitReason::Kept,
    AdmitReason::WorthLess,
    AdmitReason::NotAUse,
    AdmitReason::NothingToEvict,
];

const EVICT_REASONS: [EvictReason; 8] = [
    EvictReason::Unused,
    EvictReason::NotKept,
    EvictReason::OverBudget,
    EvictReason::QueuedLater,
    EvictReason::HeldByClient,
    EvictReason::InUse,
    EvictReason::Pinned,
    EvictReason::InVram,
];

/// Writes a trace event by event. Give it a buffered writer.
pub struct Writer<W: Write> {
    out: W,
    at_ms: u64,
}

impl<W: Write> Writer<W> {
    pub fn new(mut out: W) -> io::Result<Writer<W>> {
        out.write_all(MAGIC)?;
        out.write_all(&[VERSION])?;
        Ok(Writer { out, at_ms: 0 })
    }

    /// An event that claims to lie before the last one is written with the time of that.
    pub fn record(&mut self, event: &Event) -> io::Result<()> {
        let elapsed = event.at_ms.saturating_sub(self.at_ms);
        self.at_ms += elapsed;
        let mut record = Record::default();
        match &event.what {
            What::File { file, size, cost } => {
                record.tag(1, elapsed).v(file.0).v(*size).v(cost.ns_per_kib.into());
            }
            What::Open { open, file, kind } => {
                record.tag(2, elapsed).v((*open).into()).v(file.0).byte(place(&KINDS, kind));
            }
            What::Read { open, extents } => {
                record.tag(3, elapsed).v((*open).into()).run(extents);
            }
            What::Close { open, kind } => {
                record.tag(4, elapsed).v((*open).into()).byte(place(&KINDS, kind));
            }
            What::Decided { file, extents, admitted, reason } => {
                let reason = place(&ADMIT_REASONS, reason);
                record.tag(5, elapsed).v(file.0).run(extents).byte((*admitted).into()).byte(reason);
            }
            What::Evicted { file, extents, reason } => {
                record.tag(6, elapsed).v(file.0).run(extents).byte(place(&EVICT_REASONS, reason));
            }
            What::Budget { bytes } => {
                record.tag(7, elapsed).v(*bytes);
            }
            What::Resident { file, extents } => {
                record.tag(8, elapsed).v(file.0).run(extents);
            }
            What::InVram { file, held } => {
                record.tag(9, elapsed).v(file.0).byte((*held).into());
            }
        }
        self.out.write_all(&record.bytes)
    }

    /// What was recorded so far goes to where it is written.
    pub fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }

    pub fn finish(mut self) -> io::Result<W> {
        self.out.flush()?;
        Ok(self.out)
    }
}

#[derive(Default)]
struct Record {
    bytes: Vec<u8>,
}

impl Record {
    fn tag(&mut self, tag: u8, elapsed: u64) -> &mut Record {
        self.byte(tag).v(elapsed)
    }

    fn byte(&mut self, byte: u8) -> &mut Record {
        self.bytes.push(byte);
        self
    }

    fn v(&mut self, mut value: u64) -> &mut Record {
        while value >= 0x80 {
            self.bytes.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.byte(value as u8)
    }

    fn run(&mut self, extents: &Range<ExtentIndex>) -> &mut Record {
        self.v(extents.start.into()).v(extents.end.saturating_sub(extents.start).into())
    }
}

fn place<T: PartialEq>(table: &[T], value: &T) -> u8 {
    table.iter().position(|known| known == value).expect("the tables list every variant") as u8
}

/// Why bytes are no trace, or where one breaks off.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TraceError {
    #[error("this is no weightfs trace: record one with `weightfs trace start`")]
    NoTrace,
    #[error("the trace has format version {0}, this program reads version {VERSION}: use a newer weightfs")]
    Version(u8),
    #[error("the trace breaks off at byte {offset}: what comes before is good")]
    CutOff { offset: usize },
    #[error("the trace is damaged at byte {offset}: what comes before is good")]
    Damaged { offset: usize },
}

/// Reads a trace event by event, in constant memory. Ends after the first error.
#[derive(Clone, Debug)]
pub struct Reader<'a> {
    bytes: &'a [u8],
    offset: usize,
    at_ms: u64,
}

impl<'a> Reader<'a> {
    pub fn new(bytes: &'a [u8]) -> Result<Reader<'a>, TraceError> {
        let rest = bytes.strip_prefix(MAGIC).ok_or(TraceError::NoTrace)?;
        match rest.first() {
            Some(&VERSION) => Ok(Reader { bytes, offset: MAGIC.len() + 1, at_ms: 0 }),
            Some(&other) => Err(TraceError::Version(other)),
            None => Err(TraceError::CutOff { offset: bytes.len() }),
        }
    }

    fn event(&mut self) -> Result<Event, TraceError> {
        let tag = self.byte()?;
        let elapsed = self.v()?;
        self.at_ms = self.at_ms.checked_add(elapsed).ok_or_else(|| self.damaged())?;
        let what = match tag {
            1 => What::File { file: self.file()?, size: self.v()?, cost: RefetchCost { ns_per_kib: self.v32()? } },
            2 => What::Open { open: self.v32()?, file: self.file()?, kind: self.one_of(&KINDS)? },
            3 => What::Read { open: self.v32()?, extents: self.run()? },
            4 => What::Close { open: self.v32()?, kind: self.one_of(&KINDS)? },
            5 => What::Decided {
                file: self.file()?,
                extents: self.run()?,
                admitted: self.one_of(&[false, true])?,
                reason: self.one_of(&ADMIT_REASONS)?,
            },
            6 => What::Evicted { file: self.file()?, extents: self.run()?, reason: self.one_of(&EVICT_REASONS)? },
            7 => What::Budget { bytes: self.v()? },
            8 => What::Resident { file: self.file()?, extents: self.run()? },
            9 => What::InVram { file: self.file()?, held: self.one_of(&[false, true])? },
            _ => return Err(self.damaged()),
        };
        Ok(Event { at_ms: self.at_ms, what })
    }

    fn byte(&mut self) -> Result<u8, TraceError> {
        let byte = *self.bytes.get(self.offset).ok_or(TraceError::CutOff { offset: self.offset })?;
        self.offset += 1;
        Ok(byte)
    }

    fn v(&mut self) -> Result<u64, TraceError> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7f);
            // The tenth byte has room for one bit.
            if shift == 63 && bits > 1 {
                break;
            }
            value |= bits << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err(self.damaged())
    }

    fn v32(&mut self) -> Result<u32, TraceError> {
        u32::try_from(self.v()?).map_err(|_| self.damaged())
    }

    fn file(&mut self) -> Result<FileId, TraceError> {
        self.v().map(FileId)
    }

    fn run(&mut self) -> Result<Range<ExtentIndex>, TraceError> {
        let (first, count) = (self.v32()?, self.v32()?);
        first.checked_add(count).map(|end| first..end).ok_or_else(|| self.damaged())
    }

    fn one_of<T: Copy>(&mut self, table: &[T]) -> Result<T, TraceError> {
        let place = usize::from(self.byte()?);
        table.get(place).copied().ok_or_else(|| self.damaged())
    }

    fn damaged(&self) -> TraceError {
        TraceError::Damaged { offset: self.offset }
    }
}

impl Iterator for Reader<'_> {
    type Item = Result<Event, TraceError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.offset >= self.bytes.len() {
            return None;
        }
        let event = self.event();
        if event.is_err() {
            self.offset = self.bytes.len();
        }
        Some(event)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn what() -> impl Strategy<Value = What> {
        let run = || (any::<u32>(), any::<u32>()).prop_map(|(first, count)| first..first.saturating_add(count));
        let file = || any::<u64>().prop_map(FileId);
        let kind = || prop::sample::select(KINDS.to_vec());
        prop_oneof![
            (file(), any::<u64>(), any::<u32>()).prop_map(|(file, size, ns_per_kib)| What::File {
                file,
                size,
                cost: RefetchCost { ns_per_kib }
            }),
            (any::<u32>(), file(), kind()).prop_map(|(open, file, kind)| What::Open { open, file, kind }),
            (any::<u32>(), run()).prop_map(|(open, extents)| What::Read { open, extents }),
            (any::<u32>(), kind()).prop_map(|(open, kind)| What::Close { open, kind }),
            (file(), run(), any::<bool>(), prop::sample::select(ADMIT_REASONS.to_vec()))
                .prop_map(|(file, extents, admitted, reason)| What::Decided { file, extents, admitted, reason }),
            (file(), run(), prop::sample::select(EVICT_REASONS.to_vec()))
                .prop_map(|(file, extents, reason)| What::Evicted { file, extents, reason }),
            any::<u64>().prop_map(|bytes| What::Budget { bytes }),
            (file(), run()).prop_map(|(file, extents)| What::Resident { file, extents }),
            (file(), any::<bool>()).prop_map(|(file, held)| What::InVram { file, held }),
        ]
    }

    fn events() -> impl Strategy<Value = Vec<Event>> {
        prop::collection::vec((0u64..1 << 40, what()), 0..50).prop_map(|steps| {
            let mut at_ms = 0;
            steps
                .into_iter()
                .map(|(elapsed, what)| {
                    at_ms += elapsed;
                    Event { at_ms, what }
                })
                .collect()
        })
    }

    fn write(events: &[Event]) -> Vec<u8> {
        let mut writer = Writer::new(Vec::new()).unwrap();
        events.iter().for_each(|event| writer.record(event).unwrap());
        writer.finish().unwrap()
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(events in events()) {
            let bytes = write(&events);
            let read: Result<Vec<_>, _> = Reader::new(&bytes).unwrap().collect();
            prop_assert_eq!(read, Ok(events));
        }

        #[test]
        fn a_cut_trace_is_good_up_to_the_cut(events in events(), cut in any::<prop::sample::Index>()) {
            let bytes = write(&events);
            let cut = &bytes[..cut.index(bytes.len())];
            match Reader::new(cut) {
                Err(error) => prop_assert!(cut.len() <= MAGIC.len(), "{}", error),
                Ok(reader) => {
                    let read: Vec<_> = reader.take_while(Result::is_ok).map(Result::unwrap).collect();
                    prop_assert!(events.starts_with(&read));
                }
            }
        }

        #[test]
        fn hostile_bytes_end_in_an_error(tail in prop::collection::vec(any::<u8>(), 0..200)) {
            let bytes = [&MAGIC[..], &[VERSION], &tail].concat();
            // Every event takes at least two bytes, and nothing follows an error.
            let read: Vec<_> = Reader::new(&bytes).unwrap().collect();
            prop_assert!(read.len() <= tail.len().div_ceil(2));
            prop_assert!(read.iter().rev().skip(1).all(Result::is_ok));
        }
    }

    #[test]
    fn other_files_are_told_apart() {
        assert_eq!(Reader::new(b"hello, world").unwrap_err(), TraceError::NoTrace);
        assert_eq!(Reader::new(b"WFSTRACE\x02").unwrap_err(), TraceError::Version(2));
        let overlong = [&MAGIC[..], &[VERSION, 7], &[0xff; 10], &[0x01]].concat();
        assert!(matches!(Reader::new(&overlong).unwrap().next(), Some(Err(TraceError::Damaged { .. }))));
    }
}
