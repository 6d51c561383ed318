//! Sources that shrink, vanish, or are full.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;

use rustix::io::Errno;
use weightfs_tests::Mount;
use weightfs_tests::compare::outcome;
use weightfs_tests::data;
use weightfs_tests::requirements::{Need, met};
use weightfs_tests::system::{SmallDisk, let_files_settle, temporary_folder};

use crate::{MIB, can_mount};

#[test]
fn a_file_that_shrinks_under_a_reader_gives_less_and_nothing_wrong() {
    if !can_mount() {
        return;
    }
    let source = temporary_folder("source");
    let real = source.path().join("model.safetensors");
    for round in 0..4_u64 {
        let (before, after) = (64 * MIB, 10 * MIB + 4321 * round);
        data::write_file(&real, round, before);
        let_files_settle();
        let mount = Mount::start(source.path(), &["--ram", "128M", "--open-wait", "0"]);
        let file = File::open(mount.join("model.safetensors")).expect("open");
        let mut piece = vec![0; 1 << 20];
        for (index, offset) in (0..before).step_by(piece.len()).enumerate() {
            if index == 12 {
                File::options().write(true).open(&real).and_then(|file| file.set_len(after)).expect("truncate");
            }
            match file.read_at(&mut piece, offset) {
                Ok(n) => assert_eq!(data::check(round, offset, &piece[..n]), Ok(()), "round {round}, piece {index}"),
                Err(error) => assert_eq!(Errno::from_io_error(&error), Some(Errno::IO), "round {round}, piece {index}"),
            }
        }
        let found = fs::read(mount.join("model.safetensors")).expect("a new open works");
        assert_eq!((found.len() as u64, data::check(round, 0, &found)), (after, Ok(())), "the new content");
        drop(file);
        mount.stop();
    }
}

#[test]
fn a_source_that_vanishes_gives_errors_and_the_daemon_answers() {
    if !can_mount() {
        return;
    }
    let parent = temporary_folder("parent");
    let source = parent.path().join("models");
    fs::create_dir_all(source.join("loras")).expect("mkdir");
    data::write_file(&source.join("loras/model.safetensors"), 1, 8 * MIB);
    let_files_settle();
    let mount = Mount::start(&source, &["--ram", "64M"]);
    let held = File::open(mount.join("loras/model.safetensors")).expect("open");
    fs::remove_dir_all(&source).expect("remove the source");
    let mut found = vec![0; 8 << 20];
    held.read_exact_at(&mut found, 0).expect("who has it open goes on reading");
    assert_eq!(data::check(1, 0, &found), Ok(()));
    drop(held);
    assert_eq!(outcome(fs::write(mount.join("new"), b"x")), Err(Errno::NOENT));
    assert_eq!(outcome(File::open(mount.join("loras/model.safetensors")).map(drop)), Err(Errno::NOENT));
    mount.status().check_contract();
    mount.stop();
}

#[test]
fn a_full_disk_is_reported_to_who_fills_it() {
    if !met(&[Need::Mount, Need::Root]) {
        return;
    }
    let disk = SmallDisk::mount("16m");
    data::write_file(&disk.path().join("model.safetensors"), 1, 6 * MIB);
    let_files_settle();
    let mount = Mount::start(disk.path(), &["--ram", "64M"]);
    let full = outcome(fs::write(mount.join("large"), vec![1; 20 << 20]));
    assert_eq!(full, Err(Errno::NOSPC));
    let found = fs::read(mount.join("model.safetensors")).expect("read");
    assert_eq!((found.len() as u64, data::check(1, 0, &found)), (6 * MIB, Ok(())));
    fs::remove_file(mount.join("large")).expect("unlink");
    fs::write(mount.join("small"), vec![2; 1 << 20]).expect("there is room again");
    assert_eq!(fs::read(disk.path().join("small")).expect("read"), vec![2; 1 << 20]);
    mount.stop();
}
