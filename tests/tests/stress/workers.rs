//! The clients of the stress test.

use std::collections::VecDeque;
use std::fmt;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use weightfs_tests::data::Random;
use weightfs_tests::maps::{Map, MapKind};
use weightfs_tests::pages::PAGE;

use crate::library::{Habit, Library, Model};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Writes new generations.
    Writer,
    /// Opens and reads by pread, now and then for writing too.
    Reader,
    /// Maps, reads, unmaps.
    Mapper,
    /// Keeps files open and mapped for long, and looks at them again and again.
    Holder,
}

/// Who takes part.
pub const CAST: [Kind; 8] =
    [Kind::Writer, Kind::Writer, Kind::Reader, Kind::Reader, Kind::Reader, Kind::Mapper, Kind::Mapper, Kind::Holder];

/// What happened, for all threads together.
#[derive(Default)]
pub struct Report {
    writes: AtomicU64,
    opens: AtomicU64,
    maps: AtomicU64,
    pages: AtomicU64,
    failures: Mutex<Vec<String>>,
}

impl Report {
    pub fn failures(&self) -> Vec<String> {
        self.failures.lock().expect("no thread panicked").clone()
    }

    pub fn pages(&self) -> u64 {
        self.pages.load(Ordering::Relaxed)
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [writes, opens, maps, pages] =
            [&self.writes, &self.opens, &self.maps, &self.pages].map(|n| n.load(Ordering::Relaxed));
        write!(f, "{writes} generations written, {opens} opens, {maps} maps, {pages} pages checked")
    }
}

/// Acts until `end`, or until somebody met a fault.
pub fn run(kind: Kind, library: &Library, report: &Report, mut random: Random, end: Instant) {
    let mut held = VecDeque::new();
    while Instant::now() < end && report.failures().is_empty() {
        let model = library.pick(&mut random);
        let result = match kind {
            Kind::Writer => write(model, &mut random, report),
            Kind::Reader => read(model, &mut random, report),
            Kind::Mapper => map(model, &mut random, report),
            Kind::Holder => hold(model, &mut held, &mut random, report),
        };
        if let Err(fault) = result {
            report.failures.lock().expect("no thread panicked").push(format!("{kind:?}: {fault}"));
        }
    }
}

fn write(model: &Model, random: &mut Random, report: &Report) -> Result<(), String> {
    model.write_next(random).map_err(|error| format!("writing file {}: {error}", model.id))?;
    report.writes.fetch_add(1, Ordering::Relaxed);
    // So that most files are left alone for longer than the two seconds after which they may be kept.
    std::thread::sleep(Duration::from_millis(200 + random.below(300)));
    Ok(())
}

/// Opens `model` and returns the file, and the oldest generation that it may show.
fn open(model: &Model, random: &mut Random, report: &Report) -> Result<(File, u64), String> {
    let oldest = model.oldest();
    let for_writing = random.chance(6);
    let file = OpenOptions::new()
        .read(true)
        .write(for_writing)
        .open(model.path())
        .map_err(|error| format!("opening file {} (for writing: {for_writing}): {error}", model.id))?;
    report.opens.fetch_add(1, Ordering::Relaxed);
    Ok((file, oldest))
}

fn read(model: &Model, random: &mut Random, report: &Report) -> Result<(), String> {
    let _calm = (model.habit == Habit::Overwritten).then(|| model.lock.read().expect("no thread panicked"));
    let (file, oldest) = open(model, random, report)?;
    let mut generation = None;
    for _ in 0..1 + random.below(6) {
        let first = random.below(model.pages_of(oldest));
        let seen = read_pages(model, &file, oldest, first, 1 + random.below(600), report)?;
        check_same(model, &mut generation, seen)?;
    }
    if model.habit == Habit::Replaced {
        check_length(model, &file, generation)?;
    }
    Ok(())
}

fn read_pages(
    model: &Model,
    file: &File,
    oldest: u64,
    first: u64,
    count: u64,
    report: &Report,
) -> Result<Option<(u64, u64)>, String> {
    let mut bytes = vec![0; count as usize * PAGE];
    let n = file.read_at(&mut bytes, first * PAGE as u64).map_err(|error| {
        format!("reading {count} pages from {first} of file {} ({:?}): {error}", model.id, model.habit)
    })?;
    report.pages.fetch_add((n / PAGE) as u64, Ordering::Relaxed);
    model.check(oldest, first, &bytes[..n])
}

