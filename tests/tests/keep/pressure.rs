//! The arena gives way to other programs and comes back.

use weightfs_tests::cgroup::LimitedGroup;
use weightfs_tests::load::load;
use weightfs_tests::requirements::{Need, met, skip};
use weightfs_tests::system::{drop_page_cache, let_files_settle, temporary_folder, wait_until};
use weightfs_tests::{Actor, Mount, data};

use crate::{MIB, PATIENCE, can_mount};

const LIMIT: u64 = 1024 * MIB;
const MODEL: u64 = 480;

#[test]
fn the_arena_gives_way_in_a_limited_group_and_comes_back() {
    if !can_mount() || !met(&[Need::Root]) {
        return;
    }
    let source = temporary_folder("source");
    let real = source.path().join("model.safetensors");
    data::write_safetensors(&real, 1, MODEL);
    drop_page_cache(&real);
    let group = match LimitedGroup::new(LIMIT) {
        Ok(group) => group,
        Err(reason) => return skip(&reason),
    };
    let_files_settle();
    let mount = Mount::start(source.path(), &["--ram", "600M", "--reserve", "128M"]);
    let mut other = Actor::start(0);
    let worker = mount.status().number("/worker/pid") as u32;
    for pid in [mount.pid(), worker, other.pid()] {
        if let Err(reason) = group.add(pid) {
            return skip(&reason);
        }
    }
    let path = mount.join("model.safetensors");
    let whole = MODEL * MIB;
    load(&path);
    assert!(wait_until(PATIENCE, || mount.status().resident() >= whole), "it becomes resident: {:#}", mount.status().0);

    // Both together would be killed.
    other.act(&["allocate", &(600 * MIB).to_string()]).expect("the other program gets its memory");
    let small = || {
        let status = mount.status();
        status.resident() < whole - 100 * MIB && status.resident() <= status.number("/ram/budget_bytes")
    };
    assert!(wait_until(PATIENCE, small), "the arena gives way: {:#}", mount.status().0);
    let reason = mount.status().0.pointer("/ram/budget_reason").and_then(|reason| reason.as_str().map(str::to_owned));
    assert!(reason.is_some_and(|reason| reason.contains("control group")), "{:#}", mount.status().0);
    load(&path);
    assert!(small(), "it stays small while memory is short: {:#}", mount.status().0);

    other.act(&["free"]).expect("the other program lives");
    let grown = || mount.status().number("/ram/budget_bytes") == 600 * MIB;
    assert!(wait_until(PATIENCE, grown), "the budget comes back: {:#}", mount.status().0);
    load(&path);
    assert!(wait_until(PATIENCE, || mount.status().resident() >= whole), "all of it again: {:#}", mount.status().0);
    drop(other);
    mount.stop();
}
