//! Files that are open while the worker is killed, of every kind, and what becomes of them.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::time::Duration;

use rustix::fs::{Advice, fadvise};
use weightfs_tests::Mount;
use weightfs_tests::data;
use weightfs_tests::load::map_until_known;
use weightfs_tests::maps::{Map, MapKind};
use weightfs_tests::system::{let_files_settle, temporary_folder, wait_until};

use crate::{answers, can_take_over, kill_worker};

#[test]
fn open_files_go_on() {
    if !can_take_over() {
        return;
    }
    let source = temporary_folder("source");
    let size = 9 << 20;
    for (name, seed) in [("resident", 1), ("unlinked", 2), ("replaced", 3), ("streamed", 4)] {
        data::write_file(&source.path().join(name), seed, size);
    }
    fs::write(source.path().join("small"), b"small").expect("write");
    let_files_settle();
    let mount = Mount::start(source.path(), &["--ram", "64M"]);
    let whole = |name: &str| fs::read(mount.join(name)).expect("read");
    for name in ["resident", "unlinked", "replaced"] {
        whole(name);
        whole(name);
    }
    let open = |name: &str| File::open(mount.join(name)).expect("open");
    let files = [("resident", 1), ("unlinked", 2), ("replaced", 3), ("streamed", 4)].map(|(n, s)| (open(n), s));
    let maps =
        [MapKind::Private, MapKind::Shared].map(|kind| Map::new(&open("resident"), size as usize, kind).expect("map"));
    let mut small = open("small");
    let mut written =
        OpenOptions::new().read(true).write(true).create_new(true).open(mount.join("written")).expect("open");
    written.write_all(b"before ").expect("write");
    fs::remove_file(mount.join("unlinked")).expect("unlink");
    fs::remove_file(source.path().join("small")).expect("unlink behind the mount");
    data::write_file(&source.path().join("new"), 5, size);
    fs::rename(source.path().join("new"), source.path().join("replaced")).expect("replace behind the mount");
    let listing = fs::read_dir(mount.path()).expect("open a directory");
    for round in 0..3 {
        kill_worker(&mount);
        for (file, seed) in &files {
            let mut found = vec![0; size as usize];
            file.read_exact_at(&mut found, 0).unwrap_or_else(|error| panic!("round {round}, {seed}: {error}"));
            data::check(*seed, 0, &found).expect("the content that was opened");
            assert_eq!(file.metadata().expect("stat").len(), size);
        }
        for map in &maps {
            data::check(1, 0, &map.to_vec()).expect("mapped");
        }
        small.rewind().expect("seek");
        let mut text = String::new();
        small.read_to_string(&mut text).expect("read");
        assert_eq!(text, "small");
        written.write_all(b"x").expect("write");
    }
    let mut names: Vec<_> = listing.map(|entry| entry.expect("entry").file_name()).collect();
    names.sort();
    assert_eq!(names, ["replaced", "resident", "streamed", "written"]);
    assert_eq!(fs::read(source.path().join("written")).expect("read"), b"before xxx");
    assert_eq!(data::check(5, 0, &whole("replaced")), Ok(()));
    drop((files, maps, small, written));
    assert!(answers(&mount));
    mount.stop();
}

/// A listing goes on where it was: nothing is missed and nothing comes twice.
#[test]
fn listings_go_on() {
    if !can_take_over() {
        return;
    }
    let source = temporary_folder("source");
    let all: Vec<OsString> = (0..3000).map(|number| format!("model-{number:04}.safetensors").into()).collect();
    for name in &all {
        fs::write(source.path().join(name), b"x").expect("write");
    }
    let mount = Mount::start(source.path(), &["--ram", "64M"]);
    let mut listing = fs::read_dir(mount.path()).expect("open a directory");
    let mut names = Vec::new();
    for kills in 1..=3 {
        let some = listing.by_ref().take(700).map(|entry| entry.expect("entry").file_name());
        names.extend(some);
        assert_eq!(names.len(), kills * 700);
        kill_worker(&mount);
    }
    names.extend(listing.map(|entry| entry.expect("entry").file_name()));
    names.sort();
    assert_eq!(names, all);
    mount.stop();
}

