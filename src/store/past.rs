//! Reads past the arena: what the policy does not keep.
//!
//! A small read brings its extents into slots ([`bypass`](super::bypass)), for those that follow it. A large one is
//! answered by itself, with the very bytes that it asks for: others may read what lies beside them, in the same extents,
//! long before or after, and would have it read again.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::filling::make_findable;
use super::read::SMALL;
use super::scratch::Loan;
use super::waiters::Waiter;
use super::{Generation, LARGEST_READ, ReadError, Store, bypass};
use crate::fill::{BLOCK, Class, Engine, Job};
use crate::ids::ExtentIndex;
use crate::journal::Tally;
use crate::units::{extent_bytes, extents_of};

/// Whether a read of `range` is one that is answered by itself.
pub(super) fn is_read_alone(range: &Range<u64>) -> bool {
    (SMALL + 1..=LARGEST_READ).contains(&(range.end - range.start))
}

/// Whether more small reads are likely to follow a small one of `range`: not where it is all of a tensor, or nearly.
pub(super) fn goes_on(generation: &Generation, range: &Range<u64>) -> bool {
    let Some(map) = generation.tensors.get() else { return true };
    map.within(range).any(|index| map.tensors()[index].bytes.end - map.tensors()[index].bytes.start > SMALL)
}

/// Whether two tensors meet in an extent of which one at least goes on beyond it: they may be read by two threads.
pub(super) fn is_divided(generation: &Generation, extent: ExtentIndex) -> bool {
    let Some(map) = generation.tensors.get() else { return false };
    let bytes = extent_bytes(extent, generation.size);
    let within = map.within(&bytes);
    let goes_beyond = |index: usize| {
        let tensor = &map.tensors()[index].bytes;
        tensor.start < bytes.start || bytes.end < tensor.end
    };
    within.len() > 1 && (goes_beyond(within.start) || goes_beyond(within.end - 1))
}

impl Store {
    /// Reads one extent into a slot.
    pub(super) fn submit_past(
        self: &Arc<Self>,
        generation: &Arc<Generation>,
        extent: ExtentIndex,
        slot: bypass::Claim,
        class: Class,
    ) {
        let engine = match self.engine_of(generation) {
            Ok(engine) => engine,
            Err(error) => {
                tracing::error!(%error, "an extent cannot be read");
                return self.give_up(generation, &(extent..extent + 1));
            }
        };
        tracing::trace!(file = %generation.file_id(), extent, ?class, "reading past the arena");
        let (memory, at) = (slot.memory(), slot.at());
        let (store, filled) = (Arc::clone(self), Arc::clone(generation));
        let job = engine.submit(Job {
            source: Arc::clone(&generation.source),
            bytes: extent_bytes(extent, generation.size),
            memory,
            at,
            class,
            ticket: None,
            done: Box::new(move |result| {
                filled.forget_job(&(extent..extent + 1));
                if store.is_trusted(&filled, result) {
                    slot.full();
                } else {
                    // Empty before anyone can begin to read the extent again.
                    drop(slot);
                }
                store.give_up(&filled, &(extent..extent + 1));
            }),
        });
        make_findable(generation, &(extent..extent + 1), job, &engine, class);
    }

    /// Answers a read of which not all is in memory, in a buffer of its own.
    pub(super) fn serve_alone<R>(self: &Arc<Self>, generation: &Arc<Generation>, range: Range<u64>, reply: R)
    where
        R: FnOnce(Result<&[u8], ReadError>) + Send + 'static,
    {
        let (store, read) = (Arc::clone(self), Arc::clone(generation));
        self.scratch.lend(generation.device(), move |loan| match (loan, store.known_engine(&read)) {
            (Some(loan), Some(engine)) => store.read_into(loan, &engine, &read, range, reply),
            _ => store.read_source(&read.source, read.device(), range, reply),
        });
    }

    fn read_into<R>(
        self: &Arc<Self>,
        loan: Loan,
        engine: &Engine,
        generation: &Arc<Generation>,
        range: Range<u64>,
        reply: R,
    ) where
        R: FnOnce(Result<&[u8], ReadError>) + Send + 'static,
    {
        let base = range.start / BLOCK * BLOCK;
        let (memory, at) = (loan.memory(), loan.at());
        let mut missing: Vec<Range<u64>> = Vec::new();
        for extent in extents_of(&range) {
            let whole = extent_bytes(extent, generation.size);
            let part = range.start.max(whole.start)..range.end.min(whole.end);
            if let Some(piece) = self.piece(generation, extent) {
                let place = at + (part.start - base) as usize;
                let target = memory.target(place..place + (part.end - part.start) as usize);
                target.copy_from_slice(piece.bytes(generation, &part));
                piece.consumed(&part);
                continue;
            }
            match missing.last_mut() {
                Some(run) if run.end == part.start => run.end = part.end,
                _ => missing.push(part),
            }
        }
        self.bypass.passed_by(extents_of(&range).len());
        let (store, read, is_trusted) = (Arc::clone(self), Arc::clone(generation), Arc::new(AtomicBool::new(true)));
        let were_trusted = Arc::clone(&is_trusted);
        let waiter = Waiter::new(Box::new(move || {
            if !were_trusted.load(Ordering::Acquire) {
                // Which tells why, or has the bytes of what the file is now.
                drop(loan);
                return store.read_source(&read.source, read.device(), range, reply);
            }
            store.legacy.add(Tally::ServedFromSource, range.end - range.start);
            reply(Ok(loan.bytes((range.start - base) as usize..(range.end - base) as usize)));
        }));
        for part in missing {
            let bytes = part.start / BLOCK * BLOCK..part.end.next_multiple_of(BLOCK).min(generation.size);
            tracing::trace!(file = %generation.file_id(), ?bytes, "reading past the arena, alone");
            waiter.expect_one();
            let (store, read) = (Arc::clone(self), Arc::clone(generation));
            let (is_trusted, waiter) = (Arc::clone(&is_trusted), Arc::clone(&waiter));
            engine.submit(Job {
                source: Arc::clone(&generation.source),
                memory: Arc::clone(&memory),
                at: at + (bytes.start - base) as usize,
                bytes,
                class: Class::Demand,
                ticket: None,
                done: Box::new(move |result| {
                    if !store.is_trusted(&read, result) {
                        is_trusted.store(false, Ordering::Release);
                    }
                    waiter.settle();
                }),
            });
        }
        waiter.settle();
    }
}
