//! Everything that people and programs do in a models folder gives in the mount what it gives in a plain folder, and
//! reaches the source at once.

mod attributes;
mod changes;
mod confinement;
mod content;
mod listing;
mod locks;
mod names;
mod ownership;

use std::time::Duration;

use weightfs_tests::requirements::{Need, met};

/// Options for tests that are about files and not about the cache.
const SMALL: &[&str] = &["--ram", "64M", "--allow-other"];

/// A second, and what a busy machine may add to it.
const SOON: Duration = Duration::from_millis(1500);

fn can_mount() -> bool {
    met(&[Need::Mount])
}

fn can_be_several_users() -> bool {
    met(&[Need::Mount, Need::Root])
}