/// Thousands of names and handles are taken over, and what is forgotten is gone.
#[test]
fn many_names_are_known_again() {
    if !can_take_over() {
        return;
    }
    let source = temporary_folder("source");
    for number in 0..3000 {
        fs::write(source.path().join(format!("file-{number}")), number.to_string()).expect("write");
    }
    let mount = Mount::start(source.path(), &["--ram", "64M"]);
    let open: Vec<File> = (0..1000).map(|n| File::open(mount.join(&format!("file-{n}"))).expect("open")).collect();
    let seen = || {
        fs::read_dir(mount.path())
            .expect("list")
            .map(|entry| entry.expect("entry").metadata().expect("stat").len())
            .sum::<u64>()
    };
    let sum = seen();
    for _ in 0..3 {
        kill_worker(&mount);
        assert_eq!(seen(), sum);
        for (number, file) in open.iter().enumerate() {
            let mut text = [0; 8];
            let length = file.read_at(&mut text, 0).expect("read");
            assert_eq!(text[..length], *number.to_string().as_bytes());
        }
    }
    drop(open);
    mount.stop();
}

/// Who reopens a descriptor while somebody writes gets the resident number served by the daemon, and maps it. The kernel
/// then refuses passthrough for that number, whoever the worker is by then.
#[test]
fn a_number_that_is_open_in_another_way_is_not_opened_in_passthrough_by_the_next_worker() {
    if !can_take_over() {
        return;
    }
    let (source, size) = (temporary_folder("source"), 9 << 20);
    data::write_file(&source.path().join("model"), 1, size);
    let_files_settle();
    let mount = Mount::start(source.path(), &["--ram", "64M"]);
    let path = mount.join("model");
    for _ in 0..2 {
        fs::read(&path).expect("read");
    }
    assert!(mount.status().resident() >= size);
    let place =
        OpenOptions::new().read(true).custom_flags(nix::libc::O_PATH).open(&path).expect("a descriptor of the place");
    let writer = OpenOptions::new().write(true).open(&path).expect("open for writing");
    let reopened = File::open(format!("/proc/self/fd/{}", place.as_raw_fd())).expect("reopen");
    let map = Map::new(&reopened, size as usize, MapKind::Shared).expect("map");
    data::check(1, 0, &map.to_vec()).expect("mapped");
    drop(writer);
    for round in 0..3 {
        kill_worker(&mount);
        let again = fs::read(&path).unwrap_or_else(|error| panic!("round {round}: {error}"));
        data::check(1, 0, &again).expect("read by name");
        data::check(1, 0, &map.to_vec()).expect("mapped");
        let file = File::open(&path).expect("open");
        data::check(1, 0, &Map::new(&file, size as usize, MapKind::Private).expect("map").to_vec()).expect("mapped");
    }
    drop((map, reopened, place));
    mount.stop();
}

/// Without passthrough, the kernel keeps pages of a model under a number of its own, of which the next worker knows.
#[test]
fn what_the_kernel_keeps_goes_on() {
    if !can_take_over() {
        return;
    }
    let (source, size) = (temporary_folder("source"), 9 << 20);
    data::write_file(&source.path().join("model"), 1, size);
    let_files_settle();
    let mount = Mount::start(source.path(), &["--ram", "64M", "--no-passthrough"]);
    let path = mount.join("model");
    let open = || File::open(&path).expect("open");
    let mapped = |file: &File, kind| Map::new(file, size as usize, kind).expect("map");
    map_until_known(&mount, "model", size);
    for _ in 0..2 {
        data::check(1, 0, &mapped(&open(), MapKind::Private).to_vec()).expect("mapped");
    }
    let held = open();
    let maps = [MapKind::Private, MapKind::Shared].map(|kind| mapped(&held, kind));
    let check = |seed: u64, what: &str| {
        // Asked for again, as far as it is not mapped and looked at.
        fadvise(&held, 0, None, Advice::DontNeed).expect("fadvise");
        let shows = || {
            let mut found = vec![0; size as usize];
            held.read_exact_at(&mut found, 0).unwrap_or_else(|error| panic!("{what}: {error}"));
            maps.iter().map(Map::to_vec).chain([found]).all(|bytes| data::check(seed, 0, &bytes).is_ok())
        };
        assert!(wait_until(Duration::from_secs(2), shows), "{what}");
        data::check(seed, 0, &mapped(&open(), MapKind::Private).to_vec()).expect(what);
    };
    check(1, "as it was");
    for round in 0..2 {
        kill_worker(&mount);
        check(1, &format!("by another worker, round {round}"));
    }
    let write = |place: &Path, seed| {
        let file = OpenOptions::new().write(true).open(place).expect("open");
        file.write_all_at(&data::bytes(seed, 0, size as usize), 0).expect("write in place");
    };
    write(&source.path().join("model"), 2);
    check(2, "written behind the mount");
    kill_worker(&mount);
    write(&path, 3);
    check(3, "written through the mount");
    write(&source.path().join("model"), 4);
    kill_worker(&mount);
    check(4, "written behind the mount, before a kill");
    drop((maps, held));
    mount.stop();
}
