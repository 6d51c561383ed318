//! Without passthrough, what is mapped again and again is kept by the kernel: the daemon hands it out once.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;

use weightfs_tests::Mount;
use weightfs_tests::data;
use weightfs_tests::load::{last_load, map_until_known};
use weightfs_tests::maps::{Map, MapKind};
use weightfs_tests::system::{let_files_settle, temporary_folder, wait_until};

use crate::{MIB, PATIENCE, can_mount, make_resident};

const SIZE: u64 = 24 * MIB;

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

#[test]
fn a_mapped_model_is_handed_out_once() {
    if !can_mount() {
        return;
    }
    let source = temporary_folder("source");
    data::write_file(&source.path().join("model"), 1, SIZE);
    let_files_settle();
    let mount = Mount::start(source.path(), &["--ram", "96M", "--no-passthrough"]);
    map_until_known(&mount, "model", SIZE);
    let first = handed_out(&mount, || map_whole(&mount, "model", 1, MapKind::Private));
    assert!(first >= SIZE, "{first} bytes: under a number of its own nothing is kept yet");
    for kind in [MapKind::Private, MapKind::Shared, MapKind::Private] {
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
    map_until_known(&mount, "model", SIZE);
    map_whole(&mount, "model", 2, MapKind::Shared);
    let file = File::options().write(true).open(source.path().join("model")).expect("open");
    file.write_all_at(&data::bytes(3, 0, SIZE as usize), 0).expect("write");
    drop(file);
    map_whole(&mount, "model", 3, MapKind::Shared);
    mount.stop();
}

/// What is read by system calls is handed out without passing through the page cache: that is faster, and holds no second
/// copy in memory.
#[test]
fn what_is_read_is_not_kept_twice() {
    if !can_mount() {
        return;
    }
    let source = temporary_folder("source");
    data::write_file(&source.path().join("model"), 1, SIZE);
    let_files_settle();
    let mount = Mount::start(source.path(), &["--ram", "96M", "--no-passthrough"]);
    make_resident(&mount, "model", SIZE);
    assert!(wait_until(PATIENCE, || !last_load(&mount, "model").is_empty()));
    for _ in 0..2 {
        let read = || fs::read(mount.join("model")).expect("read");
        let bytes = handed_out(&mount, || assert_eq!(data::check(1, 0, &read()), Ok(())));
        assert!(bytes >= SIZE, "{bytes} bytes");
    }
    mount.stop();
}
