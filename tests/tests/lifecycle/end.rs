//! Ends: by every way to unmount, and with clients inside.

use std::fs::{self, File};
use std::process::Command;
use std::time::Duration;

use nix::mount::{MntFlags, umount2};
use nix::sys::signal::Signal;
use weightfs_tests::Mount;
use weightfs_tests::data;
use weightfs_tests::requirements::skip;
use weightfs_tests::system::{has_program, let_files_settle, processes_mentioning, temporary_folder, wait_until};

use crate::{Traces, can_mount};

/// Mounts, uses the mount, ends it with `end`, and looks for anything that is left.
fn ends_cleanly(what: &str, end: impl Fn(&Mount)) {
    if !can_mount() {
        return;
    }
    let traces = Traces::note();
    let source = temporary_folder("source");
    data::write_file(&source.path().join("model.safetensors"), 1, 5 << 20);
    let_files_settle();
    let mut mount = Mount::start(source.path(), &["--ram", "64M"]);
    for _ in 0..2 {
        let found = fs::read(mount.join("model.safetensors")).expect("read");
        assert_eq!((found.len(), data::check(1, 0, &found)), (5 << 20, Ok(())));
    }
    fs::write(mount.join("new"), b"kept").expect("write");
    end(&mount);
    mount.check_gone();
    let place = mount.path().to_str().expect("UTF-8").to_owned();
    let gone = || processes_mentioning(&place).is_empty();
    assert!(
        wait_until(Duration::from_secs(10), gone),
        "{what} leaves the processes {:?}",
        processes_mentioning(&place)
    );
    assert_eq!(fs::read_dir(mount.path()).expect("the empty mount point is there").count(), 0);
    assert_eq!(fs::read(source.path().join("new")).expect("read"), b"kept");
    traces.check(what);
}

#[test]
fn by_weightfs_unmount() {
    ends_cleanly("weightfs unmount", |mount| {
        let output = mount.run(&["unmount", mount.path().to_str().expect("UTF-8")]);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        assert!(!mount.is_mounted(), "it returns when the mount is gone");
    });
}

#[test]
fn by_umount() {
    ends_cleanly("umount", |mount| umount2(mount.path(), MntFlags::empty()).expect("umount"));
}

#[test]
fn by_fusermount() {
    if !has_program("fusermount3") {
        skip("fusermount3 is not installed (package fuse3)");
        return;
    }
    ends_cleanly("fusermount3 -u", |mount| {
        let status = Command::new("fusermount3").arg("-u").arg(mount.path()).status().expect("run fusermount3");
        assert!(status.success());
    });
}

#[test]
fn by_sigterm() {
    ends_cleanly("SIGTERM", |mount| mount.signal(Signal::SIGTERM));
}

#[test]
fn by_sigint() {
    ends_cleanly("SIGINT", |mount| mount.signal(Signal::SIGINT));
}

#[test]
fn a_mount_in_use_stays_until_it_is_let_go() {
    if !can_mount() {
        return;
    }
    let traces = Traces::note();
    let source = temporary_folder("source");
    data::write_file(&source.path().join("model.safetensors"), 1, 5 << 20);
    let mount = Mount::start(source.path(), &["--ram", "64M"]);
    let file = File::open(mount.join("model.safetensors")).expect("open");
    let place = mount.path().to_str().expect("UTF-8");
    let refused = mount.run(&["unmount", place]);
    assert!(!refused.status.success(), "somebody has a file open");
    let message = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(message.contains(place) && message.to_lowercase().contains("use"), "{message}");
    let found = fs::read(mount.join("model.safetensors")).expect("it goes on");
    assert_eq!(data::check(1, 0, &found), Ok(()));
    drop(file);
    mount.stop();
    traces.check("a mount in use");
}

#[test]
fn again_and_again_on_one_folder() {
    if !can_mount() {
        return;
    }
    let traces = Traces::note();
    let source = temporary_folder("source");
    fs::write(source.path().join("f"), b"x").expect("write");
    for _ in 0..5 {
        let mount = Mount::over(source.path(), &["--ram", "64M"]);
        assert_eq!(fs::read(mount.join("f")).expect("read"), b"x");
        mount.stop();
    }
    traces.check("five mounts");
}
