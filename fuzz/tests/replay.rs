//! Runs every target over its corpus and over mutations of it.
//!
//! `WEIGHTFS_FUZZ_SECONDS` is for how long each target is given mutations; without it, a fixed number.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use weightfs_fuzz::mutate::{Random, mutate};
use weightfs_fuzz::{TARGETS, Target};

const MUTATIONS: u64 = 4000;

/// Corpora stay small: they are read by everyone who runs the tests.
const MOST_FILES: usize = 50;
const LONGEST_FILE: u64 = 64 << 10;

fn corpus(name: &str) -> Vec<(PathBuf, Vec<u8>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpora").join(name);
    let mut files: Vec<PathBuf> = fs::read_dir(&folder)
        .unwrap_or_else(|error| panic!("{}: {error}", folder.display()))
        .map(|entry| entry.expect("a directory entry").path())
        .collect();
    files.sort();
    files.into_iter().map(|path| (path.clone(), fs::read(path).expect("read"))).collect()
}

fn replay(target: &Target) -> u64 {
    let corpus = corpus(target.name);
    assert!(!corpus.is_empty(), "{} has a corpus", target.name);
    for (path, bytes) in &corpus {
        println!("{}", path.display());
        (target.run)(bytes);
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
        let kept = bytes.clone();
        if std::panic::catch_unwind(|| (target.run)(&bytes)).is_err() {
            let place = std::env::temp_dir().join(format!("weightfs-fuzz-{}", target.name));
            fs::write(&place, kept).expect("keep what failed");
            panic!("{} fails for the input in {} (seed {seed}, run {runs})", target.name, place.display());
        }
        runs += 1;
    }
    runs
}

#[test]
fn every_target_takes_its_corpus_and_what_comes_near_it() {
    for target in &TARGETS {
        println!("{}: {} mutations", target.name, replay(target));
    }
}

#[test]
fn corpora_belong_to_targets_and_stay_small() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpora");
    for entry in fs::read_dir(folder).expect("corpora").map(|entry| entry.expect("a directory entry")) {
        let name = entry.file_name().into_string().expect("UTF-8");
        assert!(name == "config" || TARGETS.iter().any(|target| target.name == name), "{name} is no target");
        let files = corpus(&name);
        assert!(files.len() <= MOST_FILES, "{name} has {} files", files.len());
        for (path, bytes) in files {
            assert!(bytes.len() as u64 <= LONGEST_FILE, "{} is too long", path.display());
        }
    }
}
