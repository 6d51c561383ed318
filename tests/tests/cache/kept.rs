//! Without passthrough, what is mapped again and again is kept by the kernel: the daemon hands it out once.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;

use rustix::fs::{Advice, fadvise};
use tempfile::TempDir;
use weightfs_tests::Mount;
use weightfs_tests::data;
use weightfs_tests::load::{last_load, map_until_known};
use weightfs_tests::maps::{Map, MapKind};
use weightfs_tests::system::{let_files_settle, temporary_folder, wait_until};

use crate::{MIB, PATIENCE, can_mount, make_resident};

const SIZE: u64 = 24 * MIB;

/// A mount of a folder with one model, as old as it must be to be kept.
fn with_model(options: &[&str]) -> Option<(TempDir, Mount)> {
    if !can_mount() {
        return None;
    }
    let source = temporary_folder("source");
    data::write_file(&source.path().join("model"), 1, SIZE);
    let_files_settle();
    let mount = Mount::start(source.path(), options);
    Some((source, mount))
}

/// Bytes that the daemon handed out while `act` was done.
fn handed_out(mount: &Mount, act: impl FnOnce()) -> u64 {
    let served = || mount.status().number("/io/served_from_ram_bytes") + mount.status().source_read();
    let before = served();
    act();
    served() - before
}

fn map_whole(mount: &Mount, name: &str, seed: u64, kind: MapKind) {
    let file = File::open(mount.join(name)).expect("open");
    let map = Map::new(&file, SIZE as usize, kind).expect("map");
    assert_eq!(data::check(seed, 0, &map.to_vec()), Ok(()), "{name} as {kind:?}");
}

/// Maps all of `name` until the daemon has nothing to do with it any more, which is so as soon as it has noticed that the
/// load before is over, and the kernel has its pages.
fn make_kept(mount: &Mount, name: &str, seed: u64) {
    map_until_known(mount, name, SIZE);
    let is_kept = (0..5).any(|_| handed_out(mount, || map_whole(mount, name, seed, MapKind::Private)) < SIZE / 4);
    assert!(is_kept, "what is mapped is handed out each time: {:#}", mount.status().0);
}

#[test]
fn a_mapped_model_is_handed_out_once() {
    let Some((source, mount)) = with_model(&["--ram", "96M", "--no-passthrough"]) else { return };
    make_kept(&mount, "model", 1);
    for kind in [MapKind::Shared, MapKind::Private] {
        let again = handed_out(&mount, || map_whole(&mount, "model", 1, kind));
        assert!(again < SIZE / 4, "{again} bytes are handed out again");
    }

    // Others read it meanwhile as they always did, and get the same.
    let mut found = vec![0; SIZE as usize];
    File::open(mount.join("model")).expect("open").read_exact_at(&mut found, 0).expect("read");
    assert_eq!(data::check(1, 0, &found), Ok(()));

    // Replaced, or written in place: the next one gets what is there now.
    data::write_file(&source.path().join("new"), 2, SIZE);
    fs::rename(source.path().join("new"), source.path().join("model")).expect("rename");
    map_whole(&mount, "model", 2, MapKind::Private);
    let_files_settle();
    make_kept(&mount, "model", 2);
    write_in_place(&source.path().join("model"), 3);
    map_whole(&mount, "model", 3, MapKind::Shared);
    let_files_settle();
    make_kept(&mount, "model", 3);
    write_in_place(&mount.join("model"), 4);
    map_whole(&mount, "model", 4, MapKind::Private);
    mount.stop();
}

fn write_in_place(path: &Path, seed: u64) {
    let file = File::options().write(true).open(path).expect("open");
    file.write_all_at(&data::bytes(seed, 0, SIZE as usize), 0).expect("write");
}

