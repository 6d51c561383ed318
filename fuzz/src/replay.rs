//! Runs a target over its corpus and over mutations of it.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::mutate::{Random, mutate};

/// Without a time, a fixed number.
const MUTATIONS: u64 = 4000;

/// The files of the corpus `name` and what is in them.
///
/// # Panics
/// Where there is none.
pub fn corpus(name: &str) -> Vec<(PathBuf, Vec<u8>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpora").join(name);
    let mut files: Vec<PathBuf> = fs::read_dir(&folder)
        .unwrap_or_else(|error| panic!("{}: {error}", folder.display()))
        .map(|entry| entry.expect("a directory entry").path())
        .collect();
    files.sort();
    files.into_iter().map(|path| (path.clone(), fs::read(path).expect("read"))).collect()
}

/// How many mutations of the corpus `name` were run. `WEIGHTFS_FUZZ_SECONDS` is for how long.
///
/// # Panics
/// Where `run` does, with the place of the input.
pub fn replay(name: &str, run: impl Fn(&[u8]) + std::panic::RefUnwindSafe) -> u64 {
    let corpus = corpus(name);
    assert!(!corpus.is_empty(), "{name} has a corpus");
    for (path, bytes) in &corpus {
        println!("{}", path.display());
        run(bytes);
    }
    let seconds = std::env::var("WEIGHTFS_FUZZ_SECONDS").ok().and_then(|text| text.parse().ok());
    let end = seconds.map(|seconds| Instant::now() + Duration::from_secs(seconds));
    // Where time decides, every run tries others.
    let seed = end.map_or(1, |_| std::time::UNIX_EPOCH.elapsed().map_or(1, |time| time.as_nanos() as u64));
    let mut random = Random(seed);
    let mut runs = 0;
    while end.map_or(runs < MUTATIONS, |end| Instant::now() < end) {
        let [one, other] = [(); 2].map(|()| &corpus[random.below(corpus.len())].1);
        let bytes = mutate(&mut random, one, other);
        if std::panic::catch_unwind(|| run(&bytes)).is_err() {
            let place = std::env::temp_dir().join(format!("weightfs-fuzz-{name}"));
            fs::write(&place, bytes).expect("keep what failed");
            panic!("{name} fails for the input in {} (seed {seed}, run {runs})", place.display());
        }
        runs += 1;
    }
    runs
}
