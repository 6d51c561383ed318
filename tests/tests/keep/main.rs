//! What stays in RAM: the right bytes, for as long as there is room for them, and what people asked for.

mod asked;
mod pressure;
mod traces;
mod workflows;

use std::time::Duration;

use weightfs_tests::Mount;
use weightfs_tests::requirements::{Need, met};

const MIB: u64 = 1 << 20;

/// Reclaim and fills in the background take far less; only broken ones need it.
const PATIENCE: Duration = Duration::from_secs(20);

/// Runs `weightfs` and returns what it prints.
fn told(mount: &Mount, arguments: &[&str]) -> String {
    let output = mount.run(arguments);
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

/// Runs `weightfs` and returns why it does not do what it is asked.
fn refused(mount: &Mount, arguments: &[&str]) -> String {
    let output = mount.run(arguments);
    assert!(!output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stdout));
    String::from_utf8(output.stderr).expect("text")
}

fn can_mount() -> bool {
    met(&[Need::Mount])
}
