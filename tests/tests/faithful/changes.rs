//! Changes that were made behind the mount: seen at every open, and within a second by name.

use std::collections::VecDeque;
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use weightfs_tests::data;
use weightfs_tests::maps::{Map, MapKind};
use weightfs_tests::system::{let_files_settle, temporary_folder, wait_until};
use weightfs_tests::{Mount, Pair};

use crate::{SMALL, SOON, can_mount};

/// Reads all of `path` in each of the ways that programs have.
fn read_every_way(path: &Path) -> [Vec<u8>; 3] {
    let whole = fs::read(path).expect("read");
    let file = File::open(path).expect("open");
    let len = file.metadata().expect("fstat").len() as usize;
    if len == 0 {
        return [whole, Vec::new(), Vec::new()];
    }
    let maps = [MapKind::Private, MapKind::Shared].map(|kind| Map::new(&file, len, kind).expect("map").to_vec());
    let [private, shared] = maps;
    [whole, private, shared]
}

fn check_every_way(path: &Path, seed: u64, size: u64, what: &str) {
    for (way, found) in ["read", "private map", "shared map"].iter().zip(read_every_way(path)) {
        assert_eq!(found.len() as u64, size, "{what}: length by {way}");
        assert_eq!(data::check(seed, 0, &found), Ok(()), "{what}: content by {way}");
    }
}

#[test]
fn every_open_sees_what_was_last_written_behind_the_mount() {
    if !can_mount() {
        return;
    }
    let source = temporary_folder("source");
    let behind = source.path().join("m.safetensors");
    data::write_file(&behind, 0, 5 << 20);
    let mount = Mount::start(source.path(), SMALL);
    let seen = mount.join("m.safetensors");
    for round in 0..3 {
        // Settled and read: the daemon may have it in the arena now.
        let_files_settle();
        check_every_way(&seen, round * 10, 5 << 20, "settled");
        check_every_way(&seen, round * 10, 5 << 20, "settled, again");
        data::write_file(&behind, round * 10 + 1, 3 << 20);
        check_every_way(&seen, round * 10 + 1, 3 << 20, "written in place, shorter");
        data::write_file(&behind, round * 10 + 2, 7 << 20);
        check_every_way(&seen, round * 10 + 2, 7 << 20, "written in place, longer");
        let file = File::options().write(true).open(&behind).expect("open");
        file.write_all_at(&data::bytes(round * 10 + 3, 0, 7 << 20), 0).expect("write");
        check_every_way(&seen, round * 10 + 3, 7 << 20, "written in place, same size");
        data::write_file(&source.path().join(".tmp"), round * 10 + 4, 4 << 20);
        fs::rename(source.path().join(".tmp"), &behind).expect("rename");
        check_every_way(&seen, round * 10 + 4, 4 << 20, "renamed over");
        data::write_file(&behind, round * 10 + 10, 5 << 20);
        check_every_way(&seen, round * 10 + 10, 5 << 20, "written in place, back to the first size");
    }
    mount.stop();
}

#[test]
fn every_open_sees_what_was_last_written_through_the_mount() {
    if !can_mount() {
        return;
    }
    let source = temporary_folder("source");
    data::write_file(&source.path().join("m.safetensors"), 0, 5 << 20);
    let mount = Mount::start(source.path(), SMALL);
    let seen = mount.join("m.safetensors");
    let_files_settle();
    check_every_way(&seen, 0, 5 << 20, "settled");
    // Somebody holds the first content open and mapped while it is replaced, in place and by rename.
    let held = File::open(&seen).expect("open");
    let map = Map::new(&held, 4096, MapKind::Private).expect("map");
    data::write_file(&seen, 1, 6 << 20);
    check_every_way(&seen, 1, 6 << 20, "written in place");
    data::write_file(&mount.join(".tmp"), 2, 4 << 20);
    fs::rename(mount.join(".tmp"), &seen).expect("rename");
    check_every_way(&seen, 2, 4 << 20, "renamed over");
    fs::OpenOptions::new().write(true).open(&seen).and_then(|f| f.set_len(4097)).expect("truncate");
    check_every_way(&seen, 2, 4097, "truncated");
    fs::write(&seen, b"").expect("empty");
    assert_eq!(fs::read(&seen).expect("read"), b"", "emptied");
    drop((held, map));
    mount.stop();
}

