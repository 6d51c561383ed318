//! Everything at once: opens for reading and writing, O_TRUNC, private and shared maps, renames over, changes behind
//! the mount, evictions that are asked for, and reclaim, for `WEIGHTFS_STRESS_SECONDS` (20). A checker knows every generation's bytes: no read may
//! fail, be older than the last close before its open, or be of two generations within a page.

mod library;
mod soak;
mod workers;

use std::fs;
use std::time::{Duration, Instant};

use weightfs_tests::Mount;
use weightfs_tests::data::Random;
use weightfs_tests::requirements::{Need, met};
use weightfs_tests::system::{shared_memory_in_use, temporary_folder, wait_until};

use library::Library;
use workers::Report;

const MIB: u64 = 1 << 20;

/// About half of the library.
const OPTIONS: [&str; 4] = ["--ram", "48M", "--open-wait", "300ms"];

fn seconds() -> u64 {
    std::env::var("WEIGHTFS_STRESS_SECONDS").ok().and_then(|text| text.parse().ok()).unwrap_or(20)
}

#[test]
fn everything_at_once() {
    if !met(&[Need::Mount]) {
        return;
    }
    let mut random = Random::from_environment();
    let source = temporary_folder("source");
    let shared_before = shared_memory_in_use();
    let mount = Mount::start(source.path(), &OPTIONS);
    let library = Library::create(&mount, source.path());
    let open_files = || {
        let worker = mount.status().number("/worker/pid");
        fs::read_dir(format!("/proc/{worker}/fd")).expect("the worker is there").count()
    };
    let open_before = open_files();

    let report = Report::default();
    let end = Instant::now() + Duration::from_secs(seconds());
    std::thread::scope(|scope| {
        for kind in workers::CAST {
            let (library, report, random) = (&library, &report, random.fork());
            scope.spawn(move || workers::run(kind, library, report, random, end));
        }
        scope.spawn(|| {
            while Instant::now() < end && report.failures().is_empty() {
                mount.status();
                std::thread::sleep(Duration::from_millis(200));
            }
        });
        let mut evicting = random.fork();
        let (library, report, mount) = (&library, &report, &mount);
        scope.spawn(move || {
            while Instant::now() < end && report.failures().is_empty() {
                let path = library.pick(&mut evicting).path().to_str().expect("UTF-8").to_owned();
                // A name may be between two generations, and somebody may hold it: both are answers.
                mount.run(&["evict", &path]);
                std::thread::sleep(Duration::from_millis(100));
            }
        });
    });

    let status = mount.status();
    println!("{report}\n{:#}", status.0);
    let failures = report.failures();
    assert!(failures.is_empty(), "{} failures; the first: {:#?}", failures.len(), &failures[..failures.len().min(10)]);
    assert!(report.pages() > 10_000, "the checker saw too little: {report}");
    assert!(status.number("/io/stream_opens") > 0, "some files were streamed: {:#}", status.0);
    if status.passthrough() {
        assert!(status.number("/io/passthrough_opens") > 0, "some files were resident: {:#}", status.0);
    }

    library.delete(&mount);
    let empty = || {
        let status = mount.status();
        status.client_held() == 0 && status.resident() == 0
    };
    assert!(
        wait_until(Duration::from_secs(20), empty),
        "the arena of an empty folder is empty: {:#}",
        mount.status().0
    );
    assert!(
        wait_until(Duration::from_secs(5), || open_files() <= open_before + 32),
        "the worker keeps {} files open, it started with {open_before}",
        open_files()
    );
    mount.stop();
    let freed = || shared_memory_in_use() <= shared_before + 8 * MIB;
    assert!(
        wait_until(Duration::from_secs(10), freed),
        "shared memory: {} MiB before, {} MiB after",
        shared_before / MIB,
        shared_memory_in_use() / MIB
    );
}
