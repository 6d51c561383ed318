//! What is kept in RAM, and that nothing wrong ever comes out of it.

mod bad_luck;
mod budget;
mod copies;
mod hostile;
mod kept;
mod pinned;
mod snapshots;
mod unprivileged;
mod warm;

use std::fs::File;
use std::path::Path;
use std::time::Duration;

use weightfs_tests::Mount;
use weightfs_tests::api::Api;
use weightfs_tests::maps::{Map, MapKind};
use weightfs_tests::requirements::{Need, met};
use weightfs_tests::system::wait_until;

const MIB: u64 = 1 << 20;

/// A fill of a few MiB in the background takes far less; only a broken one needs it.
const PATIENCE: Duration = Duration::from_secs(10);

fn can_mount() -> bool {
    met(&[Need::Mount])
}

/// Reads `name` and waits until `bytes` are in the arena.
fn make_resident(mount: &Mount, name: &str, bytes: u64) {
    std::fs::read(mount.join(name)).expect("read");
    let resident = wait_until(PATIENCE, || mount.status().resident() >= bytes);
    assert!(resident, "{name} does not become resident: {:#}", mount.status().0);
}

/// Maps `name` and looks at all of it, until `bytes` are in the arena and it is known how they were read.
fn make_resident_by_map(mount: &Mount, name: &str, bytes: u64) {
    let file = File::open(mount.join(name)).expect("open");
    Map::new(&file, file.metadata().expect("stat").len() as usize, MapKind::Private).expect("map").to_vec();
    drop(file);
    let known = wait_until(PATIENCE, || mount.status().resident() >= bytes && last_load(mount, name) == "map");
    assert!(known, "{name} does not become resident: {:#}", mount.status().0);
}

/// How a file was read last time, as the daemon has noticed.
fn last_load(mount: &Mount, name: &str) -> String {
    let files = Api::of(mount.path()).get("/v1/files").json();
    let files = files["files"].as_array().expect("a list of files");
    let file = files.iter().find(|file| file["path"].as_str().is_some_and(|path| path.ends_with(name)));
    file.and_then(|file| file["last_load"].as_str()).unwrap_or_default().to_owned()
}

/// The name in a path, for messages.
fn name_of(path: &Path) -> String {
    path.file_name().expect("a name").to_string_lossy().into_owned()
}
