//! Everything at once: readers, holders and waiting opens in a budget that is much too small, while files are written
//! over and replaced. A read may give what the file held at some moment between its start and its end, or when its
//! handle was opened; never another version, a mix within a page, or anything else.

use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::AtomicU32;

use parking_lot::RwLock;

use super::files::{PAGE, page};
use super::*;
use crate::fill::{Class, SourceFile};

const READERS: u64 = 4;

/// Longer than content takes to settle, several times.
const RUN: Duration = Duration::from_secs(9);

struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        ((self.0 >> 33) * end) >> 31
    }

    fn one_in(&mut self, count: u64) -> bool {
        self.below(count) == 0
    }
}

/// One inode and what it held when.
struct Content {
    /// The newest version of which something may have been written, and the newest that is written.
    begun: AtomicU64,
    complete: AtomicU64,
    /// Writers that the mount knows of.
    writers: AtomicU32,
}

impl Content {
    fn new(version: u64) -> Arc<Self> {
        let (begun, complete) = (AtomicU64::new(version), AtomicU64::new(version));
        Arc::new(Self { begun, complete, writers: AtomicU32::new(0) })
    }
}

struct Shelf {
    store: Arc<Store>,
    models: Vec<(Model, RwLock<Arc<Content>>)>,
    until: Instant,
    loads: AtomicU64,
    holds: AtomicU64,
    waits: AtomicU64,
    changes: AtomicU64,
}

/// Which versions a read may give: those that the file held in these times.
#[derive(Clone, Copy, Debug)]
struct Span(u64, u64);

impl Span {
    /// Begins now.
    fn begin(content: &Content) -> Self {
        Self(content.complete.load(Ordering::SeqCst), 0)
    }

    /// Ends now.
    fn end(self, content: &Content) -> Self {
        Self(self.0, content.begun.load(Ordering::SeqCst))
    }

    fn versions(self) -> impl Iterator<Item = u64> {
        self.0..=self.1
    }
}

/// Compares an answer page by page.
fn check(model: &Model, range: &Range<u64>, bytes: &[u8], allowed: &[u64], torn: bool) {
    assert_eq!(bytes.len() as u64, range.end - range.start, "{range:?} of file {}", model.number);
    let mut at = range.start;
    while at < range.end {
        let number = at / PAGE as u64;
        let end = ((number + 1) * PAGE as u64).min(range.end);
        let got = &bytes[(at - range.start) as usize..(end - range.start) as usize];
        let inside = (at % PAGE as u64) as usize..(at % PAGE as u64) as usize + got.len();
        let pages: Vec<_> = allowed.iter().map(|version| page(model.number, *version, number, model.size)).collect();
        // The file system below may show a page that is being written half written: then each byte is of a version.
        let is_right = pages.iter().any(|page| page[inside.clone()] == *got)
            || torn
                && got.iter().zip(inside.clone()).all(|(byte, index)| pages.iter().any(|page| page[index] == *byte));
        assert!(is_right, "page {number} of file {} is of no version of {allowed:?}", model.number);
        at = end;
    }
}

fn versions(spans: &[Span]) -> Vec<u64> {
    let mut all: Vec<u64> = spans.iter().flat_map(|span| span.versions()).collect();
    all.sort_unstable();
    all.dedup();
    all
}

impl Shelf {
    fn reads(&self, random: &mut Random) {
        while Instant::now() < self.until {
            let (model, content) = &self.models[random.below(self.models.len() as u64) as usize];
            // The name leads to one inode at a time.
            let name = content.read();
            let (file, content) = (File::open(&model.path).unwrap(), Arc::clone(&name));
            drop(name);
            let open_span = Span::begin(&content);
            let source = Arc::new(SourceFile::new(file));
            let opened = match content.writers.load(Ordering::SeqCst) {
                0 => self.store.open(&source),
                _ => None,
            };
            let open_span = open_span.end(&content);
            let Some(opened) = opened else {
                self.read_aside(model, &content, &source, random);
                continue;
            };
            let opened = Arc::new(opened);
            opened.begin();
            if random.one_in(4) {
                self.waits_for_all(&opened);
            }
            match self.store.hold(&opened.generation).filter(|_| random.one_in(2)) {
                Some(held) => {
                    drop(opened);
                    self.looks(model, &held, open_span, random);
                }
                None => self.streams(model, &content, &opened, open_span, random),
            }
        }
    }

    fn waits_for_all(&self, opened: &Opened) {
        let generation = &opened.generation;
        if generation.missing_bytes() > self.store.room() {
            return;
        }
        self.store.complete(generation);
        let (send, settled) = channel();
        let all = 0..generation.extents.count();
        self.store.when_settled(generation, all, Class::OpenWait, move || send.send(()).unwrap());
        settled.recv_timeout(PATIENCE).expect("an open was forgotten");
        self.waits.fetch_add(1, Ordering::Relaxed);
    }

    /// As a client in passthrough does.
    fn looks(&self, model: &Model, held: &Held, span: Span, random: &mut Random) {
        for _ in 0..random.below(30) {
            let range = some_range(model, random);
            check(model, &range, held.bytes(range.clone()), &versions(&[span]), false);
            std::thread::sleep(Duration::from_millis(1));
        }
        self.holds.fetch_add(1, Ordering::Relaxed);
    }

