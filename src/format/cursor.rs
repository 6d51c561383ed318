//! Reads a header front to back through a window of fixed size, so that memory never follows a length in the file.

use std::io;
use std::ops::Range;

use super::Bytes;
use super::error::FormatError;

/// Large enough to take most headers in one read, small enough to be nothing beside a model.
const WINDOW: u64 = 256 << 10;

/// The byte order of the numbers in a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ByteOrder {
    Little,
    Big,
}

pub(super) struct Cursor<'a> {
    source: &'a dyn Bytes,
    format: &'static str,
    order: ByteOrder,
    window: Vec<u8>,
    /// Where the window's unread part starts, as an index into it and as an offset in the file.
    next: usize,
    position: u64,
    end: u64,
}

impl<'a> Cursor<'a> {
    /// `range` is clipped to the file.
    pub fn new(source: &'a dyn Bytes, range: Range<u64>, format: &'static str) -> Self {
        let end = range.end.min(source.size());
        let position = range.start.min(end);
        Cursor { source, format, order: ByteOrder::Little, window: Vec::new(), next: 0, position, end }
    }

    pub fn set_order(&mut self, order: ByteOrder) {
        self.order = order;
    }

    /// The offset in the file of the next byte.
    pub fn position(&self) -> u64 {
        self.position
    }

    pub fn remaining(&self) -> u64 {
        self.end - self.position
    }

    /// Refuses to go on where fewer than `length` bytes are left; `place` says what they would have been.
    pub fn require(&self, length: u64, place: &'static str) -> Result<(), FormatError> {
        if length > self.remaining() {
            return Err(FormatError::CutShort { format: self.format, place });
        }
        Ok(())
    }

    pub fn skip(&mut self, length: u64, place: &'static str) -> Result<(), FormatError> {
        self.require(length, place)?;
        self.advance(length);
        Ok(())
    }

    pub fn array<const N: usize>(&mut self, place: &'static str) -> Result<[u8; N], FormatError> {
        self.require(N as u64, place)?;
        let mut bytes = [0; N];
        let mut filled = 0;
        while filled < N {
            let got = self.take_into(&mut bytes[filled..])?;
            filled += got;
        }
        Ok(bytes)
    }

    pub fn u32(&mut self, place: &'static str) -> Result<u32, FormatError> {
        let bytes = self.array(place)?;
        Ok(if self.order == ByteOrder::Little { u32::from_le_bytes(bytes) } else { u32::from_be_bytes(bytes) })
    }

    pub fn u64(&mut self, place: &'static str) -> Result<u64, FormatError> {
        let bytes = self.array(place)?;
        Ok(if self.order == ByteOrder::Little { u64::from_le_bytes(bytes) } else { u64::from_be_bytes(bytes) })
    }

    /// `length` bytes, of which the file is known to have as many before memory is taken for them.
    pub fn byte_vec(&mut self, length: u64, limit: u64, place: &'static str) -> Result<Vec<u8>, FormatError> {
        self.require(length, place)?;
        if length > limit {
            return Err(FormatError::malformed(self.format, format!("{place} of {length} bytes, at most {limit}")));
        }
        let mut bytes = vec![0; length as usize];
        let mut filled = 0;
        while filled < bytes.len() {
            filled += self.take_into(&mut bytes[filled..])?;
        }
        Ok(bytes)
    }

    fn advance(&mut self, length: u64) {
        self.position += length;
        self.next = usize::try_from(length).map_or(self.window.len(), |n| self.next.saturating_add(n));
    }

    /// At least one byte, unless `buf` is empty or nothing is left.
    fn take_into(&mut self, buf: &mut [u8]) -> Result<usize, FormatError> {
        if self.next >= self.window.len() {
            let length = self.remaining().min(WINDOW);
            self.window.resize(length as usize, 0);
            self.next = 0;
            let read = super::error::read_exact_at(self.source, &mut self.window, self.position);
            if let Err(error) = read {
                self.window.clear();
                return Err(error);
            }
        }
        let unread = &self.window[self.next..];
        let length = unread.len().min(buf.len());
        buf[..length].copy_from_slice(&unread[..length]);
        self.advance(length as u64);
        Ok(length)
    }
}

impl io::Read for Cursor<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.take_into(buf).map_err(|error| match error {
            FormatError::Read { source, .. } => source,
            other => io::Error::other(other),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    #[test]
    fn what_is_read_and_skipped_across_windows_is_what_is_there() {
        let data: Vec<u8> = (0..3 * WINDOW + 5).map(|i| (i % 251) as u8).collect();
        let source = data.as_slice();
        let mut cursor = Cursor::new(&source, 0..u64::MAX, "test");
        cursor.skip(WINDOW - 3, "a gap").unwrap();
        assert_eq!(cursor.u64("a number").unwrap().to_le_bytes(), data[WINDOW as usize - 3..][..8]);
        cursor.skip(2 * WINDOW - 8, "a gap over two windows").unwrap();
        assert_eq!(cursor.byte_vec(4, 9, "four bytes").unwrap(), data[3 * WINDOW as usize - 3..][..4]);
        let mut rest = Vec::new();
        cursor.read_to_end(&mut rest).unwrap();
        assert_eq!(rest, data[3 * WINDOW as usize + 1..]);
        assert!(matches!(cursor.skip(1, "more"), Err(FormatError::CutShort { place: "more", .. })));
    }

    #[test]
    fn numbers_follow_the_byte_order() {
        let source: &[u8] = &[0, 0, 0, 3, 3, 0, 0, 0];
        let mut cursor = Cursor::new(&source, 0..8, "test");
        cursor.set_order(ByteOrder::Big);
        assert_eq!(cursor.u32("three").unwrap(), 3);
        cursor.set_order(ByteOrder::Little);
        assert_eq!(cursor.u32("three").unwrap(), 3);
    }
}
