//! Samples of the last ten minutes.

use std::collections::VecDeque;
use std::time::Duration;

use parking_lot::Mutex;
use weightfs::control::{History, HistorySample, Status};

/// How often a sample is taken.
pub const INTERVAL: Duration = Duration::from_secs(1);
const KEPT: usize = 600;

/// Sums since the start, of which samples have the differences.
#[derive(Clone, Copy, Debug, Default)]
struct Sums {
    ram: u64,
    source: u64,
    read: u64,
    evicted: u64,
    passthrough: u64,
    passthrough_bytes: u64,
    stream: u64,
}

#[derive(Debug, Default)]
struct State {
    last: Option<Sums>,
    samples: VecDeque<HistorySample>,
}

/// The samples so far.
#[derive(Debug, Default)]
pub struct Samples(Mutex<State>);

impl Samples {
    /// Takes a sample of how things are at `at`, in seconds since 1970. `passthrough_bytes` are the sizes of all files
    /// that were opened so, since the start.
    pub fn add(&self, at: f64, status: &Status, passthrough_bytes: u64) {
        let (ram, io) = (&status.ram, &status.io);
        let now = Sums {
            ram: io.served_from_ram_bytes,
            source: io.served_from_source_bytes,
            read: io.source_read_bytes,
            evicted: io.evicted_bytes,
            passthrough: io.passthrough_opens,
            passthrough_bytes,
            stream: io.stream_opens,
        };
        let mut state = self.0.lock();
        let last = state.last.replace(now).unwrap_or(now);
        let since = |of: fn(&Sums) -> u64| of(&now).saturating_sub(of(&last));
        let (ram_bytes, source_bytes) = (since(|sums| sums.ram), since(|sums| sums.source));
        let sample = HistorySample {
            at,
            served_bytes: ram_bytes + source_bytes,
            ram_bytes,
            source_bytes,
            source_read_bytes: since(|sums| sums.read),
            evicted_bytes: since(|sums| sums.evicted),
            passthrough_opens: since(|sums| sums.passthrough),
            passthrough_bytes: since(|sums| sums.passthrough_bytes),
            stream_opens: since(|sums| sums.stream),
            resident_bytes: ram.resident_bytes,
            pinned_bytes: ram.pinned_bytes,
            client_held_bytes: ram.client_held_bytes,
            budget_bytes: ram.budget_bytes,
            mem_available_bytes: status.pressure.mem_available_bytes,
            psi_some_avg10: status.pressure.psi_some_avg10,
        };
        if state.samples.len() == KEPT {
            state.samples.pop_front();
        }
        state.samples.push_back(sample);
    }

    pub fn all(&self) -> History {
        let samples = self.0.lock().samples.iter().copied().collect();
        History { interval_seconds: INTERVAL.as_secs_f64(), samples }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_have_what_came_since_the_one_before_and_the_oldest_go() {
        let samples = Samples::default();
        let mut status = Status::default();
        for number in 0..KEPT as u64 + 5 {
            status.io.served_from_ram_bytes = number * number;
            status.ram.resident_bytes = number;
            samples.add(number as f64, &status, 10 * number);
        }
        let history = samples.all();
        let (first, last) = (history.samples[0], history.samples[KEPT - 1]);
        assert_eq!((history.samples.len(), first.at), (KEPT, 5.0));
        assert_eq!((last.ram_bytes, last.served_bytes), (2 * 604 - 1, 2 * 604 - 1));
        assert_eq!((last.resident_bytes, last.passthrough_bytes), (604, 10));
    }
}
