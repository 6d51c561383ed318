//! What an open of a file came to.

use serde::{Deserialize, Serialize};

/// Up to so many bytes of tensor data still make a peek: quick hashes read 64 KiB somewhere, tools look at one scalar.
pub const PEEK_LIMIT: u64 = 1 << 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OpenKind {
    /// The header, and at most a little of the data.
    HeaderPeek,
    /// All of it, once, from the first byte to the last, in reads that know nothing of tensors: a hasher, a copy, a
    /// backup. Also a program that reads a file into memory whole; that it does so again is what tells it from those.
    HashScan,
    /// All or nearly all of the data, by reads.
    WholeLoadRead,
    /// The same through a mapping.
    WholeLoadMapped,
    /// Some of the data.
    Partial,
}

impl OpenKind {
    pub fn is_load(self) -> bool {
        matches!(self, OpenKind::WholeLoadRead | OpenKind::WholeLoadMapped)
    }

    /// Looks at files rather than loading them.
    pub fn is_survey(self) -> bool {
        matches!(self, OpenKind::HeaderPeek | OpenKind::HashScan)
    }
}

/// What is known of an open, while it lasts and at its end. See `OpenWatch` for how it comes about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Facts {
    /// Bytes of tensor data in the file.
    pub data_bytes: u64,
    /// Bytes of tensor data that were read, those read twice counted twice, less what came along with the header.
    pub data_read: u64,
    /// Different bytes of tensor data that were read, to within a 65,536th of the file.
    pub data_touched: u64,
    /// Reads began at the first byte and went on to the end without leaving out or going back more than a little.
    pub front_to_back: bool,
    /// All reads began at multiples of 4 KiB, or one of them ran from one tensor into the next.
    pub ignores_tensors: bool,
    /// Whether bytes were asked for through a mapping, where that can be told.
    pub mapped: Option<bool>,
}

impl Facts {
    pub fn kind(&self) -> OpenKind {
        let whole = self.data_bytes > 0 && self.data_touched >= self.data_bytes - self.data_bytes / 10;
        if !whole {
            return if self.data_read <= PEEK_LIMIT { OpenKind::HeaderPeek } else { OpenKind::Partial };
        }
        match self.mapped {
            Some(true) => OpenKind::WholeLoadMapped,
            _ if self.looks_like_scan() => OpenKind::HashScan,
            _ => OpenKind::WholeLoadRead,
        }
    }

    /// So far, the reads are those of a program that would read any file like that.
    pub fn looks_like_scan(&self) -> bool {
        self.front_to_back && self.ignores_tensors && self.mapped != Some(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;
    const SCAN: Facts = Facts {
        data_bytes: GIB,
        data_read: GIB,
        data_touched: GIB,
        front_to_back: true,
        ignores_tensors: true,
        mapped: None,
    };

    #[test]
    fn opens_are_told_apart() {
        assert_eq!(SCAN.kind(), OpenKind::HashScan);
        assert_eq!(Facts { mapped: Some(false), ..SCAN }.kind(), OpenKind::HashScan);
        assert_eq!(Facts { mapped: Some(true), ..SCAN }.kind(), OpenKind::WholeLoadMapped);
        assert_eq!(Facts { front_to_back: false, ..SCAN }.kind(), OpenKind::WholeLoadRead);
        assert_eq!(Facts { ignores_tensors: false, ..SCAN }.kind(), OpenKind::WholeLoadRead);
        assert_eq!(Facts { data_touched: GIB / 2, data_read: GIB / 2, ..SCAN }.kind(), OpenKind::Partial);
        let one_tensor_left = Facts { data_touched: GIB / 20 * 19, front_to_back: false, ..SCAN };
        assert_eq!(one_tensor_left.kind(), OpenKind::WholeLoadRead);
        let again_and_again = Facts { data_touched: GIB / 100, data_read: 5 * GIB, ..SCAN };
        assert_eq!(again_and_again.kind(), OpenKind::Partial);
        let peek = Facts { data_touched: PEEK_LIMIT, data_read: PEEK_LIMIT, ..SCAN };
        assert_eq!(peek.kind(), OpenKind::HeaderPeek);
        assert_eq!(Facts { data_bytes: 0, data_read: 0, data_touched: 0, ..SCAN }.kind(), OpenKind::HeaderPeek);
    }
}
