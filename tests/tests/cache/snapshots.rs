//! A mapping of a resident file is never changed: it outlives close, eviction, replacement, and the mount.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::Path;

use nix::mount::{MntFlags, umount2};
use rustix::fs::{SeekFrom, copy_file_range, seek};
use weightfs_tests::Mount;
use weightfs_tests::data;
use weightfs_tests::maps::{Map, MapKind};
use weightfs_tests::requirements::skip;
use weightfs_tests::system::{let_files_settle, temporary_folder, wait_until};

use crate::{MIB, PATIENCE, can_mount, make_resident};

const SIZE: u64 = 12 * MIB;

#[test]
fn mappings_outlive_everything() {
    if !can_mount() {
        return;
    }
    let source = temporary_folder("source");
    for (seed, name) in ["held", "x", "y", "z"].iter().enumerate() {
        data::write_file(&source.path().join(format!("{name}.safetensors")), seed as u64, SIZE);
    }
    let_files_settle();
    let mut mount = Mount::start(source.path(), &["--ram", "32M"]);
    if !mount.status().passthrough() {
        skip("the kernel or this user cannot do FUSE passthrough");
        return;
    }
    make_resident(&mount, "held.safetensors", SIZE);
    let path = mount.join("held.safetensors");
    let maps = [MapKind::Private, MapKind::Shared]
        .map(|kind| Map::new(&File::open(&path).expect("open"), SIZE as usize, kind).expect("map"));
    let open = File::open(&path).expect("open");
    let check = |what: &str| {
        for map in &maps {
            assert_eq!(data::check(0, 0, &map.to_vec()), Ok(()), "{what}: a mapping");
        }
        let mut found = vec![0; SIZE as usize];
        open.read_exact_at(&mut found, 0).unwrap_or_else(|error| panic!("{what}: an open file: {error}"));
        assert_eq!(data::check(0, 0, &found), Ok(()), "{what}: an open file");
    };
    check("resident");

    for round in 0..3 {
        for (seed, name) in [(1, "x"), (2, "y"), (3, "z")] {
            let found = fs::read(mount.join(&format!("{name}.safetensors"))).expect("read");
            assert_eq!((found.len() as u64, data::check(seed, 0, &found)), (SIZE, Ok(())), "round {round}");
        }
    }
    check("after reclaim");

    File::options()
        .write(true)
        .open(&path)
        .and_then(|f| f.write_all_at(&data::bytes(40, 0, SIZE as usize), 0))
        .expect("write");
    check("overwritten through the mount");
    let found = fs::read(&path).expect("read");
    assert_eq!(data::check(40, 0, &found), Ok(()), "a new open sees the new content");

    File::options()
        .write(true)
        .open(source.path().join("held.safetensors"))
        .and_then(|f| f.set_len(100))
        .expect("truncate");
    check("truncated behind the mount");
    assert_eq!(fs::read(&path).expect("read").len(), 100, "a new open sees the new length");

    data::write_file(&mount.join(".tmp"), 41, SIZE);
    fs::rename(mount.join(".tmp"), &path).expect("rename");
    check("renamed over");
    fs::remove_file(&path).expect("unlink");
    check("unlinked");
    assert!(mount.status().client_held() >= SIZE, "what clients hold is known: {:#}", mount.status().0);
    let status = mount.status();
    assert!(
        status.resident() + status.client_held() <= status.number("/ram/budget_bytes"),
        "and counts: {:#}",
        status.0
    );

    drop(open);
    umount2(mount.path(), MntFlags::MNT_DETACH).expect("umount -l");
    mount.check_gone();
    for map in &maps {
        assert_eq!(data::check(0, 0, &map.to_vec()), Ok(()), "after the daemon: a mapping");
    }
}

#[test]
fn what_clients_held_is_freed_when_they_let_go() {
    if !can_mount() {
        return;
    }
    let source = temporary_folder("source");
    data::write_file(&source.path().join("held.safetensors"), 0, SIZE);
    let_files_settle();
    let mount = Mount::start(source.path(), &["--ram", "64M"]);
    if !mount.status().passthrough() {
        skip("the kernel or this user cannot do FUSE passthrough");
        return;
    }
    make_resident(&mount, "held.safetensors", SIZE);
    let path = mount.join("held.safetensors");
    let map = Map::new(&File::open(&path).expect("open"), SIZE as usize, MapKind::Private).expect("map");
    fs::remove_file(&path).expect("unlink");
    let held = || mount.status().client_held();
    assert!(wait_until(PATIENCE, || held() >= SIZE), "{:#}", mount.status().0);
    assert_eq!(data::check(0, 0, &map.to_vec()), Ok(()));
    drop(map);
    assert!(wait_until(PATIENCE, || held() == 0), "{:#}", mount.status().0);
    mount.stop();
}

