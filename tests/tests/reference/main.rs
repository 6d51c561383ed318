//! Random operations on the mount and on a plain folder, compared after each. `WEIGHTFS_SEED` repeats a run,
//! `WEIGHTFS_STEPS` makes it longer.

mod concurrent;
mod driver;
mod large;
mod step;

use weightfs_tests::Pair;
use weightfs_tests::data::Random;
use weightfs_tests::requirements::{Need, met};

use driver::Driver;

/// A budget that a few of the files fill, so that reclaim runs too.
const TIGHT: &[&str] = &["--ram", "24M", "--open-wait", "500ms"];

fn steps() -> usize {
    std::env::var("WEIGHTFS_STEPS").ok().and_then(|text| text.parse().ok()).unwrap_or(700)
}

#[test]
fn a_mount_is_a_plain_folder() {
    if !met(&[Need::Mount]) {
        return;
    }
    let mut driver = Driver::new(Pair::new(TIGHT), Random::from_environment());
    driver.run(steps());
    driver.finish();
}

#[test]
fn a_mount_over_its_source_is_a_plain_folder() {
    if !met(&[Need::Mount]) {
        return;
    }
    let mut driver = Driver::new(Pair::over(TIGHT), Random::from_environment());
    driver.run(steps());
    driver.finish();
}

#[test]
fn a_mount_that_streams_is_a_plain_folder() {
    if !met(&[Need::Mount]) {
        return;
    }
    let options = ["--ram", "24M", "--no-passthrough", "--io", "threads"];
    let mut driver = Driver::new(Pair::new(&options), Random::from_environment());
    driver.run(steps());
    driver.finish();
}
