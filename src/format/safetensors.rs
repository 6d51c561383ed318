//! safetensors: eight bytes of header length, a JSON header, then the tensors.
//! <https://github.com/huggingface/safetensors#format>
//!
//! Somewhat more lenient than the reference library, which also refuses gaps, bytes after the last tensor and types that
//! it does not know: none of these can mislead a cache.

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;

use serde::Deserialize;
use serde::de::{self, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::cursor::Cursor;
use super::error::{FormatError, TensorFault};
use super::map::{Format, Tensor, TensorMap};
use super::{Bytes, MAX_DIMENSIONS, MAX_HEADER, MAX_NAME, MAX_TENSORS};

const NAME: &str = "safetensors";
const PREFIX: u64 = 8;

/// Bits per element.
const DTYPES: [(&str, u64); 22] = [
    ("BOOL", 8),
    ("F4", 4),
    ("F6_E2M3", 6),
    ("F6_E3M2", 6),
    ("U8", 8),
    ("I8", 8),
    ("F8_E5M2", 8),
    ("F8_E4M3", 8),
    ("F8_E8M0", 8),
    ("F8_E4M3FNUZ", 8),
    ("F8_E5M2FNUZ", 8),
    ("I16", 16),
    ("U16", 16),
    ("F16", 16),
    ("BF16", 16),
    ("I32", 32),
    ("U32", 32),
    ("F32", 32),
    ("C64", 64),
    ("F64", 64),
    ("I64", 64),
    ("U64", 64),
];

/// The header's length in bytes, if a file that starts like this can be a safetensors file.
pub(super) fn header_length(start: &[u8; 9]) -> Option<u64> {
    let [length @ .., first] = start;
    let length = u64::from_le_bytes(*length);
    (*first == b'{' && (2..=MAX_HEADER).contains(&length)).then_some(length)
}

pub(super) fn read(source: &dyn Bytes, header_length: u64) -> Result<TensorMap, FormatError> {
    let size = source.size();
    let data_start = PREFIX + header_length;
    if data_start > size {
        return Err(FormatError::CutShort { format: NAME, place: "its header" });
    }
    let cursor = Cursor::new(source, PREFIX..data_start, NAME);
    let mut json = serde_json::Deserializer::from_reader(cursor);
    let Header(entries) =
        Header::deserialize(&mut json).and_then(|header| json.end().map(|()| header)).map_err(|error| {
            match error.io_error_kind() {
                Some(kind) => FormatError::Read { offset: PREFIX, length: header_length, source: kind.into() },
                None => FormatError::malformed(NAME, error.to_string()),
            }
        })?;
    let mut dtypes = HashSet::<Arc<str>>::new();
    let mut tensors = Vec::with_capacity(entries.len());
    for (name, info) in entries {
        tensors.push(place(name, info, data_start, size, &mut dtypes)?);
    }
    TensorMap::new(Format::Safetensors, size, 0..data_start, tensors)
}

fn place(
    name: Box<str>,
    info: Info,
    data_start: u64,
    size: u64,
    dtypes: &mut HashSet<Arc<str>>,
) -> Result<Tensor, FormatError> {
    let fault = |fault| FormatError::tensor(NAME, &name, fault);
    let (start, end) = info.data_offsets;
    let absolute = |offset: u64| offset.checked_add(data_start).ok_or_else(|| fault(TensorFault::Overflow));
    let bytes = absolute(start)?..absolute(end)?;
    if start > end {
        return Err(fault(TensorFault::OutOfFile { start: bytes.start, end: bytes.end, size }));
    }
    if let Some((_, bits)) = DTYPES.iter().find(|(dtype, _)| *dtype == info.dtype) {
        let total = info.shape.0.iter().try_fold(*bits, |total, dimension| total.checked_mul(*dimension));
        let total = total.ok_or_else(|| fault(TensorFault::Overflow))?;
        if total % 8 != 0 {
            return Err(fault(TensorFault::BadShape));
        }
        if total / 8 != end - start {
            return Err(fault(TensorFault::WrongSize { bytes: end - start, needed: total / 8 }));
        }
    }
    let dtype = match dtypes.get(info.dtype.as_str()) {
        Some(known) => known.clone(),
        None => {
            let new: Arc<str> = info.dtype.into();
            dtypes.insert(new.clone());
            new
        }
    };
    Ok(Tensor { name, dtype, shape: info.shape.0.into(), bytes })
}

struct Header(Vec<(Box<str>, Info)>);

#[derive(Deserialize)]
struct Info {
    dtype: String,
    shape: Shape,
    data_offsets: (u64, u64),
}

struct Shape(Vec<u64>);

impl<'de> Deserialize<'de> for Header {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct HeaderVisitor;

        impl<'de> Visitor<'de> for HeaderVisitor {
            type Value = Header;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of tensors")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Header, A::Error> {
                let mut entries = Vec::new();
                while let Some(name) = map.next_key::<Box<str>>()? {
                    if &*name == "__metadata__" {
                        map.next_value::<IgnoredAny>()?;
                        continue;
                    }
                    if name.len() as u64 > MAX_NAME {
                        return Err(de::Error::custom(format_args!("a name of more than {MAX_NAME} bytes")));
                    }
                    if entries.len() == MAX_TENSORS {
                        return Err(de::Error::custom(format_args!("more than {MAX_TENSORS} tensors")));
                    }
                    entries.push((name, map.next_value()?));
                }
                Ok(Header(entries))
            }
        }
        deserializer.deserialize_map(HeaderVisitor)
    }
}

impl<'de> Deserialize<'de> for Shape {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ShapeVisitor;

        impl<'de> Visitor<'de> for ShapeVisitor {
            type Value = Shape;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of dimensions")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Shape, A::Error> {
                let mut shape = Vec::new();
                while let Some(dimension) = items.next_element()? {
                    if shape.len() == MAX_DIMENSIONS {
                        return Err(de::Error::custom(format_args!("more than {MAX_DIMENSIONS} dimensions")));
                    }
                    shape.push(dimension);
                }
                Ok(Shape(shape))
            }
        }
        deserializer.deserialize_seq(ShapeVisitor)
    }
}