#[test]
fn names_and_attributes_follow_within_a_second() {
    if !can_mount() {
        return;
    }
    let pair = Pair::new(SMALL);
    let (mount, source) = (pair.mount().path().to_owned(), pair.source().to_owned());
    fs::create_dir(source.join("loras")).expect("mkdir");
    fs::write(source.join("loras/a"), b"aaa").expect("write");
    let listed = |name: &str| {
        fs::read_dir(mount.join("loras"))
            .expect("list")
            .any(|entry| entry.expect("entry").file_name().to_str() == Some(name))
    };
    assert!(wait_until(SOON, || listed("a")), "a folder made behind the mount");
    assert!(fs::metadata(mount.join("loras/new")).is_err(), "and now the kernel may remember that it is not there");

    fs::write(source.join("loras/new"), b"new").expect("write");
    assert!(wait_until(SOON, || mount.join("loras/new").exists() && listed("new")), "a file that came");
    let same = |name: &str| {
        let attributes = |root: &Path| {
            let found = fs::metadata(root.join(name)).expect("stat");
            (found.len(), found.mode(), found.mtime(), found.mtime_nsec())
        };
        attributes(&mount) == attributes(&source)
    };
    fs::write(source.join("loras/new"), vec![1; 100_000]).expect("write");
    assert!(wait_until(SOON, || same("loras/new")), "a file that grew");
    fs::set_permissions(source.join("loras/new"), std::os::unix::fs::PermissionsExt::from_mode(0o600)).expect("chmod");
    assert!(wait_until(SOON, || same("loras/new")), "a file of another mode");
    assert!(wait_until(SOON, || same("loras")), "the folder's mtime");
    fs::rename(source.join("loras/new"), source.join("loras/renamed")).expect("rename");
    let gone = |name: &str| fs::symlink_metadata(mount.join(name)).is_err();
    assert!(wait_until(SOON, || gone("loras/new") && !listed("new") && listed("renamed")), "a file that was renamed");
    fs::remove_file(source.join("loras/renamed")).expect("unlink");
    assert!(wait_until(SOON, || gone("loras/renamed")), "a file that went");
    fs::rename(source.join("loras"), source.join("moved")).expect("rename");
    assert!(wait_until(SOON, || gone("loras") && mount.join("moved/a").exists()), "a folder that moved");
    fs::remove_dir_all(source.join("moved")).expect("remove");
    fs::write(source.join("moved"), b"a file now").expect("write");
    assert!(
        wait_until(SOON, || fs::read(mount.join("moved")).is_ok_and(|found| found == b"a file now")),
        "another kind"
    );
    pair.unmount();
}

/// The old file lives on, open or under another name, so nothing about it says that this name is another file's now.
#[test]
fn a_name_that_is_given_to_another_file_behind_the_mount() {
    if !can_mount() {
        return;
    }
    let source = temporary_folder("source");
    let mount = Mount::start(source.path(), SMALL);
    let mut seed = 0;
    let mut held = Vec::new();
    for size in [3 << 20, 0, 5000] {
        for (linked, open) in [(false, false), (true, false), (false, true), (true, true)] {
            seed += 1;
            let [name, other, new] = ["m", "other", "new"].map(|part| format!("{part}{seed}.safetensors"));
            data::write_file(&source.path().join(&name), seed, size);
            if linked {
                fs::hard_link(source.path().join(&name), source.path().join(&other)).expect("link");
            }
            assert_eq!(fs::read(mount.join(&name)).expect("read").len() as u64, size);
            if open {
                held.push((File::open(mount.join(&name)).expect("open"), seed, size));
            }
            data::write_file(&source.path().join(&new), 100 + seed, 4 << 20);
            fs::rename(source.path().join(&new), source.path().join(&name)).expect("rename");
            let found = fs::read(mount.join(&name)).expect("read");
            let what = format!("{size} bytes, with another name: {linked}, open: {open}");
            assert_eq!((found.len(), data::check(100 + seed, 0, &found)), (4 << 20, Ok(())), "{what}");
        }
    }
    for (file, seed, size) in held {
        let mut found = vec![0; size as usize + 1];
        assert_eq!(file.read_at(&mut found, 0).expect("read"), size as usize, "who has the old file open keeps it");
        assert_eq!(data::check(seed, 0, &found[..size as usize]), Ok(()));
    }
    mount.stop();
}

