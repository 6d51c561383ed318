//! Everything at once for long, for `WEIGHTFS_SOAK_SECONDS` (20 minutes): the cast of the stress test, whoever steers
//! from the command line, walks, and a second mount whose source fails at random. Nothing may grow: memory, descriptors,
//! threads, what the arena holds.

use std::fmt;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

use weightfs_tests::data::{self, Random};
use weightfs_tests::requirements::{Need, met};
use weightfs_tests::system::{shared_memory_in_use, temporary_folder, wait_until};
use weightfs_tests::{Faulty, Mount};

use crate::MIB;
use crate::library::Library;
use crate::workers::{self, Report};

/// Models of the faulty source: seeds and sizes.
const FAULTY: [(u64, u64); 3] = [(101, 9 * MIB + 5), (102, 20 * MIB), (103, 3 * MIB - 1)];

/// Of small pieces that are freed and taken again, some memory is always between uses.
const SLACK: u64 = 24 * MIB;

fn seconds() -> u64 {
    std::env::var("WEIGHTFS_SOAK_SECONDS").ok().and_then(|text| text.parse().ok()).unwrap_or(1200)
}

/// What the daemon takes of the machine.
#[derive(Clone, Copy, Debug)]
struct Use {
    /// Bytes, without the arena.
    memory: u64,
    descriptors: usize,
    threads: u64,
}

impl Use {
    fn of(process: u64) -> Use {
        let status = fs::read_to_string(format!("/proc/{process}/status")).expect("the worker is there");
        let number = |name: &str| {
            let line = status.lines().find(|line| line.starts_with(name)).expect("Linux says so");
            line.split_whitespace().nth(1).and_then(|text| text.parse::<u64>().ok()).expect("a number")
        };
        let descriptors = fs::read_dir(format!("/proc/{process}/fd")).expect("the worker is there").count();
        Use { memory: number("RssAnon:") << 10, descriptors, threads: number("Threads:") }
    }

    /// The larger of each.
    fn max(self, other: Use) -> Use {
        Use {
            memory: self.memory.max(other.memory),
            descriptors: self.descriptors.max(other.descriptors),
            threads: self.threads.max(other.threads),
        }
    }
}

impl fmt::Display for Use {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} MiB, {} descriptors, {} threads", self.memory / MIB, self.descriptors, self.threads)
    }
}

/// Pins, prefetches, evicts and asks, as people do.
fn steer(mount: &Mount, library: &Library, random: &mut Random, end: Instant) {
    while Instant::now() < end {
        let path = library.pick(random).path().to_str().expect("UTF-8").to_owned();
        let command = *random.pick(&["pin", "unpin", "unpin", "prefetch", "evict", "evict", "explain"]);
        // A name may be between two generations, a pin too large: both are answers.
        mount.run(&[command, &path]);
        std::thread::sleep(Duration::from_millis(100));
    }
    for model in &library.models {
        mount.run(&["unpin", model.path().to_str().expect("UTF-8")]);
    }
}

