//! Checks the sizes of `weightfs mount` against the machine and finds those that nobody gave.

use weightfs::units::{ByteSize, EXTENT_SIZE};

use super::options::Options;
use super::values::{Percent, RamSize};
use crate::machine::memory::Memory;

/// What lies above the low mark is not kept for good, so that it is little: room for what passes.
const HIGH_WATERMARK: Percent = Percent(100);
const LOW_WATERMARK: Percent = Percent(99);

/// ComfyUI leaves the larger of 2 GiB and half its headroom of 10 % of the RAM, 2 to 10 GB, unused. Leaving the whole
/// headroom and 2 GiB more keeps the arena from making it drop what it has loaded.
const HEADROOM_PERCENT: Percent = Percent(10);
const LEAST_HEADROOM: u64 = 2_000_000_000;
const MOST_HEADROOM: u64 = 10_000_000_000;
const RESERVE_BESIDE: u64 = 2 << 30;

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum SizeError {
    #[error("--ram {}: the arena would hold nothing; give at least {}", ByteSize(*.0), ByteSize(EXTENT_SIZE))]
    RamTooSmall(u64),
    #[error("--ram {} is more than this machine has ({}): give less, such as 50%", ByteSize(*ram), ByteSize(*total))]
    RamTooLarge { ram: u64, total: u64 },
    #[error("--ram {} is more than the limit of this container or service ({}): give less, such as 50%, or raise \
             the limit (memory.max, 'docker run --memory', MemoryMax=)", ByteSize(*ram), ByteSize(*limit))]
    RamAboveLimit { ram: u64, limit: u64 },
    #[error(
        "--low-watermark {low} is above --high-watermark {high}: making room would end before it starts; give a \
             low watermark of at most {high}"
    )]
    WatermarksCrossed { low: u8, high: u8 },
    #[error("--reserve {} leaves no room for models in {}: give less", ByteSize(*reserve), ByteSize(*most))]
    ReserveTooLarge { reserve: u64, most: u64 },
}

/// Bytes, and percentages of the budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    pub ram: u64,
    pub high_watermark: u8,
    pub low_watermark: u8,
    pub reserve: u64,
}

pub fn check(options: &Options, memory: &Memory) -> Result<Sizes, SizeError> {
    let most = memory.most();
    let ram = match options.ram {
        Some(RamSize::Bytes(bytes)) => bytes,
        Some(RamSize::Percent(percent)) => percent.of(most),
        None => (memory.available.min(most) / 2).max(EXTENT_SIZE),
    };
    if ram < EXTENT_SIZE {
        return Err(SizeError::RamTooSmall(ram));
    }
    if ram > memory.total {
        return Err(SizeError::RamTooLarge { ram, total: memory.total });
    }
    if ram > most {
        return Err(SizeError::RamAboveLimit { ram, limit: most });
    }
    let high = options.high_watermark.unwrap_or(HIGH_WATERMARK);
    // A high watermark below the usual low one takes that along.
    let low = options.low_watermark.unwrap_or(LOW_WATERMARK.min(high));
    if low > high {
        return Err(SizeError::WatermarksCrossed { low: low.0, high: high.0 });
    }
    let reserve = options.reserve.map_or_else(|| default_reserve(most), |size| size.0);
    if reserve >= most {
        return Err(SizeError::ReserveTooLarge { reserve, most });
    }
    Ok(Sizes { ram, high_watermark: high.0, low_watermark: low.0, reserve })
}

/// On a machine of 4 to 8 GiB the rule alone would leave next to nothing for models, so that half is the most.
pub fn default_reserve(most: u64) -> u64 {
    (HEADROOM_PERCENT.of(most).clamp(LEAST_HEADROOM, MOST_HEADROOM) + RESERVE_BESIDE).min(most / 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    fn machine(total: u64, available: u64, limit: Option<u64>) -> Memory {
        Memory { total: total * GIB, available: available * GIB, limit: limit.map(|limit| limit * GIB) }
    }

    fn ram(text: &str) -> Options {
        Options { ram: Some(text.parse().unwrap()), ..Options::default() }
    }

    #[test]
    fn the_shipped_example_shows_the_usual_watermarks() {
        let example = include_str!("../../../packaging/weightfs.toml");
        for (key, usual) in [("high-watermark", HIGH_WATERMARK), ("low-watermark", LOW_WATERMARK)] {
            assert!(example.contains(&format!("\n#{key} = {}\n", usual.0)), "{key}");
        }
    }

    #[test]
    fn defaults_follow_the_machine() {
        let sizes = check(&Options::default(), &machine(64, 40, None)).unwrap();
        let expected =
            Sizes { ram: 20 * GIB, high_watermark: 100, low_watermark: 99, reserve: 64 * GIB / 10 + RESERVE_BESIDE };
        assert_eq!(sizes, expected);
        let in_container = check(&Options::default(), &machine(64, 40, Some(16))).unwrap();
        assert_eq!((in_container.ram, in_container.reserve), (8 * GIB, LEAST_HEADROOM + RESERVE_BESIDE));
    }

    #[test]
    fn a_reserve_leaves_small_machines_a_budget() {
        for (total, reserve) in [
            (2, GIB),
            (4, 2 * GIB),
            (6, 3 * GIB),
            (8, LEAST_HEADROOM + RESERVE_BESIDE),
            (32, 32 * GIB / 10 + RESERVE_BESIDE),
            (256, MOST_HEADROOM + RESERVE_BESIDE),
        ] {
            assert_eq!(default_reserve(total * GIB), reserve, "{total} GiB");
        }
    }

    #[test]
    fn ram_must_fit() {
        let machine = machine(32, 20, Some(16));
        assert_eq!(check(&ram("50%"), &machine).unwrap().ram, 8 * GIB);
        assert_eq!(check(&ram("16G"), &machine).unwrap().ram, 16 * GIB);
        let error = |text: &str| check(&ram(text), &machine).unwrap_err();
        assert_eq!(error("0"), SizeError::RamTooSmall(0));
        assert_eq!(error("17G"), SizeError::RamAboveLimit { ram: 17 * GIB, limit: 16 * GIB });
        assert_eq!(error("33G"), SizeError::RamTooLarge { ram: 33 * GIB, total: 32 * GIB });
        assert!(error("33G").to_string().contains("33.0 GiB"));
    }

    #[test]
    fn watermarks_are_in_order() {
        let machine = machine(32, 20, None);
        let with = |high: Option<u8>, low: Option<u8>| Options {
            high_watermark: high.map(Percent),
            low_watermark: low.map(Percent),
            ..Options::default()
        };
        assert_eq!(check(&with(Some(80), None), &machine).unwrap().low_watermark, 80);
        assert_eq!(check(&with(Some(80), Some(80)), &machine).unwrap().high_watermark, 80);
        let crossed = check(&with(Some(98), Some(99)), &machine).unwrap_err();
        assert_eq!(check(&with(None, Some(100)), &machine).unwrap().low_watermark, 100);
        assert_eq!(crossed, SizeError::WatermarksCrossed { low: 99, high: 98 });
    }

    #[test]
    fn a_reserve_of_everything_is_refused() {
        let options = Options { reserve: Some(ByteSize(32 * GIB)), ..Options::default() };
        assert!(matches!(check(&options, &machine(32, 20, None)), Err(SizeError::ReserveTooLarge { .. })));
    }
}
