//! Programs that read, map, load and write while workers come and go, and check all that they see.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use weightfs_tests::data::{self, Random};
use weightfs_tests::load::load;
use weightfs_tests::maps::{Map, MapKind};

/// Bytes of the models, each with its number as seed. Some fit the budget of the tests together, all do not.
pub const MODELS: [u64; 5] = [5 << 20, 9 << 20, (12 << 20) + 5, 17 << 20, 24 << 20];
const PIECE: usize = 1 << 20;

/// What the clients met.
#[derive(Default)]
pub struct Report {
    stop: AtomicBool,
    pub rounds: AtomicU64,
    /// Microseconds of the longest read since it was last looked at.
    longest: AtomicU64,
    faults: Mutex<Vec<String>>,
    /// Nobody may be left who has a descriptor of what is open: files that have no name and are not in RAM are lost.
    loses_nameless: bool,
}

impl Report {
    pub fn where_everything_dies() -> Self {
        Self { loses_nameless: true, ..Self::default() }
    }

    pub fn faults(&self) -> Vec<String> {
        self.faults.lock().expect("no client panicked").clone()
    }

    pub fn stop(&self) {
        self.stop.store(true, Ordering::Release);
    }

    /// The longest read since the last call.
    pub fn take_longest(&self) -> Duration {
        Duration::from_micros(self.longest.swap(0, Ordering::AcqRel))
    }

    fn timed<R>(&self, operation: impl FnOnce() -> R) -> R {
        let begun = Instant::now();
        let result = operation();
        self.longest.fetch_max(begun.elapsed().as_micros() as u64, Ordering::AcqRel);
        result
    }
}

/// Makes the models, before they are mounted.
pub fn make_models(source: &Path) {
    for (seed, size) in (0..).zip(MODELS) {
        data::write_file(&source.join(name(seed)), seed, size);
    }
    data::write_safetensors(&source.join("loaded.safetensors"), 77, 10);
    fs::create_dir(source.join("work")).expect("mkdir");
}

fn name(seed: u64) -> String {
    format!("model-{seed}.safetensors")
}

