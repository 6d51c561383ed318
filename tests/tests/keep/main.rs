//! What stays in RAM: the right bytes, for as long as there is room for them, and what people asked for.

mod pressure;
mod workflows;

use std::time::Duration;

use weightfs_tests::requirements::{Need, met};

const MIB: u64 = 1 << 20;

/// Reclaim and fills in the background take far less; only broken ones need it.
const PATIENCE: Duration = Duration::from_secs(20);

fn can_mount() -> bool {
    met(&[Need::Mount])
}
