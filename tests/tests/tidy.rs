//! The habits of the code that a compiler does not check: sizes of files, arrows between layers, purity, safety notes.
//! The lists of exceptions may only shrink.

use std::fs;
use std::path::PathBuf;

/// The longest that a source file may be, its tests included.
const LONGEST: usize = 500;

/// Files that are longer than they may be, each with its present length. Shorten them; add none.
const TOO_LONG: [(&str, usize); 0] = [];

/// Files outside of `src/sys` that may say `unsafe`.
const UNSAFE_HELPERS: [&str; 2] = ["tests/src/longterm.rs", "tests/src/maps.rs"];

/// Modules of the core that compute and do nothing else.
const PURE: [&str; 7] = ["format", "extent", "residency", "pattern", "predict", "pressure", "trace"];

/// What a pure module must not touch: the machine, the clock, other threads.
const IMPURE: [&str; 12] = [
    "std::fs",
    "std::net",
    "std::env",
    "std::process",
    "std::thread",
    "Instant",
    "SystemTime",
    "crate::sys",
    "rustix",
    "nix::",
    "libc::",
    "io_uring",
];

/// Whose code may not mention what, by folder.
const ARROWS: [(&str, &[&str]); 3] = [
    ("src", &["fuser", "weightfs_mount", "weightfs_cli", "clap"]),
    ("mount", &["weightfs_cli", "clap"]),
    ("benches", &["weightfs_cli"]),
];

fn root() -> PathBuf {
    weightfs_tests::python::workspace()
}

/// A source file: its path from the root, and its text.
struct Source {
    path: String,
    text: String,
}

impl Source {
    /// The lines with their numbers, without comments.
    fn code(&self) -> impl Iterator<Item = (usize, &str)> {
        self.text.lines().enumerate().map(|(index, line)| (index + 1, line.split("//").next().unwrap_or_default()))
    }

    /// The same, without the tests that a file ends with.
    fn shipped_code(&self) -> impl Iterator<Item = (usize, &str)> {
        let is_test_file = self.path.ends_with("/tests.rs") || self.path.contains("/tests/");
        self.code().take_while(move |(_, line)| !is_test_file && !line.trim_start().starts_with("#[cfg(test)]"))
    }
}

fn sources(ending: &str) -> Vec<Source> {
    let mut found = Vec::new();
    let mut folders: Vec<PathBuf> =
        ["src", "mount", "cli", "tests", "benches", "fuzz", "pycompat"].map(|name| root().join(name)).to_vec();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).into_iter().flatten().map(|entry| entry.expect("a directory entry")) {
            let path = entry.path();
            let name = entry.file_name();
            if path.is_dir() {
                if !["target", "__pycache__", "node_modules"].contains(&name.to_str().unwrap_or_default()) {
                    folders.push(path);
                }
            } else if path.extension().is_some_and(|found| found == ending) {
                let text = fs::read_to_string(&path).expect("sources are UTF-8");
                let path = path.strip_prefix(root()).expect("below the root").to_str().expect("UTF-8").to_owned();
                found.push(Source { path, text });
            }
        }
    }
    found.sort_by(|a, b| a.path.cmp(&b.path));
    assert!(!found.is_empty(), "sources of this kind are found");
    found
}

/// Fails with all faults at once, one a line.
fn none(what: &str, faults: Vec<String>) {
    assert!(faults.is_empty(), "{what}:\n  {}", faults.join("\n  "));
}

/// Whether `line` has `word` as a word of its own.
fn says(line: &str, word: &str) -> bool {
    let is_part = |byte: Option<&u8>| byte.is_some_and(|byte| byte.is_ascii_alphanumeric() || *byte == b'_');
    line.match_indices(word).any(|(at, _)| {
        let bytes = line.as_bytes();
        let before = at.checked_sub(1).and_then(|at| bytes.get(at));
        let after = if word.ends_with(':') { None } else { bytes.get(at + word.len()) };
        !is_part(before) && !is_part(after)
    })
}

