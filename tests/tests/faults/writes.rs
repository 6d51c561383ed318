//! Writes that the source does not take.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::sync::mpsc::channel;

use nix::libc::{EIO, ENOSPC};
use rustix::io::Errno;
use weightfs_tests::Mount;
use weightfs_tests::data;
use weightfs_tests::faulty::{Fault, Op, Rule};
use weightfs_tests::system::wait_until;

use crate::{MIB, PATIENCE, can_mount, faulty, of_io};

#[test]
fn a_writer_is_told_and_what_was_written_stays() {
    if !can_mount() {
        return;
    }
    let (_folder, faulty) = faulty(&[("old.safetensors", 1, 4 * MIB)]);
    let mount = Mount::start(faulty.path(), &["--ram", "64M"]);
    let file = File::create(mount.join("new")).expect("create");
    for (errno, expected) in [(ENOSPC, Errno::NOSPC), (EIO, Errno::IO)] {
        // The first two MiB fit.
        let rule = faulty.script.add(Rule::on(&[Op::Write], Fault::Errno(errno)).at(2 * MIB..u64::MAX).of("new"));
        file.write_all_at(&data::bytes(7, 0, 2 << 20), 0).expect("there is room for these");
        let refused = file.write_all_at(&data::bytes(7, 2 * MIB, 1 << 20), 2 * MIB);
        assert_eq!(refused.map_err(of_io), Err(expected));
        assert_eq!(file.set_len(8 * MIB).map_err(of_io), Err(expected), "truncation is told as well");
        assert_eq!(file.sync_all().map_err(of_io), Err(expected), "and so is what cannot be made durable");
        faulty.script.remove(rule);
        let found = fs::read(mount.join("new")).expect("read");
        assert_eq!((found.len() as u64, data::check(7, 0, &found)), (2 * MIB, Ok(())), "nothing is lost");
        assert_eq!(fs::read(faulty.backing().join("new")).expect("read"), found);
    }
    // There is room again.
    file.write_all_at(&data::bytes(7, 2 * MIB, 1 << 20), 2 * MIB).expect("write");
    file.sync_all().expect("sync");
    let found = fs::read(mount.join("new")).expect("read");
    assert_eq!((found.len() as u64, data::check(7, 0, &found)), (3 * MIB, Ok(())));
    drop(file);
    mount.stop();
}

#[test]
fn a_writer_waits_for_its_source_and_readers_do_not_wait_for_it() {
    if !can_mount() {
        return;
    }
    let (_folder, faulty) = faulty(&[("model.safetensors", 1, 8 * MIB)]);
    let mount = Mount::start(faulty.path(), &["--ram", "64M", "--open-wait", "0"]);
    let hang = faulty.hang(Rule::on(&[Op::Write], Fault::Hang));
    let (send, written) = channel();
    for writer in 0..12_u64 {
        let (path, send) = (mount.join(&format!("new-{writer}")), send.clone());
        std::thread::spawn(move || send.send(fs::write(path, data::bytes(writer, 0, 100_000))).expect("sent"));
    }
    assert!(wait_until(PATIENCE, || faulty.hanging() >= 12), "{} hang", faulty.hanging());
    let reader = crate::read_aside(&mount, "model.safetensors", MIB, 1 << 20);
    let bytes = reader.recv_timeout(PATIENCE).expect("readers are served").expect("read");
    assert_eq!(data::check(1, MIB, &bytes), Ok(()));
    drop(hang);
    for _ in 0..12 {
        written.recv_timeout(PATIENCE).expect("it goes on").expect("write");
    }
    for writer in 0..12_u64 {
        let found = fs::read(faulty.backing().join(format!("new-{writer}"))).expect("read");
        assert_eq!((found.len(), data::check(writer, 0, &found)), (100_000, Ok(())));
    }
    mount.stop();
}
