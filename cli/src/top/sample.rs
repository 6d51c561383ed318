//! What the graphs are drawn from: rates between two looks at a daemon's counts.

use std::collections::VecDeque;

use weightfs::control::{History, Status};

/// As many as a wide terminal has columns, twice.
const MOST: usize = 1200;

#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Sample {
    /// Bytes a second that the daemon answered with.
    pub served: f64,
    /// Of those, from 0 to 1, what was in RAM. None where nothing was served.
    pub hits: Option<f64>,
    /// Bytes a second that came from the sources.
    pub source: f64,
    /// Opens a second after which reads cost the daemon nothing.
    pub passthrough: f64,
    pub resident: u64,
    pub budget: u64,
    /// Percent of the time in which some process waited for memory.
    pub stalls: Option<f64>,
}

/// Samples, the oldest first, and the counts that the next one is compared with.
#[derive(Clone, Debug, Default)]
pub struct Samples {
    all: VecDeque<Sample>,
    last: Option<Counts>,
}

#[derive(Clone, Copy, Debug)]
struct Counts {
    at: f64,
    worker: u32,
    ram: u64,
    source: u64,
    source_read: u64,
    passthrough: u64,
}

impl Samples {
    /// A look at `at`, in seconds on any clock that does not go back. Counts of a new worker begin anew: then there is
    /// nothing to compare with.
    pub fn add(&mut self, status: &Status, at: f64) {
        let counts = Counts {
            at,
            worker: status.worker.pid,
            ram: status.io.served_from_ram_bytes,
            source: status.io.served_from_source_bytes,
            source_read: status.io.source_read_bytes,
            passthrough: status.io.passthrough_opens,
        };
        let last = self.last.replace(counts).filter(|last| last.worker == counts.worker && last.at < at);
        let Some(last) = last else { return };
        let seconds = at - last.at;
        let grown = |now: u64, before: u64| now.saturating_sub(before) as f64;
        let (ram, source) = (grown(counts.ram, last.ram), grown(counts.source, last.source));
        self.push(Sample {
            served: (ram + source) / seconds,
            hits: (ram + source > 0.0).then(|| ram / (ram + source)),
            source: grown(counts.source_read, last.source_read) / seconds,
            passthrough: grown(counts.passthrough, last.passthrough) / seconds,
            resident: status.ram.resident_bytes,
            budget: status.ram.budget_bytes,
            stalls: status.pressure.psi_some_avg10,
        });
    }

    /// What the daemon remembers of the time before, where nothing was seen yet.
    pub fn begin(&mut self, history: &History) {
        if !self.all.is_empty() || history.interval_seconds <= 0.0 {
            return;
        }
        for sample in &history.samples {
            let rate = |bytes: u64| bytes as f64 / history.interval_seconds;
            self.push(Sample {
                served: rate(sample.served_bytes),
                hits: (sample.served_bytes > 0).then(|| sample.ram_bytes as f64 / sample.served_bytes as f64),
                source: rate(sample.source_read_bytes),
                passthrough: rate(sample.passthrough_opens),
                resident: sample.resident_bytes,
                budget: sample.budget_bytes,
                stalls: sample.psi_some_avg10,
            });
        }
    }

    pub fn last(&self) -> Option<&Sample> {
        self.all.back()
    }

    /// `value` of the last `count` samples, the oldest first.
    pub fn recent(&self, count: usize, value: impl Fn(&Sample) -> u64) -> Vec<u64> {
        self.all.iter().skip(self.all.len().saturating_sub(count)).map(value).collect()
    }

    fn push(&mut self, sample: Sample) {
        if self.all.len() == MOST {
            self.all.pop_front();
        }
        self.all.push_back(sample);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(worker: u32, ram: u64, source: u64) -> Status {
        let mut status = Status::default();
        status.worker.pid = worker;
        status.io.served_from_ram_bytes = ram;
        status.io.served_from_source_bytes = source;
        status
    }

    #[test]
    fn rates_are_taken_between_looks_at_one_worker() {
        let mut samples = Samples::default();
        samples.add(&status(1, 1000, 0), 0.0);
        assert_eq!(samples.last(), None);
        samples.add(&status(1, 1300, 100), 2.0);
        let last = *samples.last().unwrap();
        assert_eq!((last.served, last.hits), (200.0, Some(0.75)));
        // Another worker counts from nothing.
        samples.add(&status(2, 10, 0), 3.0);
        samples.add(&status(2, 10, 0), 4.0);
        assert_eq!((samples.last().unwrap().served, samples.last().unwrap().hits), (0.0, None));
        assert_eq!(samples.recent(10, |sample| sample.served as u64), [200, 0]);
    }

    #[test]
    fn only_so_many_are_kept() {
        let mut samples = Samples::default();
        for second in 0..2 * MOST {
            samples.add(&status(1, 0, 0), second as f64);
        }
        assert_eq!(samples.recent(usize::MAX, |_| 0).len(), MOST);
    }
}