/// One open file of a model that is only replaced or overwritten shows one generation.
fn check_same(model: &Model, known: &mut Option<u64>, seen: Option<(u64, u64)>) -> Result<(), String> {
    let Some((generation, _)) = seen.filter(|_| model.habit != Habit::Rewritten) else { return Ok(()) };
    match *known.get_or_insert(generation) {
        same if same == generation => Ok(()),
        other => Err(format!(
            "file {} ({:?}): an open file showed generation {other}, then {generation}",
            model.id, model.habit
        )),
    }
}

fn check_length(model: &Model, file: &File, generation: Option<u64>) -> Result<(), String> {
    let length = Model::length(file).map_err(|error| format!("fstat of file {}: {error}", model.id))?;
    match generation {
        Some(generation) if model.pages_of(generation) != length => Err(format!(
            "file {}: {length} pages long, generation {generation} has {}",
            model.id,
            model.pages_of(generation)
        )),
        _ => Ok(()),
    }
}

fn map(model: &Model, random: &mut Random, report: &Report) -> Result<(), String> {
    // Truncation under a mapping would end this process, in a plain folder too.
    let _calm = (model.habit != Habit::Replaced).then(|| model.lock.read().expect("no thread panicked"));
    let Some(held) = Held::open(model, random, report)? else { return Ok(()) };
    for _ in 0..3 {
        held.look(model, random, report)?;
    }
    Ok(())
}

fn hold(model: &Model, held: &mut VecDeque<(u64, Held)>, random: &mut Random, report: &Report) -> Result<(), String> {
    if model.habit == Habit::Replaced
        && let Some(one) = Held::open(model, random, report)?
    {
        held.push_back((model.id, one));
    }
    if held.len() > 10 {
        held.pop_front();
    }
    for (id, one) in held.iter().filter(|(id, _)| *id == model.id) {
        one.look(model, random, report).map_err(|fault| format!("held file {id}: {fault}"))?;
    }
    std::thread::sleep(Duration::from_millis(20));
    Ok(())
}

/// A mapping, and sometimes the file that it was made from.
struct Held {
    map: Map,
    file: Option<File>,
    oldest: u64,
    generation: u64,
}

impl Held {
    fn open(model: &Model, random: &mut Random, report: &Report) -> Result<Option<Held>, String> {
        let (file, oldest) = open(model, random, report)?;
        let length = Model::length(&file).map_err(|error| format!("fstat of file {}: {error}", model.id))?;
        if length == 0 {
            return Err(format!("file {} ({:?}) is empty", model.id, model.habit));
        }
        let kind = *random.pick(&[MapKind::Private, MapKind::Shared]);
        let map = Map::new(&file, length as usize * PAGE, kind)
            .map_err(|error| format!("mapping file {} ({:?}, {kind:?}): {error}", model.id, model.habit))?;
        report.maps.fetch_add(1, Ordering::Relaxed);
        let mut first = vec![0; PAGE];
        map.read(0, &mut first);
        let Some((generation, _)) = model.check(oldest, 0, &first)? else { return Ok(None) };
        if model.pages_of(generation) != length {
            return Err(format!("file {}: a map of {length} pages shows generation {generation}", model.id));
        }
        Ok(Some(Held { map, file: random.chance(2).then_some(file), oldest, generation }))
    }

    fn look(&self, model: &Model, random: &mut Random, report: &Report) -> Result<(), String> {
        let pages = (self.map.len() / PAGE) as u64;
        let first = random.below(pages);
        let count = (pages - first).min(1 + random.below(300));
        let mut bytes = vec![0; count as usize * PAGE];
        self.map.read(first as usize * PAGE, &mut bytes);
        report.pages.fetch_add(count, Ordering::Relaxed);
        check_same(model, &mut Some(self.generation), model.check(self.oldest, first, &bytes)?)?;
        if let Some(file) = &self.file {
            let seen = read_pages(model, file, self.oldest, first, count, report)?;
            check_same(model, &mut Some(self.generation), seen)?;
        }
        Ok(())
    }
}
