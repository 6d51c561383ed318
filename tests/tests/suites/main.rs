//! Suites that others wrote, on the mount and on a plain folder: the same comes of both, except for what SEMANTICS.md
//! says.
//!
//! `make suites` installs what is built with cargo in `target/suites`. The longer runs are ignored without
//! `make test-long`.

mod exerciser;
mod posix;
mod stressors;

use std::path::PathBuf;
use std::process::{Command, Output};
use std::time::Duration;

use weightfs_tests::python::workspace;
use weightfs_tests::requirements::{Need, met, skip};
use weightfs_tests::system::find_program;

/// The program of a suite, if it is there.
fn suite(name: &str, advice: &str) -> Option<PathBuf> {
    if !met(&[Need::Mount, Need::Root]) {
        return None;
    }
    let installed = workspace().join("target/suites/bin").join(name);
    let found = installed.is_file().then_some(installed).or_else(|| find_program(name));
    if found.is_none() {
        skip(&format!("{name} is not there; {advice}"));
    }
    found
}

/// Runs a program, which is ended if it does not end by itself.
fn run(command: &mut Command, limit: Duration) -> Output {
    let mut limited = Command::new("timeout");
    limited.args(["-k", "5", &limit.as_secs().to_string()]).arg(command.get_program()).args(command.get_args());
    if let Some(folder) = command.get_current_dir() {
        limited.current_dir(folder);
    }
    let output = limited.output().expect("timeout is part of every system");
    assert_ne!(output.status.code(), Some(124), "{command:?} does not end\n{}", text(&output));
    output
}

fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}
