//! GGUF, versions 2 and 3, of either byte order. <https://github.com/ggml-org/ggml/blob/master/docs/gguf.md>

use std::collections::HashMap;
use std::sync::Arc;

use super::cursor::{ByteOrder, Cursor};
use super::error::{FormatError, TensorFault};
use super::map::{Format, Tensor, TensorMap};
use super::{Bytes, MAX_HEADER, MAX_NAME, MAX_TENSORS, ggml};

pub(super) const MAGIC: &[u8] = b"GGUF";

const NAME: &str = "GGUF";
const ALIGNMENT_KEY: &[u8] = b"general.alignment";
const DEFAULT_ALIGNMENT: u64 = 32;
/// ggml itself stops at four dimensions.
const MAX_DIMENSIONS: u32 = 8;
/// Arrays within arrays; the files of today have none.
const MAX_DEPTH: u32 = 4;
/// The least that one entry can take, in bytes: key length, type and value; name length, dimensions, type and offset.
const SMALLEST_PAIR: u64 = 8 + 4 + 1;
const SMALLEST_TENSOR: u64 = 8 + 4 + 4 + 8;

const TYPE_U32: u32 = 4;
const TYPE_STRING: u32 = 8;
const TYPE_ARRAY: u32 = 9;

/// A tensor as its header entry gives it.
struct Entry {
    name: Box<str>,
    shape: Box<[u64]>,
    kind: u32,
    /// From the start of the data.
    offset: u64,
    /// Unknown for a type that is not in the table.
    length: Option<u64>,
}

pub(super) fn read(source: &dyn Bytes) -> Result<TensorMap, FormatError> {
    let size = source.size();
    read_within(&mut Cursor::new(source, 0..MAX_HEADER, NAME), size).map_err(|error| match error {
        // The cursor ends at the limit or at the end of the file, whichever comes first.
        FormatError::CutShort { .. } if size > MAX_HEADER => {
            FormatError::TooLarge { format: NAME, limit: MAX_HEADER, unit: "bytes" }
        }
        other => other,
    })
}

fn read_within(cursor: &mut Cursor<'_>, size: u64) -> Result<TensorMap, FormatError> {
    cursor.skip(MAGIC.len() as u64, "its magic number")?;
    let version = cursor.array("its version")?;
    let version = match (u32::from_le_bytes(version), u32::from_be_bytes(version)) {
        (version, _) if version & 0xffff != 0 => version,
        (_, swapped) => {
            cursor.set_order(ByteOrder::Big);
            swapped
        }
    };
    if !(2..=3).contains(&version) {
        return Err(FormatError::malformed(NAME, format!("its version is {version}, and 2 and 3 are known")));
    }
    let tensor_count = cursor.u64("its counts")?;
    let pair_count = cursor.u64("its counts")?;
    cursor.require(pair_count.saturating_mul(SMALLEST_PAIR), "its metadata")?;
    cursor.require(tensor_count.saturating_mul(SMALLEST_TENSOR), "its tensor list")?;
    if tensor_count > MAX_TENSORS as u64 {
        return Err(FormatError::TooLarge { format: NAME, limit: MAX_TENSORS as u64, unit: "tensors" });
    }

    let mut alignment = None;
    for _ in 0..pair_count {
        if let Some(value) = read_pair(cursor)? {
            let value = u64::from(value);
            if alignment.replace(value).is_some() || !value.is_power_of_two() {
                return Err(FormatError::malformed(NAME, "its alignment is given twice or is no power of two"));
            }
        }
    }
    let mut entries = Vec::new();
    for _ in 0..tensor_count {
        entries.push(read_entry(cursor)?);
    }
    let data_start = cursor.position().next_multiple_of(alignment.unwrap_or(DEFAULT_ALIGNMENT)).min(size);
    TensorMap::new(Format::Gguf, size, 0..data_start, place(entries, data_start, size)?)
}

/// Passes over one key and its value. The answer is the alignment, if the key is that.
fn read_pair(cursor: &mut Cursor<'_>) -> Result<Option<u32>, FormatError> {
    const PLACE: &str = "its metadata";
    let length = cursor.u64(PLACE)?;
    let is_alignment = if length == ALIGNMENT_KEY.len() as u64 {
        cursor.byte_vec(length, length, PLACE)? == ALIGNMENT_KEY
    } else {
        cursor.skip(length, PLACE)?;
        false
    };
    let kind = cursor.u32(PLACE)?;
    if !is_alignment {
        return skip_value(cursor, kind, MAX_DEPTH).map(|()| None);
    }
    if kind != TYPE_U32 {
        return Err(FormatError::malformed(NAME, "its alignment is not a 32 bit number"));
    }
    cursor.u32(PLACE).map(Some)
}

