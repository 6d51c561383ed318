//! Model file formats: header bytes in, a [`TensorMap`] out. Pure: the file is seen only through [`Bytes`].
//!
//! Headers come from strangers. Every length is checked against the file before it is believed, memory grows only as
//! bytes are really read, arithmetic is checked, nesting is limited, and nothing panics. A parser answers one of three
//! things: a map whose tensors lie in the file and do not overlap, `Opaque` for what is none of the known formats, or a
//! [`FormatError`] for a file that claims to be one and is not. The last is no reason to refuse the file to its
//! readers: [`TensorMap::opaque`] describes any file well enough to serve it.

use std::io;

mod component;
mod cursor;
mod error;
#[cfg(test)]
mod fixtures;
mod ggml;
mod gguf;
mod map;
mod safetensors;
mod shard_index;
#[cfg(test)]
mod tests;
mod torch_zip;

pub use component::{Component, component};
pub use error::{FormatError, TensorFault};
pub use map::{Format, OPAQUE_MINIMUM, Tensor, TensorMap};
pub use shard_index::{ShardIndex, is_shard_index_name, read_shard_index};

/// The longest header that is read, in bytes: the limit of the safetensors library, taken for every format.
pub const MAX_HEADER: u64 = 100_000_000;

/// The most tensors that one header may name. The largest mixture-of-experts models have about 200,000 over all shards.
pub const MAX_TENSORS: usize = 1 << 19;

/// The longest tensor name, in bytes, and the most dimensions of a tensor.
const MAX_NAME: u64 = 64 << 10;
const MAX_DIMENSIONS: usize = 64;

/// How a parser sees a file.
pub trait Bytes {
    /// The size of the file in bytes.
    fn size(&self) -> u64;

    /// Fills `buf` from `offset`. Parsers never ask for bytes beyond [`Bytes::size`].
    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()>;
}

impl Bytes for &[u8] {
    fn size(&self) -> u64 {
        self.len() as u64
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        let start = usize::try_from(offset).map_err(|_| io::ErrorKind::UnexpectedEof)?;
        let bytes = self.get(start..).and_then(|rest| rest.get(..buf.len())).ok_or(io::ErrorKind::UnexpectedEof)?;
        buf.copy_from_slice(bytes);
        Ok(())
    }
}

/// Finds out what a file is, by its content and not by its name, and where its tensors lie.
pub fn read(source: &dyn Bytes) -> Result<TensorMap, FormatError> {
    let size = source.size();
    let mut start = [0u8; 9];
    if size < start.len() as u64 {
        return Ok(TensorMap::opaque(size));
    }
    error::read_exact_at(source, &mut start, 0)?;
    if start.starts_with(gguf::MAGIC) {
        gguf::read(source)
    } else if start.starts_with(torch_zip::MAGIC) {
        torch_zip::read(source)
    } else if let Some(header_length) = safetensors::header_length(&start) {
        safetensors::read(source, header_length)
    } else {
        Ok(TensorMap::opaque(size))
    }
}