/// Runs four readers and a writer on `mounted` while `meanwhile` does what it does, and stops them.
pub fn with_clients(mounted: &Path, report: &Report, meanwhile: impl FnOnce()) {
    std::thread::scope(|scope| {
        type Client = fn(&Path, &Report, &mut Random) -> Result<(), String>;
        let clients: [(&str, Client); 5] =
            [("pread", pread), ("private map", private), ("shared map", shared), ("load", loads), ("writer", write)];
        let mut random = Random::from_environment();
        for (what, client) in clients {
            let mut random = random.fork();
            scope.spawn(move || {
                while !report.stop.load(Ordering::Acquire) && report.faults().is_empty() {
                    if let Err(fault) = client(mounted, report, &mut random) {
                        report.faults.lock().expect("no client panicked").push(format!("{what}: {fault}"));
                    }
                    report.rounds.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        // Also where that fails: else the clients would never end.
        let _stop = StopAtEnd(report);
        meanwhile();
    });
}

struct StopAtEnd<'a>(&'a Report);

impl Drop for StopAtEnd<'_> {
    fn drop(&mut self) {
        self.0.stop();
    }
}

fn said<T>(what: &str, result: io::Result<T>) -> Result<T, String> {
    result.map_err(|error| format!("{what}: {error}"))
}

fn some_model(random: &mut Random) -> (u64, u64) {
    let seed = random.below(MODELS.len() as u64);
    (seed, MODELS[seed as usize])
}

/// Opens and reads from the front to the end, as most loaders do.
fn pread(mounted: &Path, report: &Report, random: &mut Random) -> Result<(), String> {
    let (seed, size) = some_model(random);
    let file = said("open", report.timed(|| File::open(mounted.join(name(seed)))))?;
    let length = said("stat", file.metadata())?.len();
    if length != size {
        return Err(format!("model {seed} has {length} bytes"));
    }
    let mut piece = vec![0; PIECE];
    let mut offset = 0;
    while offset < size {
        let found = said("pread", report.timed(|| file.read_at(&mut piece, offset)))?;
        if found == 0 {
            return Err(format!("model {seed} ends at {offset}"));
        }
        data::check(seed, offset, &piece[..found]).map_err(|fault| format!("model {seed}: {fault}"))?;
        offset += found as u64;
    }
    Ok(())
}

fn private(mounted: &Path, report: &Report, random: &mut Random) -> Result<(), String> {
    map(mounted, report, random, MapKind::Private)
}

fn shared(mounted: &Path, report: &Report, random: &mut Random) -> Result<(), String> {
    map(mounted, report, random, MapKind::Shared)
}

/// Maps, closes, and looks at places all over the file.
fn map(mounted: &Path, report: &Report, random: &mut Random, kind: MapKind) -> Result<(), String> {
    let (seed, size) = some_model(random);
    let file = said("open", report.timed(|| File::open(mounted.join(name(seed)))))?;
    let map = said("mmap", Map::new(&file, size as usize, kind))?;
    drop(file);
    let mut bytes = vec![0; 64 << 10];
    for _ in 0..40 {
        let offset = random.below(size - bytes.len() as u64);
        report.timed(|| map.read(offset as usize, &mut bytes));
        data::check(seed, offset, &bytes).map_err(|fault| format!("model {seed}, mapped: {fault}"))?;
    }
    Ok(())
}

fn loads(mounted: &Path, report: &Report, _: &mut Random) -> Result<(), String> {
    // It panics on any error, which fails the test.
    report.timed(|| load(&mounted.join("loaded.safetensors")));
    std::thread::sleep(Duration::from_millis(5));
    Ok(())
}

/// Everything that changes names and content, each checked at once.
fn write(mounted: &Path, report: &Report, random: &mut Random) -> Result<(), String> {
    let work = mounted.join("work");
    let at = |name: &str| work.join(name);
    let seed = 1000 + random.below(1000);
    let size = 1 + random.below(3 << 20) as usize;
    let content = data::bytes(seed, 0, size);
    let new = at("new");
    let mut file = said("create", OpenOptions::new().read(true).write(true).create_new(true).mode(0o444).open(&new))?;
    for piece in content.chunks(300_000) {
        said("write", file.write_all(piece))?;
    }
    if random.chance(4) {
        said("fsync", file.sync_all())?;
    }
    check(&file, seed, size)?;
    drop(file);
    append(&at("log"), random)?;
    said("rename", fs::rename(&new, at("current")))?;
    said("link", fs::hard_link(at("current"), at("second")))?;
    let open = said("open the second name", File::open(at("second")))?;
    said("unlink", fs::remove_file(at("second")))?;
    check(&open, seed, size)?;
    // Gone from sight, and still open.
    said("rename over it", fs::write(at("other"), b"other").and_then(|()| fs::rename(at("other"), at("current"))))?;
    match read_back(&open, size) {
        Err(error) if report.loses_nameless && Errno::from_io_error(&error) == Some(Errno::BADF) => {}
        found => compare(seed, &said("read back", found)?)?,
    }
    said("mkdir", fs::create_dir(at("folder")))?;
    said("symlink", std::os::unix::fs::symlink("current", at("folder/link")))?;
    let there = said("readdir", fs::read_dir(at("folder")))?.count();
    if there != 1 || said("readlink", fs::read_link(at("folder/link")))? != Path::new("current") {
        return Err(format!("{there} entries where there is one"));
    }
    said("unlink the link", fs::remove_file(at("folder/link")))?;
    said("rmdir", fs::remove_dir(at("folder")))?;
    said("unlink", fs::remove_file(at("current")))?;
    match fs::metadata(at("current")) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => Err(format!("an unlinked file is there: {other:?}")),
    }
}

fn check(file: &File, seed: u64, size: usize) -> Result<(), String> {
    compare(seed, &said("read back", read_back(file, size))?)
}

fn read_back(file: &File, size: usize) -> io::Result<Vec<u8>> {
    let mut found = vec![0; size];
    file.read_exact_at(&mut found, 0)?;
    Ok(found)
}

fn compare(seed: u64, found: &[u8]) -> Result<(), String> {
    data::check(seed, 0, found).map_err(|fault| format!("written: {fault}"))
}

/// A file that grows by whole words, none of them twice.
fn append(path: &Path, random: &mut Random) -> Result<(), String> {
    let mut log = said("open to append", OpenOptions::new().append(true).create(true).open(path))?;
    let before = said("stat", log.metadata())?.len();
    let words = 1 + random.below(20);
    for word in 0..words {
        said("append", log.write_all(&(before / 8 + word).to_le_bytes()))?;
    }
    let found = said("read", fs::read(path))?;
    let expected: Vec<u8> = (0..before / 8 + words).flat_map(u64::to_le_bytes).collect();
    if found != expected {
        return Err(format!("a file that was appended to has {} bytes instead of {}", found.len(), expected.len()));
    }
    Ok(())
}
