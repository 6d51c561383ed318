//! Sizes: the extent and byte counts as people write them.

use std::fmt;
use std::ops::Range;
use std::str::FromStr;

use crate::ids::ExtentIndex;

/// The unit of residency, and the size of a huge page on x86-64 and (with 4 KiB base pages) arm64.
pub const EXTENT_SIZE: u64 = 2 << 20;

/// Larger files are holes, and would take a word of memory for each of their extents: nothing is kept of them.
pub const LARGEST_MODEL: u64 = 1 << 42;

/// The extents that `bytes` touches. Empty for an empty range.
pub fn extents_of(bytes: &Range<u64>) -> Range<ExtentIndex> {
    if bytes.start >= bytes.end {
        return 0..0;
    }
    (bytes.start / EXTENT_SIZE) as ExtentIndex..bytes.end.div_ceil(EXTENT_SIZE) as ExtentIndex
}

/// How many extents a file of `size` bytes has.
pub fn extent_count(size: u64) -> ExtentIndex {
    size.div_ceil(EXTENT_SIZE) as ExtentIndex
}

/// The bytes of a file of `size` bytes that lie in extent `index`.
pub fn extent_bytes(index: ExtentIndex, size: u64) -> Range<u64> {
    let start = u64::from(index) * EXTENT_SIZE;
    start.min(size)..(start + EXTENT_SIZE).min(size)
}

/// A number of bytes as a person writes it: `24GiB`, `1.5G`, `512m`, `4096`. Units are powers of 1024.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ByteSize(pub u64);

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is not a size: write a number with an optional unit, such as 24GiB, 512M or 4096")]
pub struct ByteSizeError(String);

const UNITS: [(&str, u64); 5] = [("T", 1 << 40), ("G", 1 << 30), ("M", 1 << 20), ("K", 1 << 10), ("", 1)];

impl FromStr for ByteSize {
    type Err = ByteSizeError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let error = || ByteSizeError(text.to_owned());
        let trimmed = text.trim();
        let split = trimmed.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(trimmed.len());
        let (number, unit) = trimmed.split_at(split);
        let unit = unit.trim().to_ascii_uppercase();
        let unit = unit.strip_suffix("IB").or_else(|| unit.strip_suffix('B')).unwrap_or(&unit);
        let factor = UNITS.iter().find(|(name, _)| *name == unit).map(|(_, factor)| *factor).ok_or_else(error)?;
        if let Ok(whole) = number.parse::<u64>() {
            return whole.checked_mul(factor).map(ByteSize).ok_or_else(error);
        }
        let value = number.parse::<f64>().map_err(|_| error())? * factor as f64;
        if value.is_finite() && value < u64::MAX as f64 { Ok(ByteSize(value as u64)) } else { Err(error()) }
    }
}

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match UNITS.iter().find(|(name, factor)| !name.is_empty() && self.0 >= *factor) {
            Some((name, factor)) => write!(f, "{:.1} {name}iB", self.0 as f64 / *factor as f64),
            None => write!(f, "{} B", self.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_as_people_write_them() {
        let cases = [
            ("4096", 4096),
            ("1K", 1024),
            ("512m", 512 << 20),
            ("24GiB", 24 << 30),
            ("1.5g", 3 << 29),
            ("2 TB", 2 << 40),
            (" 7 MiB ", 7 << 20),
            ("10B", 10),
        ];
        for (text, bytes) in cases {
            assert_eq!(text.parse(), Ok(ByteSize(bytes)), "{text}");
        }
        for text in ["", "G", "12Q", "-1", "1.2.3", "99999999999T", "1e3", "50%"] {
            assert!(text.parse::<ByteSize>().is_err(), "{text}");
        }
    }

    #[test]
    fn sizes_are_shown_in_the_largest_unit_that_fits() {
        assert_eq!(ByteSize(0).to_string(), "0 B");
        assert_eq!(ByteSize(1536).to_string(), "1.5 KiB");
        assert_eq!(ByteSize(24 << 30).to_string(), "24.0 GiB");
    }

    #[test]
    fn extents_cover_what_they_touch() {
        assert_eq!(extents_of(&(5..5)), 0..0);
        assert_eq!(extents_of(&(0..1)), 0..1);
        assert_eq!(extents_of(&(EXTENT_SIZE - 1..EXTENT_SIZE + 1)), 0..2);
        assert_eq!(extents_of(&(EXTENT_SIZE..2 * EXTENT_SIZE)), 1..2);
        assert_eq!(extent_count(EXTENT_SIZE + 1), 2);
        assert_eq!(extent_bytes(1, EXTENT_SIZE + 1), EXTENT_SIZE..EXTENT_SIZE + 1);
    }
}
