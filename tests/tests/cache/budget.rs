//! The arena never holds more than it may, whatever is read.

use std::fs::{self, File};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use weightfs_tests::data::{self, Random};
use weightfs_tests::maps::{Map, MapKind};
use weightfs_tests::system::{let_files_settle, temporary_folder, wait_until};
use weightfs_tests::{Mount, Status};

use crate::{MIB, PATIENCE, can_mount};

const FILES: u64 = 6;
const SIZE: u64 = 16 * MIB;

fn check_within_budget(status: &Status, what: &str) {
    let (held, budget) = (status.resident() + status.client_held(), status.number("/ram/budget_bytes"));
    assert!(held <= budget, "{what}: {held} bytes are held, {budget} are allowed: {:#}", status.0);
}

#[test]
fn many_files_through_a_small_arena() {
    if !can_mount() {
        return;
    }
    let source = temporary_folder("source");
    for index in 0..FILES {
        data::write_file(&source.path().join(format!("{index}.safetensors")), index, SIZE);
    }
    let_files_settle();
    let mount = Mount::start(source.path(), &["--ram", "40M", "--high-watermark", "90", "--low-watermark", "70"]);
    assert_eq!(mount.status().number("/ram/budget_bytes"), 40 * MIB);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let watcher = scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                check_within_budget(&mount.status(), "while reading");
                std::thread::sleep(Duration::from_millis(30));
            }
        });
        let readers: Vec<_> = (0..3)
            .map(|thread| {
                let mount = &mount;
                scope.spawn(move || {
                    let mut random = Random::new(thread);
                    for round in 0..8 {
                        let index = if round % 2 == 0 { (thread + round) % FILES } else { random.below(FILES) };
                        let path = mount.join(&format!("{index}.safetensors"));
                        let found = if random.chance(2) {
                            fs::read(&path).expect("read")
                        } else {
                            Map::new(&File::open(&path).expect("open"), SIZE as usize, MapKind::Private)
                                .expect("map")
                                .to_vec()
                        };
                        assert_eq!((found.len() as u64, data::check(index, 0, &found)), (SIZE, Ok(())), "file {index}");
                    }
                })
            })
            .collect();
        for reader in readers {
            let result = reader.join();
            if result.is_err() {
                done.store(true, Ordering::Relaxed);
            }
            result.expect("a reader sees the right bytes");
        }
        done.store(true, Ordering::Relaxed);
        watcher.join().expect("the budget is kept");
    });
    let status = mount.status();
    check_within_budget(&status, "at the end");
    assert!(status.resident() > 0, "something is kept: {:#}", status.0);
    assert!(status.source_read() >= FILES * SIZE, "every file was read: {:#}", status.0);
    let calm = || mount.status().resident() <= status.number("/ram/high_watermark_bytes");
    assert!(wait_until(PATIENCE, calm), "reclaim gets below the high watermark: {:#}", mount.status().0);
    mount.stop();
}

#[test]
fn a_file_larger_than_the_budget_is_served() {
    if !can_mount() {
        return;
    }
    let source = temporary_folder("source");
    data::write_safetensors(&source.path().join("large.safetensors"), 5, 96);
    let expected = fs::read(source.path().join("large.safetensors")).expect("read");
    let_files_settle();
    let mount = Mount::start(source.path(), &["--ram", "16M"]);
    for _ in 0..3 {
        let found = fs::read(mount.join("large.safetensors")).expect("read");
        assert_eq!(data::same_bytes(&expected, &found, 0), Ok(()));
        check_within_budget(&mount.status(), "after a large file");
    }
    mount.stop();
}

#[test]
fn what_is_deleted_is_no_longer_kept() {
    if !can_mount() {
        return;
    }
    let source = temporary_folder("source");
    data::write_file(&source.path().join("through.safetensors"), 1, SIZE);
    data::write_file(&source.path().join("replaced.safetensors"), 2, SIZE);
    let_files_settle();
    let mount = Mount::start(source.path(), &["--ram", "128M"]);
    crate::make_resident(&mount, "through.safetensors", SIZE);
    crate::make_resident(&mount, "replaced.safetensors", 2 * SIZE);
    fs::remove_file(mount.join("through.safetensors")).expect("unlink");
    assert!(wait_until(PATIENCE, || mount.status().resident() <= SIZE + 2 * MIB), "{:#}", mount.status().0);
    data::write_file(&mount.join("new"), 3, MIB / 2);
    fs::rename(mount.join("new"), mount.join("replaced.safetensors")).expect("rename");
    assert!(wait_until(PATIENCE, || mount.status().resident() <= 2 * MIB), "{:#}", mount.status().0);
    mount.stop();
}
