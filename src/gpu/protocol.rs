//! What a daemon and its cuFile process say to each other: JSON, a line each, over a Unix stream socket.
//!
//! Before the line of an order comes one byte, [`ORDER`], which carries the descriptor of the file. There is one order at
//! a time; its answers end with one that is no [`Answer::Progress`].

use serde::{Deserialize, Serialize};

use super::mode::Mode;
use super::plan::Span;

/// Stands before each order.
pub const ORDER: u8 = b'F';

/// The longest line, its newline included.
pub const LONGEST_LINE: usize = 8 << 20;

/// Read a file into the memory of a device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Order {
    /// A name for this content of this file: what is held of it is found by it.
    pub content: String,
    pub file_bytes: u64,
    pub device: u32,
    /// What is read and where in the memory it goes: start, bytes, place.
    pub spans: Vec<(u64, u64, u64)>,
    /// Of the memory that it goes to.
    pub size_bytes: u64,
    /// The handle of that memory, in hexadecimal. None: it is the process's own, which holds it for `hold_seconds` or
    /// until an order for the same content has somewhere to put it.
    pub into: Option<String>,
    /// Refuse rather than read through RAM.
    pub direct_only: bool,
    pub hold_seconds: u64,
}

impl Order {
    pub fn spans(&self) -> Vec<Span> {
        self.spans.iter().map(|&(start, len, at)| Span { start, len, at }).collect()
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// So many bytes have reached the device.
    Progress(u64),
    Filled(Filled),
    /// Why not, for a person.
    Refused(String),
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Filled {
    pub bytes: u64,
    pub seconds: f64,
    pub mode: Mode,
    /// It had been read before, and was copied within the device.
    pub was_held: bool,
}

pub fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The bytes of a handle. None where `text` is none.
pub fn handle_of(text: &str) -> Option<[u8; 64]> {
    if text.len() != 128 || !text.is_ascii() {
        return None;
    }
    let mut bytes = [0; 64];
    for (index, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&text[2 * index..2 * index + 2], 16).ok()?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handles_survive_the_way() {
        let bytes: [u8; 64] = std::array::from_fn(|index| (index * 37) as u8);
        assert_eq!(handle_of(&to_hex(&bytes)), Some(bytes));
        for bad in ["", "00", &"g".repeat(128), &"0".repeat(127), &"é".repeat(64)] {
            assert_eq!(handle_of(bad), None, "{bad}");
        }
    }
}