    fn streams(&self, model: &Model, content: &Content, opened: &Arc<Opened>, span: Span, random: &mut Random) {
        let access = if random.one_in(2) { Access::Read } else { Access::Fault };
        let whole = random.one_in(2);
        let (mut at, step) = (0, 1 + random.below(3 * MIB));
        for _ in 0..1 + random.below(40) {
            // Several at once, as programs with many threads have.
            let mut pending = Vec::new();
            for _ in 0..1 + random.below(4) {
                let range = if whole { at..(at + step).min(model.size) } else { some_range(model, random) };
                at = if range.end == model.size { 0 } else { range.end };
                let begun = Span::begin(content);
                pending.push((range.clone(), begun, begin_read(&self.store, opened, range, access)));
            }
            for (range, begun, answer) in pending {
                let bytes = answer.wait().unwrap();
                let ended = begun.end(content);
                check(model, &range, &bytes, &versions(&[span, ended]), ended.0 != ended.1);
            }
        }
        self.loads.fetch_add(1, Ordering::Relaxed);
    }

    /// What is not kept is read from the source.
    fn read_aside(&self, model: &Model, content: &Content, source: &Arc<SourceFile>, random: &mut Random) {
        for _ in 0..4 {
            let (range, begun) = (some_range(model, random), Span::begin(content));
            let (send, answer) = channel();
            self.store.read_source(source, 0, range.clone(), move |result| {
                send.send(result.map(<[u8]>::to_vec)).unwrap();
            });
            let bytes = Pending(answer).wait().unwrap();
            let ended = begun.end(content);
            check(model, &range, &bytes, &versions(&[ended]), ended.0 != ended.1);
        }
    }

    fn changes(&self, random: &mut Random) {
        let mut version = 1;
        while Instant::now() < self.until {
            std::thread::sleep(Duration::from_millis(100 + random.below(900)));
            version += 1;
            // The first half is left alone, so that something is always kept.
            let half = self.models.len() / 2;
            let (model, content) = &self.models[half + random.below(half as u64) as usize];
            if random.one_in(3) {
                self.replace(model, content, version, random.one_in(2));
            } else {
                self.write_over(model, &content.read(), version, random.one_in(2));
            }
            self.changes.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// `known` as through the mount, else behind its back.
    fn write_over(&self, model: &Model, content: &Content, version: u64, known: bool) {
        content.writers.fetch_add(u32::from(known), Ordering::SeqCst);
        content.begun.store(version, Ordering::SeqCst);
        let metadata = std::fs::metadata(&model.path).unwrap();
        if known {
            self.store.invalidate(metadata.dev(), metadata.ino());
        }
        model.overwrite(version);
        content.complete.store(version, Ordering::SeqCst);
        content.writers.fetch_sub(u32::from(known), Ordering::SeqCst);
    }

    fn replace(&self, model: &Model, content: &RwLock<Arc<Content>>, version: u64, known: bool) {
        let beside = model.path.with_extension("part");
        model.write(&beside, version);
        let replaced = std::fs::metadata(&model.path).unwrap();
        let mut name = content.write();
        std::fs::rename(&beside, &model.path).unwrap();
        *name = Content::new(version);
        drop(name);
        if known {
            self.store.invalidate(replaced.dev(), replaced.ino());
        }
    }

    fn watches(&self, budget: u64) {
        while Instant::now() < self.until {
            let ram = self.store.ram_report();
            assert!(ram.resident <= ram.high_watermark && ram.high_watermark <= budget, "{ram:?}");
            let extents = present(&self.store) * EXTENT_SIZE;
            assert!(extents <= budget, "{extents} bytes in the arena");
            std::thread::sleep(Duration::from_millis(3));
        }
    }
}

/// Anywhere, of any length that a request may have.
fn some_range(model: &Model, random: &mut Random) -> Range<u64> {
    let longest = [5000, 200_000, 4 * MIB][random.below(3) as usize];
    let start = random.below(model.size - 1);
    start..(start + 1 + random.below(longest)).min(model.size)
}

fn run(budget: u64, sizes: [u64; 6]) {
    let folder = Folder::new();
    let make = |(number, size)| (folder.model(number, size), RwLock::new(Content::new(1)));
    let models: Vec<_> = (0u64..).zip(sizes).map(make).collect();
    folder.settle();
    let zero = || AtomicU64::new(0);
    let (store, until) = (store(budget), Instant::now() + RUN);
    let shelf = Shelf { store, models, until, loads: zero(), holds: zero(), waits: zero(), changes: zero() };
    std::thread::scope(|scope| {
        for seed in 0..READERS {
            let shelf = &shelf;
            scope.spawn(move || shelf.reads(&mut Random(seed)));
        }
        scope.spawn(|| shelf.changes(&mut Random(99)));
        scope.spawn(|| shelf.watches(budget));
    });
    let Shelf { store, models, .. } = &shelf;
    let counts = [&shelf.loads, &shelf.holds, &shelf.waits, &shelf.changes].map(|count| count.load(Ordering::Relaxed));
    let io = store.io_report();
    eprintln!("loads, holds, waits, changes: {counts:?}; {io:?}");
    assert!(counts.iter().all(|count| *count > 0), "{counts:?}");
    assert!(io.evicted > 0 && io.served_from_ram > 0 && io.served_from_source > 0, "{io:?}");
    agrees(store);
    for (model, _) in models {
        let identity = model.identity();
        store.invalidate(identity.device, identity.inode);
    }
    is_empty(store);
    store.stop();
}

#[test]
fn every_byte_is_right_in_a_tiny_budget() {
    run(48 * MIB, [16 * MIB, 18 * MIB + 1, 9 * MIB + 4095, 16 * MIB, 12 * MIB + 5, 24 * MIB]);
}

#[test]
fn every_byte_is_right_where_some_models_fit() {
    run(96 * MIB, [33 * MIB, 64 * MIB + 77, 17 * MIB, 16 * MIB + 4096, 40 * MIB + 1, 20 * MIB]);
}
