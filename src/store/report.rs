//! What the store says of itself. Bytes, and counts since the start of the daemon, whichever process counted.

use std::sync::atomic::Ordering;

use super::Store;
use crate::journal::Tally;
use crate::pressure::BudgetReason;

/// How the arena's memory is used. Bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RamReport {
    /// The most the arena may hold now.
    pub budget: u64,
    /// What that is bounded by.
    pub reason: BudgetReason,
    /// The most it may ever hold.
    pub limit: u64,
    /// Reclaim starts here.
    pub high_watermark: u64,
    /// Reclaim stops here.
    pub low_watermark: u64,
    /// Present in the arena.
    pub resident: u64,
    /// Promised to stay.
    pub pinned: u64,
    /// Dropped, and freed when the clients that map it let go.
    pub client_held: u64,
}

/// What was read and served. Bytes since the start, except `speed`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IoReport {
    pub engine: &'static str,
    pub source_read: u64,
    pub served_from_ram: u64,
    pub served_from_source: u64,
    pub evicted: u64,
    /// Bytes per second of recent fills from the fastest device, once there were some.
    pub speed: Option<u64>,
}

impl Store {
    pub fn ram_report(&self) -> RamReport {
        RamReport {
            budget: self.budget.load(Ordering::Acquire),
            reason: self.follower.reason(),
            limit: self.config.budget,
            high_watermark: self.high_mark(),
            low_watermark: self.low_mark(),
            resident: self.generations.lock().values().map(|generation| generation.resident_bytes()).sum(),
            pinned: self.residency.lock().pinned_bytes(),
            client_held: self.ended.lock().iter().map(|generation| generation.resident_bytes()).sum(),
        }
    }

    /// Bytes that engines have read, those of earlier processes included, up to a fifth of a second before their ends.
    pub(super) fn tally_fills(&self) -> u64 {
        let engines = self.engines.lock();
        let now: u64 = engines.values().map(|(engine, _)| engine.counters().source_read_bytes).sum();
        let all = self.filled_before + now;
        self.legacy.journal().tally(Tally::Filled).store(all, Ordering::Relaxed);
        all
    }

    pub fn io_report(&self) -> IoReport {
        let engines: Vec<_> = self.engines.lock().values().map(|(engine, _)| engine.counters()).collect();
        let filled = self.tally_fills();
        IoReport {
            engine: self.engine_kind(),
            source_read: filled + self.legacy.sum(Tally::ReadAside),
            served_from_ram: self.legacy.sum(Tally::ServedFromRam),
            served_from_source: self.legacy.sum(Tally::ServedFromSource),
            evicted: self.legacy.sum(Tally::Evicted),
            speed: engines.iter().filter_map(|counters| counters.bytes_per_second).max(),
        }
    }

    /// Bytes of RAM that the arena takes, whoever holds them; None where that cannot be known.
    pub fn arena_used(&self) -> Option<u64> {
        self.arena.used_bytes().ok().flatten()
    }
}
