//! Runs every target over its corpus and over mutations of it.

use std::fs;
use std::path::Path;

use weightfs_fuzz::TARGETS;
use weightfs_fuzz::replay::{corpus, replay};

/// Corpora stay small: they are read by everyone who runs the tests.
const MOST_FILES: usize = 50;
const LONGEST_FILE: u64 = 64 << 10;

#[test]
fn every_target_takes_its_corpus_and_what_comes_near_it() {
    for target in &TARGETS {
        println!("{}: {} mutations", target.name, replay(target.name, target.run));
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
