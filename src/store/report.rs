//! What the store says of itself. Bytes, and counts since its start.

use std::sync::atomic::{AtomicU64, Ordering};

use super::Store;

#[derive(Debug, Default)]
pub(super) struct Counters {
    pub(super) served_from_ram: AtomicU64,
    pub(super) served_from_source: AtomicU64,
    /// Read on our own threads, past the engine.
    pub(super) read_aside: AtomicU64,
    pub(super) evicted: AtomicU64,
}

/// How the arena's memory is used. Bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RamReport {
    /// The most the arena may hold now.
    pub budget: u64,
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
            budget: self.config.budget,
            high_watermark: self.high_mark(),
            low_watermark: self.low_mark(),
            resident: self.generations.lock().values().map(|generation| generation.resident_bytes()).sum(),
            pinned: self.residency.lock().pinned_bytes(),
            client_held: self.ended.lock().iter().map(|generation| generation.resident_bytes()).sum(),
        }
    }

    pub fn io_report(&self) -> IoReport {
        let engines: Vec<_> = self.engines.lock().values().map(|(engine, _)| engine.counters()).collect();
        let filled: u64 = engines.iter().map(|counters| counters.source_read_bytes).sum();
        IoReport {
            engine: self.engine_kind(),
            source_read: filled + self.counters.read_aside.load(Ordering::Relaxed),
            served_from_ram: self.counters.served_from_ram.load(Ordering::Relaxed),
            served_from_source: self.counters.served_from_source.load(Ordering::Relaxed),
            evicted: self.counters.evicted.load(Ordering::Relaxed),
            speed: engines.iter().filter_map(|counters| counters.bytes_per_second).max(),
        }
    }

    /// Bytes of RAM that the arena takes, whoever holds them; None where that cannot be known.
    pub fn arena_used(&self) -> Option<u64> {
        self.arena.used_bytes().ok().flatten()
    }
}
