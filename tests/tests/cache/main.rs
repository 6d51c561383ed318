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

use std::path::Path;
use std::time::Duration;

use weightfs_tests::Mount;
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

/// The name in a path, for messages.
fn name_of(path: &Path) -> String {
    path.file_name().expect("a name").to_string_lossy().into_owned()
}
