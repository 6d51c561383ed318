//! Workers that die at chosen steps of opening, filling, evicting, renaming, and of taking over itself.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use weightfs::failpoint::PLACES;
use weightfs_tests::Mount;
use weightfs_tests::requirements::skip;
use weightfs_tests::system::{let_files_settle, temporary_folder};

use crate::clients::{Report, make_models, with_clients};
use crate::{answers, can_take_over, kill_worker, times, worker};

/// A worker that does not come by its place is killed by hand after this.
const LONGEST: Duration = Duration::from_millis(1500);

#[test]
fn every_step_can_be_the_last() {
    if !can_take_over() {
        return;
    }
    if !cfg!(debug_assertions) {
        return skip("release builds have no failpoints");
    }
    let deaths = times("WEIGHTFS_DEATHS", PLACES.len() as u64 + 2);
    let source = temporary_folder("source");
    make_models(source.path());
    let_files_settle();
    let mount = Mount::start_with(source.path(), &["--ram", "64M"], &[("WEIGHTFS_FAILPOINTS", "4")]);
    let report = Report::default();
    let mut seen = 0;
    with_clients(mount.path(), &report, || {
        let mut before = worker(&mount);
        let mut changed = Instant::now();
        while seen < deaths && report.faults().is_empty() {
            std::thread::sleep(Duration::from_millis(2));
            let now = worker(&mount);
            if now.is_some() && now != before {
                (before, changed) = (now, Instant::now());
                seen += 1;
            } else if changed.elapsed() > LONGEST {
                before = Some(kill_worker(&mount));
                changed = Instant::now();
                seen += 1;
            }
        }
    });
    let log = mount.log();
    assert_eq!(report.faults(), [""; 0], "{log}");
    let mut places: BTreeMap<&str, u32> = BTreeMap::new();
    for line in log.lines().filter(|line| line.contains("dying at a failpoint")) {
        let place = PLACES.iter().find(|place| line.contains(*place)).expect("a known place");
        *places.entry(place).or_default() += 1;
    }
    println!("{seen} deaths, of these at failpoints: {places:?}");
    let reached = PLACES.iter().filter(|place| places.contains_key(*place)).count();
    assert!(reached * 4 >= PLACES.len().min(deaths as usize) * 3, "few places are come by: {places:?}\n{log}");
    // The last one may be armed still.
    assert!(answers(&mount));
    mount.end_somehow();
}
