//! PyTorch checkpoints of the zip kind (`torch.save` since 1.6): where each storage, `NAME/data/N`, lies.
//! <https://pytorch.org/docs/stable/notes/serialization.html>, and PKWARE's APPNOTE.TXT for the zip.
//!
//! The pickle that names tensors and types is not read: storages are what is read from the file.

use std::ops::Range;
use std::sync::Arc;

use super::cursor::Cursor;
use super::error::{FormatError, TensorFault, read_exact_at};
use super::map::{Format, Tensor, TensorMap};
use super::{Bytes, MAX_HEADER, MAX_TENSORS};

/// The signature of a local file header.
pub(super) const MAGIC: &[u8] = b"PK\x03\x04";

const NAME: &str = "PyTorch zip";
const CENTRAL_ENTRY: [u8; 4] = *b"PK\x01\x02";
const END: &[u8] = b"PK\x05\x06";
const END_64: &[u8] = b"PK\x06\x06";
const LOCATOR_64: &[u8] = b"PK\x06\x07";

const LOCAL_HEADER_SIZE: u64 = 30;
const CENTRAL_ENTRY_SIZE: u64 = 46;
const END_SIZE: u64 = 22;
const END_64_SIZE: u64 = 56;
const LOCATOR_64_SIZE: u64 = 20;
const MAX_COMMENT: u64 = u16::MAX as u64;

const STORED: u16 = 0;
const EXTRA_64: u16 = 1;

/// The central directory: how many entries, and where.
struct Directory {
    entries: u64,
    bytes: Range<u64>,
}

/// An entry of the central directory.
struct Entry {
    name: Vec<u8>,
    method: u16,
    compressed: u64,
    uncompressed: u64,
    local_header: u64,
}

/// A zip without a PyTorch pickle in it is opaque.
pub(super) fn read(source: &dyn Bytes) -> Result<TensorMap, FormatError> {
    let size = source.size();
    let directory = find_directory(source)?;
    let dtype: Arc<str> = "bytes".into();
    let mut cursor = Cursor::new(source, directory.bytes.clone(), NAME);
    let mut tensors = Vec::new();
    let mut has_pickle = false;
    for _ in 0..directory.entries {
        let entry = read_entry(&mut cursor)?;
        has_pickle |= is_pickle(&entry.name);
        let Some(name) = storage_name(&entry.name) else { continue };
        if entry.method != STORED {
            // Compressed by another tool: no range of the file holds this storage's bytes.
            continue;
        }
        if tensors.len() == MAX_TENSORS {
            return Err(FormatError::TooLarge { format: NAME, limit: MAX_TENSORS as u64, unit: "storages" });
        }
        let bytes = data_range(source, &entry, name, directory.bytes.start)?;
        tensors.push(Tensor { name: name.into(), dtype: dtype.clone(), shape: [entry.compressed].into(), bytes });
    }
    if !has_pickle {
        return Ok(TensorMap::opaque(size));
    }
    TensorMap::new(Format::TorchZip, size, directory.bytes.start..size, tensors)
}

fn is_pickle(name: &[u8]) -> bool {
    name.strip_suffix(b"/data.pkl").is_some_and(|root| !root.is_empty() && !root.contains(&b'/'))
}

/// The name of a storage, if the entry is one: `NAME/data/N`.
fn storage_name(name: &[u8]) -> Option<&str> {
    let name = str::from_utf8(name).ok()?;
    let (root, rest) = name.split_once('/')?;
    let number = rest.strip_prefix("data/")?;
    let is_number = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
    (!root.is_empty() && is_number).then_some(name)
}

/// Where the entry's bytes lie. The local header's own lengths count: its padding differs from the directory's.
fn data_range(source: &dyn Bytes, entry: &Entry, name: &str, limit: u64) -> Result<Range<u64>, FormatError> {
    let fault = |fault| FormatError::tensor(NAME, name, fault);
    if entry.compressed != entry.uncompressed {
        return Err(fault(TensorFault::WrongSize { bytes: entry.compressed, needed: entry.uncompressed }));
    }
    let missing = || fault(TensorFault::NoLocalHeader(entry.local_header));
    let header_end = entry.local_header.checked_add(LOCAL_HEADER_SIZE).filter(|end| *end <= limit);
    let header_end = header_end.ok_or_else(missing)?;
    let mut header = [0; LOCAL_HEADER_SIZE as usize];
    read_exact_at(source, &mut header, entry.local_header)?;
    if !header.starts_with(MAGIC) {
        return Err(missing());
    }
    let start = header_end + u64::from(u16_at(&header, 26)) + u64::from(u16_at(&header, 28));
    let end = start.checked_add(entry.compressed).ok_or_else(|| fault(TensorFault::Overflow))?;
    Ok(start..end)
}

