//! Everything that people and programs do in a models folder gives in the mount what it gives in a plain folder, and
//! reaches the source at once.

mod attributes;
mod changes;
mod confinement;
mod content;
mod locks;
mod names;
mod ownership;

use weightfs_tests::requirements::{Need, met};

/// Options for tests that are about files and not about the cache.
const SMALL: &[&str] = &["--ram", "64M", "--allow-other"];

fn can_mount() -> bool {
    met(&[Need::Mount])
}

fn can_be_several_users() -> bool {
    met(&[Need::Mount, Need::Root])
}
