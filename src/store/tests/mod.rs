//! The store on real files, without a mount: every byte that it answers is compared with what the files hold.

mod failures;
mod files;
mod hints;
mod inherited;
mod keeping;
mod past;
mod random;

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use super::*;
use crate::fill::SourceFile;
use crate::predict::Access;
use files::{Folder, Model};

const MIB: u64 = 1 << 20;

/// Nothing here takes this long unless an answer was lost.
const PATIENCE: Duration = Duration::from_secs(30);

fn config(budget: u64) -> StoreConfig {
    StoreConfig {
        budget,
        high_watermark: 95,
        low_watermark: 85,
        engine: EngineChoice::Auto,
        history: None,
        reserve: None,
    }
}

fn store(budget: u64) -> Arc<Store> {
    Store::start(config(budget)).unwrap()
}

type Answer = Result<Vec<u8>, ReadError>;

/// The one answer to come.
struct Pending(Receiver<Answer>);

impl Pending {
    fn wait(self) -> Answer {
        match self.0.recv_timeout(PATIENCE) {
            Ok(answer) => answer,
            Err(RecvTimeoutError::Timeout) => panic!("a reader was forgotten"),
            Err(RecvTimeoutError::Disconnected) => panic!("a reply was dropped without being called"),
        }
    }
}

fn begin_read(store: &Arc<Store>, opened: &Arc<Opened>, range: Range<u64>, access: Access) -> Pending {
    let (send, answer) = channel();
    store.read(opened, range, access, move |result| send.send(result.map(<[u8]>::to_vec)).unwrap());
    Pending(answer)
}

fn read(store: &Arc<Store>, opened: &Arc<Opened>, range: Range<u64>) -> Answer {
    begin_read(store, opened, range, Access::Read).wait()
}

fn open(store: &Arc<Store>, source: &Arc<SourceFile>) -> Arc<Opened> {
    let opened = store.open(source).expect("its content has settled");
    opened.begin();
    Arc::new(opened)
}

/// Reads all of a model through a handle of its own and compares it.
fn load(store: &Arc<Store>, model: &Model) {
    let opened = open(store, &model.source());
    for start in (0..model.size).step_by(3 * MIB as usize) {
        let range = start..(start + 3 * MIB).min(model.size);
        model.check(&range, &read(store, &opened, range.clone()).unwrap());
    }
}

/// Waits for what happens on other threads.
fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < PATIENCE, "never: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn occupied(store: &Store) -> u64 {
    store.occupied.load(Ordering::Acquire)
}

/// Extents that are present, of whatever generation.
fn present(store: &Store) -> u64 {
    let current: Vec<_> = store.generations.lock().values().cloned().collect();
    let ended: Vec<_> = store.ended.lock().clone();
    current.iter().chain(&ended).map(|generation| u64::from(generation.extents.present())).sum()
}

/// Waits until nothing is under way, and compares what everyone believes to be in the arena.
fn agrees(store: &Store) {
    let policy = || store.residency.lock().resident_bytes() / EXTENT_SIZE;
    eventually("the policy, the count and the extents agree", || {
        let present = present(store);
        occupied(store) == present && policy() == present
    });
}

/// Nothing is left in the arena but the slots and the buffers, each of which can be had.
fn is_empty(store: &Arc<Store>) {
    eventually("the arena is empty", || occupied(store) == 0);
    eventually("its pages are freed", || store.arena_used().is_none_or(|used| used <= store.passing()));
    eventually("nothing is remembered of what is gone", || {
        store.generations.lock().is_empty() && store.residency.lock().resident_bytes() == 0
    });
    eventually("every buffer is given back", || store.scratch.is_unused());
    let slots = store.bypass.capacity() / EXTENT_SIZE;
    let claims: Vec<_> =
        (0..slots).filter_map(|n| store.bypass.claim(GenerationId(u64::MAX), n as u32, false)).collect();
    assert_eq!(claims.len() as u64, slots, "slots were lost");
}
