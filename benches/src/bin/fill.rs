//! How fast the fill engine brings a cold file into memory, against plain direct reads and a pool of buffered ones.
//!
//! Usage: `fill DIRECTORY [GIBIBYTES] [ROUNDS]`. Writes a file of that size there (2 GiB unless told otherwise),
//! reads it in each way by turns, with nothing of it in the page cache, and prints the median speed of each.

use std::error::Error;
use std::fs::File;
use std::io::Write;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{Advice, FallocateFlags, MemfdFlags, Mode, OFlags};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsconfig_set_string, fsmount, fsopen};
use weightfs::fill::{Class, Engine, EngineChoice, Job, SourceFile, Storage};
use weightfs::sys::mapping::Mapping;

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

type Outcome<T> = Result<T, Box<dyn Error>>;

/// A way to read `size` bytes of the file into the mapping.
type Way<'a> = (String, Box<dyn Fn(&Arc<Mapping>) -> Outcome<()> + 'a>);

fn main() -> Outcome<()> {
    let mut args = std::env::args().skip(1);
    let directory = args.next().ok_or("usage: fill DIRECTORY [GIBIBYTES] [ROUNDS]")?;
    let size = args.next().map_or(Ok(2), |text| text.parse::<u64>())? * GIB;
    let rounds = args.next().map_or(Ok(5), |text| text.parse::<usize>())?;
    let path = tempfile::Builder::new().prefix("weightfs-fill").tempfile_in(directory)?.into_temp_path();
    write(&path, size)?;

    let source = Arc::new(SourceFile::new(File::open(&path)?));
    let storage = Storage::of(&source);
    println!("{storage:?} storage, {} of {} GiB", if source.is_direct() { "direct" } else { "buffered" }, size / GIB);
    let mut ways: Vec<Way<'_>> = vec![
        ("direct, in order, 4 MiB".to_owned(), Box::new(|memory| in_order(&path, size, memory))),
        ("buffered, 8 threads x 2 MiB".to_owned(), Box::new(|memory| threads(&path, size, memory))),
    ];
    for class in [Class::Demand, Class::OpenWait, Class::Prefetch] {
        for choice in [EngineChoice::Uring, EngineChoice::Threads] {
            let engine = Engine::start(choice, storage)?;
            let name = format!("engine, {}, {class:?}", engine.kind());
            let source = &source;
            ways.push((name, Box::new(move |memory| fill(&engine, source, size, memory, class))));
        }
    }

    let mut speeds = vec![Vec::new(); ways.len()];
    for _ in 0..rounds {
        for ((_, way), speeds) in ways.iter().zip(&mut speeds) {
            rustix::fs::fadvise(source.file(), 0, None, Advice::DontNeed)?;
            let memory = memory(size)?;
            let start = Instant::now();
            way(&memory)?;
            speeds.push(size as f64 / 1e9 / start.elapsed().as_secs_f64());
            check(&memory, size);
        }
    }
    for ((name, _), speeds) in ways.iter().zip(&mut speeds) {
        speeds.sort_by(f64::total_cmp);
        let (slowest, fastest) = (speeds[0], speeds[speeds.len() - 1]);
        println!("{name:32} {:6.2} GB/s ({slowest:.2} to {fastest:.2})", speeds[speeds.len() / 2]);
    }
    for choice in [EngineChoice::Uring, EngineChoice::Threads] {
        rustix::fs::fadvise(source.file(), 0, None, Advice::DontNeed)?;
        let engine = Engine::start(choice, storage)?;
        let (alone, beside) = demand_beside_prefetch(&engine, &source, size)?;
        println!("2 MiB on demand, {}: {alone:.1?} alone, {beside:.1?} beside prefetch (medians)", engine.kind());
    }
    Ok(())
}