fn find_directory(source: &dyn Bytes) -> Result<Directory, FormatError> {
    let size = source.size();
    let cut_short = FormatError::CutShort { format: NAME, place: "a member, without a central directory" };
    let tail_start = size.saturating_sub(END_SIZE + MAX_COMMENT);
    let mut tail = vec![0; (size - tail_start) as usize];
    read_exact_at(source, &mut tail, tail_start)?;
    // The last record whose comment reaches exactly to the end of the file.
    let Some(at) = (0..=tail.len().saturating_sub(END_SIZE as usize)).rev().find(|at| {
        let record = &tail[*at..];
        record.starts_with(END) && record.len() as u64 == END_SIZE + u64::from(u16_at(record, 20))
    }) else {
        return Err(cut_short);
    };
    let end_at = tail_start + at as u64;
    let record = &tail[at..];
    let mut entries = u64::from(u16_at(record, 10));
    let mut length = u64::from(u32_at(record, 12));
    let mut start = u64::from(u32_at(record, 16));
    let mut limit = end_at;
    if let Some((end_64_at, end_64)) = find_end_64(source, end_at)? {
        entries = u64_at(&end_64, 32);
        length = u64_at(&end_64, 40);
        start = u64_at(&end_64, 48);
        limit = end_64_at;
    }
    if start.checked_add(length).is_none_or(|end| end > limit) {
        return Err(FormatError::malformed(NAME, "its central directory lies outside of the file"));
    }
    if length > MAX_HEADER {
        return Err(FormatError::TooLarge { format: NAME, limit: MAX_HEADER, unit: "bytes" });
    }
    if entries > length / CENTRAL_ENTRY_SIZE {
        return Err(FormatError::malformed(NAME, "its central directory is too short for its entries"));
    }
    Ok(Directory { entries, bytes: start..start + length })
}

/// The 64 bit end record and its offset, where a locator before the end record points to one.
fn find_end_64(source: &dyn Bytes, end_at: u64) -> Result<Option<(u64, [u8; END_64_SIZE as usize])>, FormatError> {
    let Some(locator_at) = end_at.checked_sub(LOCATOR_64_SIZE) else { return Ok(None) };
    let mut locator = [0; LOCATOR_64_SIZE as usize];
    read_exact_at(source, &mut locator, locator_at)?;
    if !locator.starts_with(LOCATOR_64) {
        return Ok(None);
    }
    let damaged = || FormatError::malformed(NAME, "its 64 bit end record is missing");
    let at = u64_at(&locator, 8);
    at.checked_add(END_64_SIZE).filter(|end| *end <= locator_at).ok_or_else(damaged)?;
    let mut record = [0; END_64_SIZE as usize];
    read_exact_at(source, &mut record, at)?;
    if record.starts_with(END_64) { Ok(Some((at, record))) } else { Err(damaged()) }
}

fn read_entry(cursor: &mut Cursor<'_>) -> Result<Entry, FormatError> {
    const PLACE: &str = "its central directory";
    let fixed = cursor.array::<{ CENTRAL_ENTRY_SIZE as usize }>(PLACE)?;
    if !fixed.starts_with(&CENTRAL_ENTRY) {
        return Err(FormatError::malformed(NAME, "its central directory has an entry without a signature"));
    }
    let length = |at| u64::from(u16_at(&fixed, at));
    let name = cursor.byte_vec(length(28), u64::from(u16::MAX), PLACE)?;
    let extra = cursor.byte_vec(length(30), u64::from(u16::MAX), PLACE)?;
    cursor.skip(length(32), PLACE)?;
    let mut entry = Entry {
        name,
        method: u16_at(&fixed, 10),
        compressed: u64::from(u32_at(&fixed, 20)),
        uncompressed: u64::from(u32_at(&fixed, 24)),
        local_header: u64::from(u32_at(&fixed, 42)),
    };
    // The extra field holds those values that did not fit, in this order.
    let mut wide = field_64(&extra).chunks_exact(8).map(|bytes| u64_at(bytes, 0));
    for value in [&mut entry.uncompressed, &mut entry.compressed, &mut entry.local_header] {
        if *value == u64::from(u32::MAX) {
            *value = wide.next().ok_or_else(|| FormatError::malformed(NAME, "a 64 bit size is missing"))?;
        }
    }
    Ok(entry)
}

/// The body of the 64 bit field among the extra fields, empty if there is none.
fn field_64(mut extra: &[u8]) -> &[u8] {
    while extra.len() >= 4 {
        let (head, rest) = extra.split_at(4);
        let body = usize::from(u16_at(head, 2)).min(rest.len());
        if u16_at(head, 0) == EXTRA_64 {
            return &rest[..body];
        }
        extra = &rest[body..];
    }
    &[]
}

// Zip numbers are little-endian. The callers index into records whose length they have checked.

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from(u16_at(bytes, at)) | u32::from(u16_at(bytes, at + 2)) << 16
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | u64::from(u32_at(bytes, at + 4)) << 32
}
