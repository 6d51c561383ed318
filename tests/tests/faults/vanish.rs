//! Devices that vanish and come back.

use std::fs::{self, File};

use nix::libc::{EIO, ENODEV, ENOTCONN};
use weightfs_tests::Mount;
use weightfs_tests::data;
use weightfs_tests::faulty::{Fault, Rule};
use weightfs_tests::system::wait_until;

use crate::{MIB, PATIENCE, can_mount, faulty, is_right, read_at};

const SIZE: u64 = 16 * MIB;

#[test]
fn a_source_that_vanishes_gives_errors_and_is_there_again_when_it_is_back() {
    if !can_mount() {
        return;
    }
    let models = [("half.safetensors", 1, SIZE), ("whole.safetensors", 2, SIZE)];
    let (_folder, faulty) = faulty(&models);
    for errno in [ENODEV, ENOTCONN, EIO] {
        let mount = Mount::start(faulty.path(), &["--ram", "96M"]);
        // Twice: the second open is of the resident file, where there is passthrough.
        is_right(&mount, "whole.safetensors", 2, SIZE).expect("read");
        assert!(wait_until(PATIENCE, || mount.status().resident() >= SIZE), "it becomes resident");
        let passthrough = mount.status().passthrough();
        let whole = File::open(mount.join("whole.safetensors")).expect("open");
        let half = File::open(mount.join("half.safetensors")).expect("open");
        read_at(&half, 0, 1 << 20).expect("read");

        let rule = faulty.script.add(Rule::on(&[], Fault::Errno(errno)));
        // Open before, and all in RAM: passthrough goes on.
        for offset in (0..SIZE).step_by(MIB as usize).filter(|_| passthrough) {
            let bytes = read_at(&whole, offset, 1 << 20).expect("a snapshot needs no source");
            assert_eq!(data::check(2, offset, &bytes), Ok(()));
        }
        // The rest is right or an error; names and new files cannot be had.
        for offset in (0..SIZE).step_by(MIB as usize) {
            if let Ok(bytes) = read_at(&half, offset, 1 << 20) {
                assert_eq!(data::check(1, offset, &bytes), Ok(()), "at {offset}");
            }
        }
        assert!(read_at(&half, SIZE - 4096, 4096).is_err(), "its source is gone");
        assert!(File::open(mount.join("half.safetensors")).is_err());
        assert!(fs::write(mount.join("new"), b"x").is_err());
        mount.status().check_contract();

        faulty.script.remove(rule);
        for (name, seed, size) in models {
            is_right(&mount, name, seed, size).unwrap_or_else(|error| panic!("{name} after errno {errno}: {error}"));
        }
        drop((half, whole));
        mount.stop();
    }
}
