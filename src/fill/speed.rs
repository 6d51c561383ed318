//! What the engine has done, and how fast the storage behind it is.

use std::time::{Duration, Instant};

/// Speed is that of roughly this much recent busy time.
const MEMORY: Duration = Duration::from_secs(2);

/// Less than this says nothing about a device yet.
const ENOUGH_BYTES: f64 = (8 << 20) as f64;

/// Since the engine's start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Bytes that came from source files, from the device or the page cache.
    pub source_read_bytes: u64,
    /// Those of them that the kernel's page cache already had.
    pub page_cache_bytes: u64,
    /// Attempts to read, of any size.
    pub requests: u64,
    /// Attempts that were repeated because of an error.
    pub retries: u64,
    /// Jobs that ended with an error of the source.
    pub errors: u64,
    /// What the storage has lately delivered while it was busy for us, in bytes per second. None before a few
    /// megabytes were read.
    pub bytes_per_second: Option<u64>,
}

/// Bytes per second of busy time, smoothed. Idle time does not count.
#[derive(Debug, Default)]
pub(crate) struct SpeedMeter {
    /// Both fade together, so that their quotient is a weighted mean.
    bytes: f64,
    seconds: f64,
    total: f64,
    /// Busy time before this has been counted.
    counted: Option<Instant>,
}

impl SpeedMeter {
    /// A request was on its way from `issued` until `now` and brought `bytes`. Requests may overlap; `now` must not go
    /// backwards.
    pub fn arrived(&mut self, issued: Instant, now: Instant, bytes: u64) {
        let from = self.counted.map_or(issued, |counted| counted.max(issued));
        let busy = now.saturating_duration_since(from).as_secs_f64();
        let fade = (-busy / MEMORY.as_secs_f64()).exp();
        self.bytes = self.bytes * fade + bytes as f64;
        self.seconds = self.seconds * fade + busy;
        self.total += bytes as f64;
        self.counted = Some(now);
    }

    pub fn bytes_per_second(&self) -> Option<u64> {
        (self.total >= ENOUGH_BYTES && self.seconds > 0.0).then(|| (self.bytes / self.seconds) as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn close(speed: Option<u64>, expected: f64) {
        let speed = speed.expect("enough was read") as f64;
        assert!((speed / expected - 1.0).abs() < 0.02, "{speed} is not {expected}");
    }

    #[test]
    fn overlapping_requests_share_their_time() {
        let start = Instant::now();
        let mut meter = SpeedMeter::default();
        // Four in flight at any time, one arriving each 10 ms.
        for i in 0..100u32 {
            let now = start + Duration::from_millis(40) + Duration::from_millis(10) * i;
            meter.arrived(now - Duration::from_millis(40), now, 4 * MIB);
        }
        close(meter.bytes_per_second(), 4.0 * MIB as f64 * 100.0 / 1.03);
    }

    #[test]
    fn idle_time_does_not_count_and_the_past_fades() {
        let mut now = Instant::now();
        let mut meter = SpeedMeter::default();
        assert_eq!(meter.bytes_per_second(), None);
        for _ in 0..100 {
            now += Duration::from_secs(60);
            meter.arrived(now - Duration::from_millis(10), now, MIB);
        }
        close(meter.bytes_per_second(), 100.0 * MIB as f64);
        for _ in 0..1000 {
            now += Duration::from_secs(1);
            meter.arrived(now - Duration::from_millis(100), now, MIB);
        }
        close(meter.bytes_per_second(), 10.0 * MIB as f64);
    }
}