/// What is mapped from pages that the kernel keeps is a stream as any other: it shows what becomes of its file.
#[test]
fn mappings_of_what_is_kept_follow_their_file() {
    let Some((source, mount)) = with_model(&["--ram", "96M", "--no-passthrough"]) else { return };
    make_kept(&mount, "model", 1);
    let path = mount.join("model");
    let held = File::open(&path).expect("open");
    let maps = [MapKind::Private, MapKind::Shared].map(|kind| Map::new(&held, SIZE as usize, kind).expect("map"));
    let show = |seed: u64, what: &str| {
        let shows = || {
            let mut found = vec![0; SIZE as usize];
            held.read_exact_at(&mut found, 0).expect("read");
            maps.iter().map(Map::to_vec).chain([found]).all(|bytes| data::check(seed, 0, &bytes).is_ok())
        };
        assert!(wait_until(Duration::from_secs(2), shows), "{what}: not shown by who has it open");
        map_whole(&mount, "model", seed, MapKind::Shared);
    };
    show(1, "as it was");
    write_in_place(&source.path().join("model"), 2);
    show(2, "written behind the mount");
    write_in_place(&source.path().join("model"), 3);
    show(3, "and again");
    let writer = File::options().write(true).open(&path).expect("open");
    for seed in [4, 5, 6] {
        writer.write_all_at(&data::bytes(seed, 0, SIZE as usize), 0).expect("write");
        show(seed, "written through the mount");
    }
    drop(writer);
    // Emptied and written again, by a shared mapping.
    let writer = File::options().read(true).write(true).open(&path).expect("open");
    writer.set_len(0).expect("truncate");
    writer.set_len(SIZE).expect("extend");
    let zeros = || maps.iter().all(|map| map.to_vec().iter().all(|byte| *byte == 0));
    assert!(wait_until(Duration::from_secs(2), zeros), "emptied through the mount");
    writer.write_all_at(&data::bytes(7, 0, SIZE as usize), 0).expect("write");
    show(7, "written again");
    drop((writer, maps));
    drop(held);
    mount.stop();
}

/// As above where there is too little room for the model, whatever it is opened as. Nothing but the mapping is looked at, all
/// the time: what the kernel drops is asked for again at once.
#[test]
fn mappings_of_streams_follow_their_file() {
    for options in [&["--ram", "16M"] as &[&str], &["--ram", "16M", "--no-passthrough"]] {
        let Some((source, mount)) = with_model(options) else { return };
        let file = File::open(mount.join("model")).expect("open");
        let map = Map::new(&file, SIZE as usize, MapKind::Private).expect("map");
        drop(file);
        assert_eq!(data::check(1, 0, &map.to_vec()), Ok(()));
        for seed in 2..6 {
            write_in_place(&source.path().join("model"), seed);
            let shows = || data::check(seed, 0, &map.to_vec()).is_ok();
            assert!(wait_until(Duration::from_secs(2), shows), "{options:?}: content {seed} is not shown");
        }
        drop(map);
        mount.stop();
    }
}

/// Pages that the kernel keeps of it do not hold a model in the arena: what is used more has its place.
#[test]
fn what_is_kept_can_be_evicted_while_it_is_mapped() {
    let Some((_source, mount)) = with_model(&["--ram", "96M", "--no-passthrough"]) else { return };
    make_kept(&mount, "model", 1);
    let file = File::open(mount.join("model")).expect("open");
    let map = Map::new(&file, SIZE as usize, MapKind::Private).expect("map");
    let evicted = mount.run(&["flush", mount.join("model").to_str().expect("UTF-8")]);
    assert!(evicted.status.success(), "{}", String::from_utf8_lossy(&evicted.stderr));
    assert!(wait_until(PATIENCE, || mount.status().resident() == 0), "{:#}", mount.status().0);
    fadvise(&file, 0, None, Advice::DontNeed).expect("fadvise");
    assert_eq!(data::check(1, 0, &map.to_vec()), Ok(()), "from the source again");
    map_whole(&mount, "model", 1, MapKind::Shared);
    drop((map, file));
    mount.stop();
}

/// What is read by system calls is handed out without passing through the page cache: that is faster, and holds no second
/// copy in memory.
#[test]
fn what_is_read_is_not_kept_twice() {
    let Some((_source, mount)) = with_model(&["--ram", "96M", "--no-passthrough"]) else { return };
    make_resident(&mount, "model", SIZE);
    assert!(wait_until(PATIENCE, || !last_load(&mount, "model").is_empty()));
    for _ in 0..2 {
        let read = || fs::read(mount.join("model")).expect("read");
        let bytes = handed_out(&mount, || assert_eq!(data::check(1, 0, &read()), Ok(())));
        assert!(bytes >= SIZE, "{bytes} bytes");
    }
    mount.stop();
}