#[test]
fn of_many_who_open_at_once_nobody_sees_what_was_replaced_before() {
    const OPENERS: usize = 6;
    const GENERATIONS: u64 = 400;
    if !can_mount() {
        return;
    }
    let source = temporary_folder("source");
    let name = "model.safetensors";
    let [real, new] = [name, ".new"].map(|name| source.path().join(name));
    fs::write(&real, 0u64.to_le_bytes()).expect("write");
    let mount = Mount::start(source.path(), &["--ram", "64M"]);
    let path = mount.join(name);
    let number = |file: &File| {
        let mut bytes = [0; 8];
        file.read_exact_at(&mut bytes, 0).expect("read");
        u64::from_le_bytes(bytes)
    };
    // What is in place, by the time that somebody knows.
    let newest = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for _ in 0..OPENERS {
            scope.spawn(|| {
                while newest.load(Ordering::SeqCst) < GENERATIONS {
                    let oldest = newest.load(Ordering::SeqCst);
                    let found = number(&File::open(&path).expect("open"));
                    // The writer must not wait for one who has failed.
                    if found < oldest {
                        newest.store(u64::MAX, Ordering::SeqCst);
                        panic!("an open shows {found}, long after {oldest} was put in its place");
                    }
                }
            });
        }
        // Those that were replaced stay open.
        let mut held = Vec::new();
        for generation in 1..=GENERATIONS {
            fs::write(&new, generation.to_le_bytes()).expect("write");
            fs::rename(&new, &real).expect("rename");
            if newest.fetch_max(generation, Ordering::SeqCst) > generation {
                return;
            }
            std::thread::sleep(Duration::from_millis(2));
            held.push(File::open(&path).expect("open"));
            assert_eq!(held.last().map(number), Some(generation));
        }
    });
    mount.stop();
}

#[test]
fn what_is_held_open_stays_what_it_is_whatever_takes_its_number() {
    const OPENERS: u64 = 4;
    const GENERATIONS: u64 = 3000;
    const HELD: usize = 40;
    if !can_mount() {
        return;
    }
    let source = temporary_folder("source");
    let name = "model.safetensors";
    let [real, new] = [name, ".new"].map(|name| source.path().join(name));
    let content = |generation: u64| {
        let words = 1 + generation % 7 * 512;
        (0..words).flat_map(|_| generation.to_le_bytes()).collect::<Vec<u8>>()
    };
    fs::write(&real, content(0)).expect("write");
    let mount = Mount::start(source.path(), &["--ram", "64M"]);
    let path = mount.join(name);
    let whole = |file: &File| {
        let mut bytes = vec![0; 7 * 4096];
        let length = file.read_at(&mut bytes, 0).expect("read");
        bytes.truncate(length);
        bytes
    };
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for opener in 0..OPENERS {
            let (path, mount, done) = (&path, &mount, &done);
            scope.spawn(move || {
                let mut held: VecDeque<(File, Vec<u8>)> = VecDeque::new();
                let mut turn = opener;
                while !done.load(Ordering::SeqCst) {
                    let file = File::open(path).expect("open");
                    let found = whole(&file);
                    let number = u64::from_le_bytes(found[..8].try_into().expect("eight bytes"));
                    assert!(found == content(number), "an open shows {} bytes of {number}", found.len());
                    held.push_back((file, found));
                    if held.len() > HELD {
                        held.pop_front();
                    }
                    turn = turn.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    let (file, known) = &held[(turn >> 33) as usize % held.len()];
                    let now = whole(file);
                    assert!(now == *known, "what was {} bytes is {} bytes", known.len(), now.len());
                    if opener == 0 {
                        // Whatever is new there becomes known by its number.
                        fs::read_dir(mount.path()).expect("list").for_each(|entry| {
                            _ = entry.expect("entry").metadata();
                        });
                    }
                }
            });
        }
        for generation in 1..=GENERATIONS {
            fs::write(&new, content(generation)).expect("write");
            fs::rename(&new, &real).expect("rename");
        }
        done.store(true, Ordering::SeqCst);
    });
    mount.stop();
}
