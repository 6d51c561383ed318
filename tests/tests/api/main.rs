//! The control interface of a live mount: what it says, what it does, for whom, and what it withstands.

mod hostile;
mod look;
mod observe;
mod rights;
mod schema;
mod steer;

use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};
use tempfile::TempDir;
use weightfs_tests::api::{Api, encoded};
use weightfs_tests::data;
use weightfs_tests::requirements::{Need, met};
use weightfs_tests::system::{let_files_settle, temporary_folder, wait_until};

const MIB: u64 = 1 << 20;

/// Fills in the background take far less; only broken ones need it.
const PATIENCE: Duration = Duration::from_secs(20);

fn can_mount() -> bool {
    met(&[Need::Mount])
}

/// A folder with these models, each of so many MiB.
fn models(files: &[(&str, u64)]) -> TempDir {
    let source = temporary_folder("source");
    for (index, (name, megabytes)) in files.iter().enumerate() {
        let path = source.path().join(name);
        std::fs::create_dir_all(path.parent().expect("in the folder")).expect("make a folder");
        data::write_safetensors(&path, index as u64 * 100, *megabytes);
    }
    let_files_settle();
    source
}

fn text(path: &Path) -> &str {
    path.to_str().expect("UTF-8")
}

/// What is said of one file.
fn file(api: &Api, path: &Path) -> Value {
    let files = api.get(&format!("/v1/files?path={}", encoded(path))).json();
    files["files"][0].clone()
}

/// Prefetches a path and waits until that has ended.
fn prefetch(api: &Api, path: &Path) -> Value {
    let answer = api.post("/v1/prefetch", &json!({"paths": [path]}));
    assert_eq!(answer.status, 202);
    ended(api, answer.json()["id"].as_str().expect("a name"))
}

fn ended(api: &Api, id: &str) -> Value {
    let mut job = Value::Null;
    let has_ended = wait_until(PATIENCE, || {
        job = api.get(&format!("/v1/jobs/{id}?wait_ms=1000")).json();
        job["state"] != "running"
    });
    assert!(has_ended, "{job}");
    job
}