/// A way to change a file of `SIZE` bytes through the mount, and the content that it has then: a seed and a length, and
/// what was written behind that.
type Change = (&'static str, fn(&Path), (u64, u64, &'static [u8]));

const CHANGES: [Change; 5] = [
    (
        "overwritten in place",
        |path| {
            let file = File::options().write(true).open(path).expect("open");
            file.write_all_at(&data::bytes(50, 0, SIZE as usize), 0).expect("write");
        },
        (50, SIZE, b""),
    ),
    (
        "appended to",
        |path| File::options().append(true).open(path).expect("open").write_all(b"more").expect("append"),
        (60, SIZE, b"more"),
    ),
    (
        "truncated",
        |path| File::options().write(true).open(path).expect("open").set_len(5000).expect("truncate"),
        (60, 5000, b""),
    ),
    (
        "emptied and written again",
        |path| fs::write(path, data::bytes(51, 0, 70_000)).expect("write"),
        (51, 70_000, b""),
    ),
    (
        "renamed over",
        |path| {
            let new = path.with_extension("new");
            data::write_file(&new, 52, SIZE);
            fs::rename(new, path).expect("rename");
        },
        (52, SIZE, b""),
    ),
];

#[test]
fn whoever_holds_a_file_keeps_what_it_opened_however_it_is_changed() {
    if !can_mount() {
        return;
    }
    let source = temporary_folder("source");
    let name = |index: usize| format!("{index}.safetensors");
    for index in 0..CHANGES.len() {
        data::write_file(&source.path().join(name(index)), 60, SIZE);
    }
    let_files_settle();
    let mount = Mount::start(source.path(), &["--ram", "128M"]);
    if !mount.status().passthrough() {
        skip("the kernel or this user cannot do FUSE passthrough");
        return;
    }
    for (index, (what, change, (seed, length, rest))) in CHANGES.iter().enumerate() {
        let path = mount.join(&name(index));
        let prefetched = mount.run(&["prefetch", "--wait", path.to_str().expect("UTF-8")]);
        assert!(prefetched.status.success(), "{}", String::from_utf8_lossy(&prefetched.stderr));
        let passed = mount.status().number("/io/passthrough_opens");
        let held = File::open(&path).expect("open");
        assert_eq!(mount.status().number("/io/passthrough_opens"), passed + 1, "{what}: it is held in passthrough");
        let maps = [MapKind::Private, MapKind::Shared].map(|kind| Map::new(&held, SIZE as usize, kind).expect("map"));
        change(&path);
        let now = fs::read(&path).expect("read");
        let (kept, written) = now.split_at((*length as usize).min(now.len()));
        assert_eq!((kept.len() as u64, data::check(*seed, 0, kept)), (*length, Ok(())), "{what}: a new open");
        assert_eq!(written, *rest, "{what}: a new open");
        let mut found = vec![0; SIZE as usize];
        held.read_exact_at(&mut found, 0).unwrap_or_else(|error| panic!("{what}: an open file: {error}"));
        assert_eq!(data::check(60, 0, &found), Ok(()), "{what}: an open file");
        for map in maps {
            assert_eq!(data::check(60, 0, &map.to_vec()), Ok(()), "{what}: a mapping");
        }
        let copy = mount.join("copy");
        copy_by_kernel(&held, &copy);
        assert_eq!(data::check(60, 0, &fs::read(&copy).expect("read")), Ok(()), "{what}: a copy of an open file");
        let [data, hole] = [SeekFrom::Data(0), SeekFrom::Hole(0)].map(|from| seek(&held, from));
        assert_eq!((data, hole), (Ok(0), Ok(SIZE)), "{what}: data and holes of an open file");
    }
    mount.stop();
}

/// As `cp` does it.
fn copy_by_kernel(from: &File, to: &Path) {
    let to = File::create(to).expect("create");
    let (mut read_at, mut write_at) = (0, 0);
    while read_at < SIZE {
        let left = (SIZE - read_at) as usize;
        let copied =
            copy_file_range(from, Some(&mut read_at), &to, Some(&mut write_at), left).expect("copy_file_range");
        assert!(copied > 0, "it ended after {read_at} bytes");
    }
}
