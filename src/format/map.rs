//! Where the tensors of a file lie.

use std::collections::HashSet;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use super::error::{FormatError, TensorFault, shown};

/// Files of no known format are worth keeping from this size on, in bytes.
pub const OPAQUE_MINIMUM: u64 = 1 << 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Format {
    Safetensors,
    Gguf,
    /// A PyTorch checkpoint of the zip kind; its tensors are the storages, named as in the archive.
    TorchZip,
    /// None of these: one unnamed tensor.
    Opaque,
}

/// A named piece of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tensor {
    pub name: Box<str>,
    /// As the format spells it; `bytes` where the header does not say. Tensors of one map share it.
    pub dtype: Arc<str>,
    /// In the order of the header, so GGUF shapes start with the innermost dimension.
    pub shape: Box<[u64]>,
    /// Absolute file offsets.
    pub bytes: Range<u64>,
}

/// The tensors of a file, in file order. They lie within the file and outside of the header, and do not overlap;
/// between them there may be gaps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorMap {
    format: Format,
    size: u64,
    header: Range<u64>,
    tensors: Box<[Tensor]>,
    data_bytes: u64,
}

impl Format {
    pub fn name(self) -> &'static str {
        match self {
            Format::Safetensors => "safetensors",
            Format::Gguf => "GGUF",
            Format::TorchZip => "PyTorch zip",
            Format::Opaque => "opaque",
        }
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl TensorMap {
    /// A file as one unnamed tensor. Files under [`OPAQUE_MINIMUM`] get none: they are not worth keeping.
    pub fn opaque(size: u64) -> Self {
        let whole = Tensor { name: "".into(), dtype: "bytes".into(), shape: [size].into(), bytes: 0..size };
        let tensors: Box<[Tensor]> = if size >= OPAQUE_MINIMUM { [whole].into() } else { [].into() };
        let data_bytes = if tensors.is_empty() { 0 } else { size };
        TensorMap { format: Format::Opaque, size, header: 0..0, tensors, data_bytes }
    }

    /// Sorts the tensors and holds them to what a map promises. The error names the tensor at fault.
    pub(super) fn new(
        format: Format,
        size: u64,
        header: Range<u64>,
        mut tensors: Vec<Tensor>,
    ) -> Result<Self, FormatError> {
        let fault = |tensor: &Tensor, fault| Err(FormatError::tensor(format.name(), &tensor.name, fault));
        // An empty tensor sorts before the one that starts where it lies, so that ends rise too.
        tensors.sort_unstable_by_key(|tensor| (tensor.bytes.start, tensor.bytes.end));
        let mut names = HashSet::with_capacity(tensors.len());
        let mut data_bytes = 0u64;
        for (index, tensor) in tensors.iter().enumerate() {
            let Range { start, end } = tensor.bytes;
            if start > end || end > size {
                return fault(tensor, TensorFault::OutOfFile { start, end, size });
            }
            if start < header.end && header.start < end {
                return fault(tensor, TensorFault::InHeader);
            }
            if let Some(previous) = index.checked_sub(1).map(|previous| &tensors[previous])
                && previous.bytes.end > start
            {
                return fault(tensor, TensorFault::Overlaps(shown(&previous.name)));
            }
            if !names.insert(&*tensor.name) {
                return fault(tensor, TensorFault::NamedTwice);
            }
            data_bytes += end - start;
        }
        drop(names);
        Ok(TensorMap { format, size, header, tensors: tensors.into(), data_bytes })
    }

    pub fn format(&self) -> Format {
        self.format
    }

    /// The size of the file in bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// What a reader takes first, as a range of the file: at its front, or at its end for a zip. Empty if opaque.
    pub fn header(&self) -> Range<u64> {
        self.header.clone()
    }

    pub fn tensors(&self) -> &[Tensor] {
        &self.tensors
    }

    /// How many bytes of the file belong to tensors.
    pub fn data_bytes(&self) -> u64 {
        self.data_bytes
    }

    /// The index of the tensor that the byte at `offset` belongs to.
    pub fn at(&self, offset: u64) -> Option<usize> {
        let index = self.tensors.partition_point(|tensor| tensor.bytes.end <= offset);
        self.tensors.get(index).filter(|tensor| tensor.bytes.start <= offset).map(|_| index)
    }

    /// The indices of the tensors that have bytes within `bytes`, and of empty ones between them.
    pub fn within(&self, bytes: &Range<u64>) -> Range<usize> {
        if bytes.start >= bytes.end {
            return 0..0;
        }
        let first = self.tensors.partition_point(|tensor| tensor.bytes.end <= bytes.start);
        let end = self.tensors.partition_point(|tensor| tensor.bytes.start < bytes.end);
        first..end.max(first)
    }

    /// About how much memory this map takes, in bytes: the weight to give it in a cache of maps.
    pub fn heap_bytes(&self) -> usize {
        // A small allocation costs its allocator 16 bytes more.
        let one = |t: &Tensor| size_of::<Tensor>() + t.name.len() + t.shape.len() * size_of::<u64>() + 32;
        size_of::<Self>() + self.tensors.iter().map(one).sum::<usize>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tensor(name: &str, bytes: Range<u64>) -> Tensor {
        Tensor { name: name.into(), dtype: "U8".into(), shape: [bytes.end.saturating_sub(bytes.start)].into(), bytes }
    }

    fn map(tensors: Vec<Tensor>) -> Result<TensorMap, FormatError> {
        TensorMap::new(Format::Gguf, 100, 0..10, tensors)
    }

    #[test]
    fn offsets_find_their_tensor() {
        let map =
            map(vec![tensor("c", 40..60), tensor("b", 20..40), tensor("e", 40..40), tensor("a", 10..15)]).unwrap();
        let names: Vec<_> = map.tensors().iter().map(|t| &*t.name).collect();
        assert_eq!(names, ["a", "b", "e", "c"]);
        let at = |offset| map.at(offset).map(|index| names[index]);
        assert_eq!([at(9), at(10), at(14), at(15)], [None, Some("a"), Some("a"), None]);
        assert_eq!([at(20), at(39), at(40), at(59), at(60)], [Some("b"), Some("b"), Some("c"), Some("c"), None]);
        assert_eq!(map.within(&(0..10)), 0..0);
        assert_eq!(map.within(&(15..20)).len(), 0);
        assert_eq!(map.within(&(14..21)), 0..2);
        assert_eq!(map.within(&(0..100)), 0..4);
        assert_eq!(map.data_bytes(), 45);
    }

    #[test]
    fn a_map_that_lies_is_refused_by_the_name_of_the_tensor() {
        let fault = |tensors| match map(tensors) {
            Err(FormatError::Tensor { name, fault, .. }) => (name.to_string(), fault),
            other => panic!("{other:?}"),
        };
        let (a, size) = ("a".to_owned(), 100);
        assert_eq!(
            fault(vec![tensor("a", 90..101)]),
            (a.clone(), TensorFault::OutOfFile { start: 90, end: 101, size })
        );
        let reversed = Range { start: 20, end: 15 };
        assert_eq!(fault(vec![tensor("a", reversed)]).0, a);
        assert_eq!(fault(vec![tensor("a", 9..12)]), (a.clone(), TensorFault::InHeader));
        assert_eq!(
            fault(vec![tensor("b", 10..20), tensor("a", 19..30)]),
            (a.clone(), TensorFault::Overlaps("b".into()))
        );
        assert_eq!(fault(vec![tensor("a", 10..20), tensor("a", 20..30)]), (a, TensorFault::NamedTwice));
    }

    #[test]
    fn opaque_files_have_one_tensor_if_they_are_worth_keeping() {
        assert!(TensorMap::opaque(OPAQUE_MINIMUM - 1).tensors().is_empty());
        let map = TensorMap::opaque(OPAQUE_MINIMUM);
        assert_eq!((map.at(0), map.at(OPAQUE_MINIMUM - 1), map.at(OPAQUE_MINIMUM)), (Some(0), Some(0), None));
        assert_eq!(map.data_bytes(), map.size());
    }
}