fn skip_value(cursor: &mut Cursor<'_>, kind: u32, depth: u32) -> Result<(), FormatError> {
    const PLACE: &str = "a metadata value";
    if let Some(width) = width(kind) {
        return cursor.skip(width, PLACE);
    }
    match kind {
        TYPE_STRING => {
            let length = cursor.u64(PLACE)?;
            cursor.skip(length, PLACE)
        }
        TYPE_ARRAY => {
            let item = cursor.u32(PLACE)?;
            let count = cursor.u64(PLACE)?;
            if let Some(width) = width(item) {
                return cursor.skip(count.saturating_mul(width), PLACE);
            }
            if depth == 0 {
                return Err(FormatError::malformed(NAME, "its arrays are nested too deep"));
            }
            // Every item takes bytes, so that a count that lies runs into the end soon.
            cursor.require(count.saturating_mul(8), PLACE)?;
            (0..count).try_for_each(|_| skip_value(cursor, item, depth - 1))
        }
        other => Err(FormatError::malformed(NAME, format!("metadata type {other} is not known"))),
    }
}

/// Bytes of a metadata value of fixed size.
fn width(kind: u32) -> Option<u64> {
    match kind {
        0 | 1 | 7 => Some(1),
        2 | 3 => Some(2),
        TYPE_U32 | 5 | 6 => Some(4),
        10..=12 => Some(8),
        _ => None,
    }
}

fn read_entry(cursor: &mut Cursor<'_>) -> Result<Entry, FormatError> {
    const PLACE: &str = "its tensor list";
    let length = cursor.u64(PLACE)?;
    let name = String::from_utf8(cursor.byte_vec(length, MAX_NAME, "a tensor name")?)
        .map_err(|_| FormatError::malformed(NAME, "a tensor name is not UTF-8"))?
        .into_boxed_str();
    let fault = |fault| FormatError::tensor(NAME, &name, fault);
    let dimensions = cursor.u32(PLACE)?;
    if dimensions > MAX_DIMENSIONS {
        return Err(fault(TensorFault::BadShape));
    }
    let shape = (0..dimensions).map(|_| cursor.u64(PLACE)).collect::<Result<Box<[u64]>, _>>()?;
    let kind = cursor.u32(PLACE)?;
    let offset = cursor.u64(PLACE)?;
    let length = match ggml::by_id(kind) {
        None => None,
        Some(known) => {
            let row = shape.first().copied().unwrap_or(1);
            if row % known.block != 0 {
                return Err(fault(TensorFault::BadShape));
            }
            let blocks = shape.iter().skip(1).try_fold(row / known.block, |total, n| total.checked_mul(*n));
            let length = blocks.and_then(|blocks| blocks.checked_mul(known.bytes));
            Some(length.ok_or_else(|| fault(TensorFault::Overflow))?)
        }
    };
    Ok(Entry { name, shape, kind, offset, length })
}

/// A tensor of unknown length reaches to where the next one starts, or to the end of the file.
fn place(mut entries: Vec<Entry>, data_start: u64, size: u64) -> Result<Vec<Tensor>, FormatError> {
    entries.sort_by_key(|entry| entry.offset);
    let mut dtypes = HashMap::<u32, Arc<str>>::new();
    let mut tensors = Vec::with_capacity(entries.len());
    let mut next = size;
    for entry in entries.into_iter().rev() {
        let overflow = || FormatError::tensor(NAME, &entry.name, TensorFault::Overflow);
        let start = data_start.checked_add(entry.offset).ok_or_else(overflow)?;
        let end = match entry.length {
            Some(length) => start.checked_add(length).ok_or_else(overflow)?,
            None => next,
        };
        next = start;
        let dtype = dtypes.entry(entry.kind).or_insert_with(|| match ggml::by_id(entry.kind) {
            Some(known) => known.name.into(),
            None => format!("type {}", entry.kind).into(),
        });
        tensors.push(Tensor { name: entry.name, dtype: dtype.clone(), shape: entry.shape, bytes: start..end });
    }
    Ok(tensors)
}
