//! A source that does not answer holds up only who asks it.

use std::fs;
use std::sync::mpsc::{TryRecvError, channel};

use weightfs_tests::Mount;
use weightfs_tests::data;
use weightfs_tests::faulty::{Fault, Op, Rule};
use weightfs_tests::system::{let_files_settle, temporary_folder, wait_until};

use crate::{MIB, PATIENCE, can_mount, faulty, is_right, read_aside};

/// More than there are threads that take requests, and than any pool of a few.
const CLIENTS: usize = 24;

#[test]
fn one_mount_does_not_answer_and_the_other_does() {
    if !can_mount() {
        return;
    }
    let (_folder, faulty) = faulty(&[("stuck.safetensors", 1, 24 * MIB)]);
    let plain = temporary_folder("plain");
    data::write_file(&plain.path().join("model.safetensors"), 2, 24 * MIB);
    fs::write(plain.path().join("small"), b"small").expect("write");
    let_files_settle();
    let places = [temporary_folder("a"), temporary_folder("b")];
    let text = |path: &std::path::Path| path.to_str().expect("UTF-8").to_owned();
    let also = format!("{}:{}", text(plain.path()), text(places[1].path()));
    let (source, mountpoint) = (text(faulty.path()), text(places[0].path()));
    let arguments = ["--ram", "128M", "--open-wait", "0", "--also", &also, &source, &mountpoint];
    let mount = Mount::start_raw(faulty.path(), places[0].path(), &arguments, None);
    fs::metadata(mount.join("stuck.safetensors")).expect("it answers at first");

    let hang = faulty.hang(Rule::on(&[], Fault::Hang));
    let waiting: Vec<_> =
        (0..CLIENTS).map(|client| read_aside(&mount, "stuck.safetensors", client as u64 * MIB, 1 << 16)).collect();
    assert!(wait_until(PATIENCE, || faulty.hanging() > 0), "somebody waits for the source");

    let (send, done) = channel();
    let other = places[1].path().to_owned();
    std::thread::spawn(move || {
        let small = fs::read(other.join("small")).expect("read");
        let large = fs::read(other.join("model.safetensors")).expect("read");
        fs::write(other.join("new"), b"new").expect("write");
        let names = fs::read_dir(&other).expect("list").count();
        send.send((small, data::check(2, 0, &large), names)).expect("somebody waits");
    });
    let (small, large, names) = done.recv_timeout(PATIENCE).expect("the other mount answers");
    assert_eq!((&small[..], large, names), (&b"small"[..], Ok(()), 3));
    let filled = wait_until(PATIENCE, || mount.status().resident() >= 24 * MIB);
    assert!(filled, "fills of the other mount go on: {:#}", mount.status().0);
    mount.status().check_contract();
    assert!(waiting.iter().all(|answer| answer.try_recv() == Err(TryRecvError::Empty)), "they wait for their source");

    drop(hang);
    for (client, answer) in waiting.iter().enumerate() {
        let bytes = answer.recv_timeout(PATIENCE).expect("it is answered").expect("read");
        assert_eq!(data::check(1, client as u64 * MIB, &bytes), Ok(()), "client {client}");
    }
    is_right(&mount, "stuck.safetensors", 1, 24 * MIB).expect("the source is back");
    let filled = wait_until(PATIENCE, || mount.status().resident() >= 48 * MIB);
    assert!(filled, "its fills go on: {:#}", mount.status().0);
    let output = mount.run(&["unmount", places[1].path().to_str().expect("UTF-8")]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    mount.stop();
}

#[test]
fn one_file_does_not_answer_and_the_others_do() {
    if !can_mount() {
        return;
    }
    let (_folder, faulty) = faulty(&[("stuck.safetensors", 1, 48 * MIB), ("model.safetensors", 2, 24 * MIB)]);
    fs::write(faulty.backing().join("small"), b"small").expect("write");
    let mount = Mount::start(faulty.path(), &["--ram", "128M", "--open-wait", "0"]);
    let hang = faulty.hang(Rule::on(&[Op::Read], Fault::Hang).of("stuck.safetensors"));
    let waiting: Vec<_> =
        (0..CLIENTS).map(|client| read_aside(&mount, "stuck.safetensors", client as u64 * 2 * MIB, 1 << 16)).collect();
    assert!(wait_until(PATIENCE, || faulty.hanging() > 0), "somebody waits for the file");

    let (send, done) = channel();
    let [model, small, list] = ["model.safetensors", "small", ""].map(|name| mount.join(name));
    std::thread::spawn(move || {
        let small = fs::read(small).expect("read");
        let model = fs::read(model).expect("read");
        send.send((small, data::check(2, 0, &model), fs::read_dir(list).expect("list").count())).expect("sent");
    });
    let (small, large, names) = done.recv_timeout(PATIENCE).expect("the other files answer");
    assert_eq!((&small[..], large, names), (&b"small"[..], Ok(()), 3));
    mount.status().check_contract();

    drop(hang);
    for (client, answer) in waiting.iter().enumerate() {
        let bytes = answer.recv_timeout(PATIENCE).expect("it is answered").expect("read");
        assert_eq!(data::check(1, client as u64 * 2 * MIB, &bytes), Ok(()), "client {client}");
    }
    mount.stop();
}

#[test]
fn a_client_that_is_killed_while_it_waits_leaves_nothing_behind() {
    if !can_mount() {
        return;
    }
    let (_folder, faulty) = faulty(&[("stuck.safetensors", 1, 8 * MIB)]);
    let mount = Mount::start(faulty.path(), &["--ram", "64M"]);
    let hang = faulty.hang(Rule::on(&[Op::Open, Op::Read], Fault::Hang));
    let mut client = std::process::Command::new("cat")
        .arg(mount.join("stuck.safetensors"))
        .stdout(std::process::Stdio::null())
        .spawn()
        .expect("run cat");
    assert!(wait_until(PATIENCE, || faulty.hanging() > 0), "it waits");
    client.kill().expect("kill it");
    assert!(mount.run(&["status"]).status.success(), "status answers");
    drop(hang);
    client.wait().expect("it has ended");
    is_right(&mount, "stuck.safetensors", 1, 8 * MIB).expect("others can use it");
    mount.stop();
}
