//! SIGKILL at random moments.

use std::time::Duration;

use serde_json::json;
use weightfs_tests::Mount;
use weightfs_tests::api::Api;
use weightfs_tests::data::Random;
use weightfs_tests::system::{let_files_settle, temporary_folder};

use crate::clients::{MODELS, Report, make_models, with_clients};
use crate::{answers, can_take_over, kill_worker, times};

/// Prints the pauses that readers have seen.
pub fn tell(what: &str, mut pauses: Vec<Duration>) {
    pauses.sort();
    let (median, worst) = (pauses[pauses.len() / 2], pauses[pauses.len() - 1]);
    println!("{what}: the longest read around each took {median:?} in the median, {worst:?} at worst");
}

#[test]
fn nobody_notices() {
    check_kills(times("WEIGHTFS_KILLS", 40), &[]);
}

#[test]
fn nobody_notices_where_there_is_no_passthrough() {
    check_kills(times("WEIGHTFS_KILLS", 40) / 2, &["--no-passthrough"]);
}

fn check_kills(kills: u64, options: &[&str]) {
    if !can_take_over() {
        return;
    }
    let source = temporary_folder("source");
    make_models(source.path());
    let_files_settle();
    // Less than all models together: some are streamed, some resident, some on their way in or out.
    let mount = Mount::start(source.path(), &[&["--ram", "64M"], options].concat());
    let report = Report::default();
    let mut random = Random::from_environment();
    let mut pauses = Vec::new();
    with_clients(mount.path(), &report, || {
        for kill in 0..kills {
            // Now and then one lives long enough for the supervisor to believe in the next.
            let life = if kill % 5 == 4 { 1050 + random.below(300) } else { random.below(300) };
            std::thread::sleep(Duration::from_millis(life));
            if !report.faults().is_empty() {
                break;
            }
            report.take_longest();
            kill_worker(&mount);
            std::thread::sleep(Duration::from_millis(40));
            pauses.push(report.take_longest());
        }
        std::thread::sleep(Duration::from_millis(500));
    });
    assert_eq!(report.faults(), [""; 0], "after {} kills:\n{}", pauses.len(), mount.log());
    tell(&format!("{kills} kills"), pauses);
    assert!(answers(&mount));
    assert!(mount.status().number("/worker/restarts") >= kills, "{:#}", mount.status().0);
    mount.stop();
}

#[test]
fn what_is_in_ram_stays_there() {
    if !can_take_over() {
        return;
    }
    let source = temporary_folder("source");
    make_models(source.path());
    let_files_settle();
    let mount = Mount::start(source.path(), &["--ram", "256M"]);
    for seed in 0..MODELS.len() {
        std::fs::read(mount.join(&format!("model-{seed}.safetensors"))).expect("read");
    }
    let resident = || mount.status().resident();
    let all: u64 = MODELS.iter().sum();
    assert!(weightfs_tests::system::wait_until(Duration::from_secs(20), || resident() >= all), "{}", resident());
    let before = mount.status();
    for round in 1..=3 {
        kill_worker(&mount);
        assert!(answers(&mount));
        let now = mount.status();
        assert_eq!((now.number("/worker/restarts"), now.resident()), (round, before.resident()));
        assert_ne!(now.number("/worker/pid"), before.number("/worker/pid"));
        for seed in 0..MODELS.len() {
            let found = std::fs::read(mount.join(&format!("model-{seed}.safetensors"))).expect("read");
            weightfs_tests::data::check(seed as u64, 0, &found).expect("the right bytes");
        }
        let after = mount.status();
        assert_eq!(after.source_read(), now.source_read(), "nothing is read again");
        assert!(!after.passthrough() || after.number("/io/stream_opens") == now.number("/io/stream_opens"));
    }
    mount.stop();
}

#[test]
fn what_was_hinted_holds() {
    if !can_take_over() {
        return;
    }
    let source = temporary_folder("source");
    make_models(source.path());
    let_files_settle();
    let mount = Mount::start(source.path(), &["--ram", "64M"]);
    let [first, second] = [0, 1].map(|seed| mount.join(&format!("model-{seed}.safetensors")));
    let api = Api::of(mount.path());
    let owner = json!({"owner": "test", "paths": [first], "seconds": 600});
    api.post("/v1/hints/in-use", &owner).json();
    api.post("/v1/hints/vram", &json!({"owner": "test", "device": "cuda:0", "paths": [second]})).json();
    let queue = json!({"owner": "test", "entries": [{"id": "1", "paths": [{"path": second}]}]});
    api.post("/v1/hints/queue", &queue).json();
    let hints = || mount.status().0["hints"].clone();
    let before = hints();
    assert_eq!(before["in_use"], 1, "{before}");
    for _ in 0..2 {
        kill_worker(&mount);
        assert!(answers(&mount));
        let same = weightfs_tests::system::wait_until(Duration::from_secs(20), || hints() == before);
        assert!(same, "{} instead of {before}", hints());
    }
    assert_eq!(api.delete("/v1/hints/in-use/test").status, 204, "it is known whose they are");
    mount.stop();
}