fn walk(mount: &Path, end: Instant) -> Result<(), String> {
    while Instant::now() < end {
        for entry in fs::read_dir(mount).map_err(|error| format!("list: {error}"))? {
            let entry = entry.map_err(|error| format!("list: {error}"))?;
            // Files come and go.
            let _ = entry.metadata();
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// Reads from the source that fails: right bytes or an error.
fn doubt(mount: &Path, random: &mut Random, end: Instant) -> Result<(), String> {
    while Instant::now() < end {
        let (seed, size) = *random.pick(&FAULTY);
        let Ok(file) = File::open(mount.join(format!("{seed}.gguf"))) else { continue };
        for _ in 0..random.below(20) {
            let offset = random.below(size);
            let mut bytes = vec![0; 1 + random.below(MIB) as usize];
            if let Ok(length) = file.read_at(&mut bytes, offset) {
                data::check(seed, offset, &bytes[..length])?;
            }
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

#[test]
#[ignore = "takes twenty minutes: make test-long"]
fn nothing_grows() {
    if !met(&[Need::Mount, Need::Root]) {
        return;
    }
    let mut random = Random::from_environment();
    let (source, backing, places) =
        (temporary_folder("source"), temporary_folder("backing"), ["a", "b"].map(temporary_folder));
    for (seed, size) in FAULTY {
        data::write_file(&backing.path().join(format!("{seed}.gguf")), seed, size);
    }
    let shared_before = shared_memory_in_use();
    let faulty = Faulty::over(backing.path());
    let text = |path: &Path| path.to_str().expect("UTF-8").to_owned();
    let also = format!("{}:{}", text(faulty.path()), text(places[1].path()));
    let (from, to) = (text(source.path()), text(places[0].path()));
    let arguments = ["--ram", "64M", "--open-wait", "300ms", "--also", &also, &from, &to];
    let mount = Mount::start_raw(source.path(), places[0].path(), &arguments, None);
    let doubtful = places[1].path();
    let answers = wait_until(Duration::from_secs(10), || doubtful.join("101.gguf").exists());
    assert!(answers, "the second mount answers:\n{}", mount.log());
    faulty.script.at_random(random.fork(), 20);
    let library = Library::create(&mount, source.path());
    let process = mount.status().number("/worker/pid");

    let report = Report::default();
    let start = Instant::now();
    let total = Duration::from_secs(seconds());
    let end = start + total;
    // By the first third everything has been as large as it should get.
    let (mut early, mut late) = (Use::of(process), Use::of(process));
    let (mut faults, mut most) = (Vec::new(), 0);
    std::thread::scope(|scope| {
        let (library, report, mount) = (&library, &report, &mount);
        for kind in workers::CAST {
            let random = random.fork();
            scope.spawn(move || workers::run(kind, library, report, random, end));
        }
        let mut steering = random.fork();
        scope.spawn(move || steer(mount, library, &mut steering, end));
        let checkers = (0..2)
            .map(|_| random.fork())
            .map(|mut random| scope.spawn(move || doubt(doubtful, &mut random, end)))
            .chain([scope.spawn(move || walk(mount.path(), end))])
            .collect::<Vec<_>>();
        while Instant::now() < end && report.failures().is_empty() {
            std::thread::sleep(Duration::from_millis(500));
            let now = Use::of(process);
            let side = if start.elapsed() < total / 3 { &mut early } else { &mut late };
            *side = side.max(now);
            let status = mount.status();
            most = most.max(status.resident() + status.client_held());
        }
        faults.extend(checkers.into_iter().filter_map(|checker| checker.join().expect("no panic").err()));
    });
    println!("{report}; {} faults injected", faulty.script.injected());
    println!("first third: {early}\nafterwards: {late}\nthe arena held up to {} MiB", most / MIB);
    faults.extend(report.failures());
    assert!(faults.is_empty(), "{} faults; the first: {:#?}", faults.len(), &faults[..faults.len().min(5)]);
    assert!(late.memory <= early.memory + SLACK, "memory grows: {early}, then {late}");
    assert!(late.descriptors <= early.descriptors + early.descriptors / 4 + 32, "descriptors: {early}, then {late}");
    assert!(late.threads <= early.threads + 48, "threads: {early}, then {late}");

    faulty.script.clear();
    library.delete(&mount);
    for (seed, _) in FAULTY {
        mount.run(&["evict", doubtful.join(format!("{seed}.gguf")).to_str().expect("UTF-8")]);
    }
    let empty = || mount.status().client_held() == 0 && mount.status().resident() == 0;
    assert!(wait_until(Duration::from_secs(30), empty), "the arena becomes empty: {:#}", mount.status().0);
    let output = mount.run(&["unmount", doubtful.to_str().expect("UTF-8")]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    mount.stop();
    let freed = || shared_memory_in_use() <= shared_before + 8 * MIB;
    assert!(wait_until(Duration::from_secs(10), freed), "shared memory is not given back");
}
