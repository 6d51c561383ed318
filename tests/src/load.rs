//! Loads safetensors files as the programs that use them do: the header, then the tensors, by several threads, in reads
//! that begin and end where tensors do; and maps files until the daemon knows it.

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Mutex;
use std::time::Duration;

use serde_json::Value;

use crate::Mount;
use crate::api::Api;
use crate::maps::{Map, MapKind};
use crate::system::wait_until;

const THREADS: usize = 4;
/// A fill of a few MiB in the background takes far less.
const PATIENCE: Duration = Duration::from_secs(10);

/// Reads every tensor of the file at `path` once. Returns the bytes read.
///
/// # Panics
/// If it cannot be read, or is no safetensors file.
pub fn load(path: &Path) -> u64 {
    let file = File::open(path).expect("open a model");
    let tensors = tensors(&file);
    let bytes = tensors.iter().map(|range| range.end - range.start).sum();
    let queue = Mutex::new(tensors.into_iter());
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                loop {
                    let Some(range) = queue.lock().expect("no thread panicked").next() else { break };
                    let mut tensor = vec![0; (range.end - range.start) as usize];
                    file.read_exact_at(&mut tensor, range.start).expect("read a tensor");
                }
            });
        }
    });
    bytes
}

/// Maps `name` and looks at all of it. Returns when `bytes` are resident and the daemon knows that they were mapped. That
/// may take more than one load: what is asked for before the daemon has looked at the header tells it nothing.
///
/// # Panics
/// If that does not come.
pub fn map_until_known(mount: &Mount, name: &str, bytes: u64) {
    let is_known = || mount.status().resident() >= bytes && last_load(mount, name) == "map";
    let known = (0..5).any(|_| {
        let file = File::open(mount.join(name)).expect("open");
        Map::new(&file, file.metadata().expect("stat").len() as usize, MapKind::Private).expect("map").to_vec();
        drop(file);
        wait_until(PATIENCE / 5, is_known)
    });
    assert!(known, "{name} is {:?}: {:#}", last_load(mount, name), mount.status().0);
}

/// How a file was read last time, as the daemon has noticed: "map", "pread", "whole" or nothing.
pub fn last_load(mount: &Mount, name: &str) -> String {
    let files = Api::of(mount.path()).get("/v1/files").json();
    let files = files["files"].as_array().expect("a list of files");
    let file = files.iter().find(|file| file["path"].as_str().is_some_and(|path| path.ends_with(name)));
    file.and_then(|file| file["last_load"].as_str()).unwrap_or_default().to_owned()
}

/// Where the tensors lie, in the order of the file.
fn tensors(file: &File) -> Vec<Range<u64>> {
    let mut length = [0; 8];
    file.read_exact_at(&mut length, 0).expect("read the length of the header");
    let length = u64::from_le_bytes(length);
    let mut header = vec![0; length as usize];
    file.read_exact_at(&mut header, 8).expect("read the header");
    let header: Value = serde_json::from_slice(&header).expect("a header is JSON");
    let place = |tensor: &Value| {
        let offset = |index: usize| tensor.pointer(&format!("/data_offsets/{index}")).and_then(Value::as_u64);
        Some(8 + length + offset(0)?..8 + length + offset(1)?)
    };
    let mut tensors: Vec<_> = header.as_object().expect("an object").values().filter_map(place).collect();
    tensors.sort_by_key(|range| range.start);
    tensors
}
