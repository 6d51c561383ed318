//! `weightfs doctor`, with and without a mount.

use std::fs;
use std::process::Output;

use serde_json::Value;
use weightfs_tests::data;
use weightfs_tests::mount::program;
use weightfs_tests::requirements::{Need, met};
use weightfs_tests::system::temporary_folder;

use crate::{Library, text};

fn doctor(arguments: &[&str]) -> Output {
    let private = temporary_folder("run");
    program(private.path()).arg("doctor").args(arguments).output().expect("run weightfs")
}

fn checks(output: &Output) -> Vec<Value> {
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    report["checks"].as_array().expect("checks").clone()
}

fn check<'a>(checks: &'a [Value], name: &str, subject: Option<&str>) -> &'a Value {
    let found = checks.iter().find(|check| check["name"] == name && check["subject"].as_str() == subject);
    found.unwrap_or_else(|| panic!("no check {name} of {subject:?}: {checks:#?}"))
}

#[test]
fn a_folder_is_looked_at_before_it_is_mounted() {
    if !met(&[Need::Mount]) {
        return;
    }
    let folder = temporary_folder("models");
    data::write_file(&folder.path().join("m.gguf"), 1, 40 << 20);
    std::os::unix::fs::symlink("/etc/hostname", folder.path().join("out")).expect("link");
    let before = fs::read_to_string("/proc/self/mountinfo").expect("read");
    let output = doctor(&[text(folder.path()), "--json"]);
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    let checks = checks(&output);
    for name in ["fuse", "passthrough", "request-size", "readahead", "io_uring", "reserve", "gpu"] {
        let state = check(&checks, name, None)["state"].as_str().expect("a state");
        assert!(["ok", "warn"].contains(&state), "{name}: {state}");
    }
    let subject = Some(text(folder.path()));
    assert_eq!(check(&checks, "links", subject)["state"], "warn");
    for name in ["storage", "direct-reads", "speed", "changes"] {
        check(&checks, name, subject);
    }
    for found in checks.iter().filter(|check| check["state"] == "warn") {
        assert!(found["costs"].is_string() && found["mend"].is_string(), "{found:#}");
    }
    assert_eq!(fs::read_to_string("/proc/self/mountinfo").expect("read"), before, "nothing stays mounted");
    let words = String::from_utf8(doctor(&[text(folder.path())]).stdout).expect("UTF-8");
    assert!(words.starts_with("This machine\n") && words.contains("--follow-symlinks"), "{words}");
    assert!(!words.contains('\x1b'), "no colours for a file: {words:?}");
}

#[test]
fn what_is_mounted_is_looked_at_by_its_daemon() {
    let Some(library) = Library::mounted() else { return };
    let report = library.json(&["doctor", library.root(), "--json"]);
    let checks = report["checks"].as_array().expect("checks").clone();
    let subject = Some(library.root());
    for name in ["storage", "links", "changes"] {
        assert_eq!(check(&checks, name, subject)["state"], "ok", "{name}");
    }
    assert_ne!(text(library.source.path()), library.root());
    library.mount.stop();
}
