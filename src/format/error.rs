//! What can be wrong with a header.

use std::io;

use super::Bytes;

/// Why no tensors could be made out. The file can still be served as one piece.
#[derive(Debug, thiserror::Error)]
pub enum FormatError {
    #[error("cannot read {length} bytes at offset {offset}: {source}")]
    Read { offset: u64, length: u64, source: io::Error },
    #[error("the {format} file ends in {place}: it is cut short, fetch it again")]
    CutShort { format: &'static str, place: &'static str },
    #[error("the {format} header has more than {limit} {unit}, which no real model has: do not trust this file")]
    TooLarge { format: &'static str, limit: u64, unit: &'static str },
    #[error("the {format} header is damaged: {reason}; fetch the file again")]
    Malformed { format: &'static str, reason: String },
    #[error("the {format} header is damaged: tensor '{name}' {fault}; fetch the file again")]
    Tensor { format: &'static str, name: Box<str>, fault: TensorFault },
}

/// What is wrong with one tensor. Sizes and offsets are in bytes, offsets absolute.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TensorFault {
    #[error("lies at {start}..{end}, and the file has {size} bytes")]
    OutOfFile { start: u64, end: u64, size: u64 },
    #[error("lies within the header")]
    InHeader,
    #[error("overlaps tensor '{0}'")]
    Overlaps(Box<str>),
    #[error("is named twice")]
    NamedTwice,
    #[error("has {bytes} bytes, and its type and shape need {needed}")]
    WrongSize { bytes: u64, needed: u64 },
    #[error("has a shape that its type cannot have")]
    BadShape,
    #[error("has a size or an offset beyond 64 bits")]
    Overflow,
    #[error("has a shard file name that is not a plain name")]
    BadFileName,
    #[error("has no local file header at offset {0}")]
    NoLocalHeader(u64),
}

impl FormatError {
    pub(super) fn tensor(format: &'static str, name: &str, fault: TensorFault) -> Self {
        FormatError::Tensor { format, name: shown(name), fault }
    }

    pub(super) fn malformed(format: &'static str, reason: impl Into<String>) -> Self {
        FormatError::Malformed { format, reason: reason.into() }
    }
}

/// A name out of a header as it may be shown: on one line, and not longer than a line.
pub(super) fn shown(name: &str) -> Box<str> {
    name.chars().take(160).flat_map(char::escape_debug).collect::<String>().into()
}

pub(super) fn read_exact_at(source: &dyn Bytes, buf: &mut [u8], offset: u64) -> Result<(), FormatError> {
    source.read_exact_at(buf, offset).map_err(|source| FormatError::Read { offset, length: buf.len() as u64, source })
}
