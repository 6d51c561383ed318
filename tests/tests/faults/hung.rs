//! A source that does not answer holds up only who asks it.

use std::fs::{self, File};
use std::sync::mpsc::{TryRecvError, channel};

use nix::mount::{MntFlags, MsFlags, umount2};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use weightfs_tests::Mount;
use weightfs_tests::data;
use weightfs_tests::faulty::{Fault, Op, Rule};
use weightfs_tests::system::{let_files_settle, temporary_folder, wait_until};

use crate::{MIB, PATIENCE, can_mount, faulty, is_right, read_aside, read_at};

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
fn a_mount_whose_source_does_not_answer_can_be_unmounted() {
    if !can_mount() {
        return;
    }
    for lazy in [true, false] {
        let (_folder, faulty) = faulty(&[("stuck.safetensors", 1, 8 * MIB)]);
        let plain = temporary_folder("plain");
        let places = [temporary_folder("a"), temporary_folder("b")];
        let text = |path: &std::path::Path| path.to_str().expect("UTF-8").to_owned();
        let also = format!("{}:{}", text(faulty.path()), text(places[1].path()));
        let (source, mountpoint) = (text(plain.path()), text(places[0].path()));
        let arguments = ["--ram", "64M", "--also", &also, &source, &mountpoint];
        let mount = Mount::start_raw(plain.path(), places[0].path(), &arguments, None);
        let there = wait_until(PATIENCE, || places[1].path().join("stuck.safetensors").exists());
        assert!(there, "the second mount answers");
        let hang = faulty.hang(Rule::on(&[], Fault::Hang));
        let stuck = places[1].path().to_owned();
        let waiting = lazy.then(|| std::thread::spawn(move || fs::read_dir(stuck).map(Iterator::count)));
        assert!(!lazy || wait_until(PATIENCE, || faulty.hanging() > 0), "somebody waits for the source");
        // No attribute of the mountpoint is believed any more.
        std::thread::sleep(std::time::Duration::from_secs(2));

        let (send, done) = channel();
        let stuck = text(places[1].path());
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let arguments = ["unmount", "--lazy", &stuck];
                let arguments = if lazy { &arguments[..] } else { &["unmount", &stuck][..] };
                send.send(mount.run(arguments)).expect("somebody waits");
            });
            let unmounted = done.recv_timeout(PATIENCE);
            drop(hang);
            let output = unmounted.expect("it does not wait for the source");
            assert!(output.status.success(), "lazy: {lazy}: {}", String::from_utf8_lossy(&output.stderr));
        });
        if let Some(waiting) = waiting {
            let _ = waiting.join().expect("no panic");
        }
        mount.stop();
    }
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
    mount.status().check_contract();
    drop(hang);
    client.wait().expect("it has ended");
    is_right(&mount, "stuck.safetensors", 1, 8 * MIB).expect("others can use it");
    mount.stop();
}