/// How long a demand job of 2 MiB takes, with nothing else going on and while the file is prefetched.
fn demand_beside_prefetch(engine: &Engine, source: &Arc<SourceFile>, size: u64) -> Outcome<(Duration, Duration)> {
    const TRIES: u64 = 20;
    let (wanted, memory) = (memory(TRIES * 2 * MIB)?, memory(size)?);
    let median = || -> Outcome<Duration> {
        let mut times = Vec::new();
        for i in 0..TRIES {
            let (send, answer) = channel();
            let (source, memory, start) = (Arc::clone(source), Arc::clone(&wanted), size - (i + 1) * 8 * MIB);
            let done = Box::new(move |result| send.send(result).unwrap_or_default());
            let (bytes, at, class) = (start..start + 2 * MIB, (i * 2 * MIB) as usize, Class::Demand);
            let began = Instant::now();
            engine.submit(Job { source, bytes, memory, at, class, ticket: None, done });
            answer.recv()??;
            times.push(began.elapsed());
        }
        times.sort();
        Ok(times[times.len() / 2])
    };
    let alone = median()?;
    let beside = thread::scope(|scope| {
        let bulk =
            scope.spawn(|| fill(engine, source, size, &memory, Class::Prefetch).map_err(|error| error.to_string()));
        let beside = median();
        bulk.join().map_err(|_| "prefetch panicked")??;
        beside
    })?;
    Ok((alone, beside))
}

/// Each 8 bytes hold their own place in the file.
fn write(path: &Path, size: u64) -> Outcome<()> {
    let mut file = File::create(path)?;
    for start in (0..size).step_by(MIB as usize) {
        let bytes: Vec<u8> = (start..start + MIB).step_by(8).flat_map(u64::to_le_bytes).collect();
        file.write_all(&bytes)?;
    }
    Ok(file.sync_all()?)
}

/// Looks at one place in each block.
fn check(memory: &Mapping, size: u64) {
    for at in (0..size).step_by(4096) {
        let place = at as usize..at as usize + 8;
        assert_eq!(memory.bytes(place), at.to_le_bytes(), "wrong bytes at {at}");
    }
}

/// New memory whose pages are there already, so that only reading is measured: 2 MiB pages where we may have them.
fn memory(size: u64) -> Outcome<Arc<Mapping>> {
    let file =
        huge_file().or_else(|_| rustix::fs::memfd_create("weightfs-fill", MemfdFlags::CLOEXEC).map(File::from))?;
    rustix::fs::fallocate(file.as_fd(), FallocateFlags::empty(), 0, size)?;
    Ok(Arc::new(Mapping::shared(&file, size as usize)?))
}

fn huge_file() -> rustix::io::Result<File> {
    let tmpfs = fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_set_string(tmpfs.as_fd(), "huge", "always")?;
    fsconfig_create(tmpfs.as_fd())?;
    let root = fsmount(tmpfs.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())?;
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    rustix::fs::openat(root, ".", flags, Mode::RUSR | Mode::WUSR).map(File::from)
}

fn in_order(path: &Path, size: u64, memory: &Mapping) -> Outcome<()> {
    let file = File::options().read(true).custom_flags(OFlags::DIRECT.bits() as i32).open(path)?;
    for start in (0..size).step_by(4 * MIB as usize) {
        file.read_exact_at(memory.target(start as usize..(start + 4 * MIB) as usize), start)?;
    }
    Ok(())
}

fn threads(path: &Path, size: u64, memory: &Mapping) -> Outcome<()> {
    let (file, next) = (File::open(path)?, AtomicU64::new(0));
    let read = || -> std::io::Result<()> {
        loop {
            let start = next.fetch_add(2 * MIB, Ordering::Relaxed);
            if start >= size {
                return Ok(());
            }
            file.read_exact_at(memory.target(start as usize..(start + 2 * MIB) as usize), start)?;
        }
    };
    thread::scope(|scope| {
        let readers: Vec<_> = (0..8).map(|_| scope.spawn(read)).collect();
        readers.into_iter().try_for_each(|reader| reader.join().map_err(|_| "a reader panicked")?.map_err(Box::from))
    })
}

/// As the store does: a job for each tensor, here of 64 MiB.
fn fill(engine: &Engine, source: &Arc<SourceFile>, size: u64, memory: &Arc<Mapping>, class: Class) -> Outcome<()> {
    let (send, answers) = channel();
    for start in (0..size).step_by(64 * MIB as usize) {
        let send = send.clone();
        let (source, memory) = (Arc::clone(source), Arc::clone(memory));
        let (bytes, at) = (start..start + 64 * MIB, start as usize);
        let done = Box::new(move |result| send.send(result).unwrap_or_default());
        engine.submit(Job { source, bytes, memory, at, class, ticket: None, done });
    }
    drop(send);
    Ok(answers.into_iter().try_for_each(|result| result)?)
}