#[test]
fn files_are_short() {
    let mut faults = Vec::new();
    for source in ["rs", "py", "js", "mjs", "css", "html"].into_iter().flat_map(sources) {
        let lines = source.text.lines().count();
        match TOO_LONG.iter().find(|(path, _)| *path == source.path) {
            Some((_, known)) if lines < *known => {
                faults.push(format!("{} is down to {lines} lines: say so in TOO_LONG", source.path))
            }
            Some((_, known)) if lines > *known => {
                faults.push(format!("{} grew from {known} to {lines} lines", source.path))
            }
            Some(_) => {}
            None if lines > LONGEST => faults.push(format!("{} has {lines} lines", source.path)),
            None => {}
        }
    }
    none(&format!("files of more than {LONGEST} lines should be split"), faults);
}

#[test]
fn arrows_point_one_way() {
    let mut faults = Vec::new();
    for source in sources("rs") {
        for (folder, banned) in ARROWS.iter().filter(|(folder, _)| source.path.starts_with(&format!("{folder}/"))) {
            for (number, line) in source.code() {
                if let Some(word) = banned.iter().find(|word| says(line, word)) {
                    faults.push(format!("{}:{number}: {folder} must not know {word}", source.path));
                }
            }
        }
    }
    none("arrows point from cli to mount to the core", faults);
}

#[test]
fn pure_modules_are_pure() {
    let is_pure = |path: &str| {
        PURE.iter().any(|name| path == format!("src/{name}.rs") || path.starts_with(&format!("src/{name}/")))
    };
    let mut faults = Vec::new();
    let pure: Vec<Source> = sources("rs").into_iter().filter(|source| is_pure(&source.path)).collect();
    assert!(pure.len() >= 3, "the pure modules are found");
    for source in pure {
        for (number, line) in source.shipped_code() {
            if let Some(word) = IMPURE.iter().find(|word| says(line, word)) {
                faults.push(format!("{}:{number}: {word}", source.path));
            }
        }
    }
    none("pure modules take what they need as arguments", faults);
}

#[test]
fn unsafe_code_is_confined_and_explained() {
    let keyword = "unsafe";
    let mut faults = Vec::new();
    for source in sources("rs") {
        let lines: Vec<&str> = source.text.lines().collect();
        let allowed = source.path.starts_with("src/sys/") || UNSAFE_HELPERS.contains(&source.path.as_str());
        for (number, line) in source.code().filter(|(_, line)| says(line, keyword) && !line.contains('"')) {
            let is_declaration = line.contains("unsafe fn") || line.contains("unsafe extern");
            // The note stands above the statement that the block is part of.
            let above = &lines[number.saturating_sub(8)..number];
            if !allowed {
                faults.push(format!("{}:{number}: {}", source.path, line.trim()));
            } else if !is_declaration && !above.iter().any(|line| line.contains("SAFETY:")) {
                faults.push(format!("{}:{number}: no SAFETY note", source.path));
            }
        }
    }
    none("unsafe code lives in src/sys, each block with its reason", faults);
}

#[test]
fn nothing_is_left_undone() {
    // Put together here, so that this file does not find itself.
    let marks = ["TO DO", "FIX ME", "XX X", "dbg !(", "to do!(", "unimplemented !("].map(|mark| mark.replace(' ', ""));
    let mut faults = Vec::new();
    for source in ["rs", "py", "js", "mjs", "css", "html"].into_iter().flat_map(sources) {
        for (index, line) in source.text.lines().enumerate() {
            if let Some(mark) = marks.iter().find(|mark| line.contains(mark.as_str())) {
                faults.push(format!("{}:{}: {mark}", source.path, index + 1));
            }
        }
    }
    none("what is not done belongs in an issue", faults);
}

#[test]
fn words_are_found_as_words() {
    assert!(says("use fuser::Filesystem;", "fuser"));
    assert!(!says("let fusers = 1;", "fuser"));
    assert!(!says("InstantNoodles", "Instant"));
    assert!(says("use nix::sys;", "nix::"));
    assert!(!says("unix::fs", "nix::"));
}