#[test]
fn another_worker_begins_while_the_source_does_not_answer() {
    if !can_mount() {
        return;
    }
    let (_folder, faulty) = faulty(&[("kept.safetensors", 1, 8 * MIB), ("stuck.safetensors", 2, 24 * MIB)]);
    let mount = Mount::start(faulty.path(), &["--ram", "64M", "--open-wait", "0"]);
    is_right(&mount, "kept.safetensors", 1, 8 * MIB).expect("the source answers");
    let kept = || mount.status().resident() >= 8 * MIB;
    assert!(wait_until(PATIENCE, kept), "{:#}", mount.status().0);
    // One handle of each kind, and a client that waits.
    let [resident, stream] = ["kept", "stuck"].map(|name| File::open(mount.join(&format!("{name}.safetensors"))));
    let (resident, stream) = (resident.expect("open"), stream.expect("open"));
    let before = mount.status();
    let hang = faulty.hang(Rule::on(&[], Fault::Hang));
    let waiting = read_aside(&mount, "stuck.safetensors", 20 * MIB, 1 << 16);
    assert!(wait_until(PATIENCE, || faulty.hanging() > 0), "somebody waits for the source");

    let worker = before.number("/worker/pid");
    kill(Pid::from_raw(worker as i32), Signal::SIGKILL).expect("kill the worker");
    let (send, status) = channel();
    std::thread::scope(|scope| {
        let mount = &mount;
        scope.spawn(move || {
            let others = || mount.run(&["status", mount.path().to_str().expect("UTF-8")]).status.success();
            assert!(wait_until(PATIENCE, others), "{}", mount.log());
            send.send(mount.status()).expect("somebody waits");
        });
        let status = status.recv_timeout(PATIENCE).expect("status answers");
        assert_ne!(status.number("/worker/pid"), worker, "another worker");
        assert_eq!(status.resident(), before.resident(), "{:#}", status.0);
    });
    let (send, read) = channel();
    std::thread::spawn(move || {
        let bytes = read_at(&resident, 5 * MIB, 1 << 20).expect("it is in RAM");
        send.send(data::check(1, 5 * MIB, &bytes)).expect("somebody waits");
    });
    assert_eq!(read.recv_timeout(PATIENCE), Ok(Ok(())), "what is in RAM is read");
    assert!(waiting.try_recv() == Err(TryRecvError::Empty), "who asked the source waits for it");

    drop(hang);
    let bytes = waiting.recv_timeout(PATIENCE).expect("it is answered").expect("read");
    assert_eq!(data::check(2, 20 * MIB, &bytes), Ok(()));
    let bytes = read_at(&stream, MIB, 1 << 20).expect("a handle of the worker before");
    assert_eq!(data::check(2, MIB, &bytes), Ok(()));
    drop(stream);
    mount.stop();
}

/// Gone with this value.
struct Below(std::path::PathBuf);

impl Drop for Below {
    fn drop(&mut self) {
        let _ = umount2(&self.0, MntFlags::MNT_DETACH);
    }
}

/// A client asks for a name in a folder that does not answer, so that the kernel holds the lock of that folder. What it
/// is to forget of the others it forgets all the same.
#[test]
fn changes_are_told_while_a_folder_below_does_not_answer() {
    if !can_mount() {
        return;
    }
    let (_folder, faulty) = faulty(&[("stuck.safetensors", 1, 8 * MIB)]);
    let source = temporary_folder("source");
    let locals = |folder: &std::path::Path| (0..32).map(|n| folder.join(format!("local-{n}"))).collect::<Vec<_>>();
    let write_all = |text: &str| locals(source.path()).iter().for_each(|path| fs::write(path, text).expect("write"));
    write_all("before");
    let below = source.path().join("below");
    fs::create_dir(&below).expect("mkdir");
    nix::mount::mount(Some(faulty.path()), &below, None::<&str>, MsFlags::MS_BIND, None::<&str>).expect("bind");
    let _below = Below(below);
    let mount = Mount::start(source.path(), &["--ram", "64M"]);
    let are_long = |length| {
        let sizes = locals(mount.path()).into_iter().map(|path| fs::metadata(path).expect("stat").len());
        sizes.filter(|size| *size == length).count() == 32
    };
    fs::metadata(mount.join("below/stuck.safetensors")).expect("it answers at first");
    assert!(are_long(6));
    let hang = faulty.hang(Rule::on(&[], Fault::Hang));
    let absent = mount.join("below/absent");
    let asks = std::thread::spawn(move || fs::metadata(absent).map(drop));
    assert!(wait_until(PATIENCE, || faulty.hanging() > 0), "somebody waits for the folder");

    // The next one makes the kernel forget everything, and does not know yet what has changed.
    let worker = mount.status().number("/worker/pid");
    kill(Pid::from_raw(worker as i32), Signal::SIGKILL).expect("kill the worker");
    write_all("behind the mount");
    let seen = wait_until(PATIENCE, || are_long(16));
    drop(hang);
    assert!(seen, "old sizes are shown still");
    let answer = asks.join().expect("no panic");
    assert_eq!(answer.map_err(|error| error.kind()), Err(std::io::ErrorKind::NotFound));
    mount.stop();
}
