//! What cannot be done is refused with a message that says what to do, and leaves nothing.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use weightfs_tests::Mount;
use weightfs_tests::actor::ALICE;
use weightfs_tests::mount::{binary, program};
use weightfs_tests::requirements::{Need, met, skip};
use weightfs_tests::system::{find_program, has_program, mounts_on, temporary_folder};

use crate::{Traces, can_mount};

/// Fails, says each of `words`, and says it without a panic.
fn check_refusal(what: &str, output: &Output, words: &[&str]) {
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success(), "{what} is not refused");
    assert!(!message.contains("panicked"), "{what}: {message}");
    for word in words {
        assert!(message.to_lowercase().contains(&word.to_lowercase()), "{what}: no {word:?} in: {message}");
    }
}

fn text(path: &Path) -> &str {
    path.to_str().expect("UTF-8")
}

#[test]
fn places_that_cannot_be_mounted_on() {
    if !can_mount() {
        return;
    }
    let traces = Traces::note();
    let (source, private, place) = (temporary_folder("source"), temporary_folder("run"), temporary_folder("mnt"));
    fs::write(source.path().join("file"), b"x").expect("write");
    let full = place.path().join("full");
    fs::create_dir(&full).expect("mkdir");
    fs::write(full.join("something"), b"x").expect("write");
    let run = |arguments: &[&str]| program(private.path()).arg("mount").args(arguments).output().expect("run weightfs");
    let absent = place.path().join("absent");
    let file = source.path().join("file");
    let cases: [(&str, &Path, &Path, &[&str]); 5] = [
        ("a source that is not there", &absent, place.path(), &[text(&absent)]),
        ("a source that is a file", &file, place.path(), &[text(&file), "folder"]),
        ("a mount point that is not there", source.path(), &absent, &[text(&absent)]),
        ("a mount point that is a file", source.path(), &file, &[text(&file), "folder"]),
        ("another folder that is not empty", source.path(), &full, &[text(&full), "empty"]),
    ];
    for (what, from, to, words) in cases {
        // "Directory" is as good a word as "folder".
        let mut output = run(&[text(from), text(to)]);
        let said = String::from_utf8_lossy(&output.stderr).replace("directory", "folder");
        output.stderr = said.into_bytes();
        check_refusal(what, &output, words);
    }
    let mount = Mount::start(source.path(), &["--ram", "64M"]);
    check_refusal("a mounted one", &run(&[text(source.path()), text(mount.path())]), &[text(mount.path()), "mount"]);
    assert_eq!(mounts_on(mount.path()).len(), 1);
    mount.stop();
    assert!(mounts_on(place.path()).is_empty() && mounts_on(&full).is_empty());
    traces.check("refusals");
}

#[test]
fn options_that_make_no_sense() {
    if !can_mount() {
        return;
    }
    let traces = Traces::note();
    let (source, private, place) = (temporary_folder("source"), temporary_folder("run"), temporary_folder("mnt"));
    let config = private.path().join("bad.toml");
    fs::write(&config, "source = '/x'\nramm = '1G'\n").expect("write");
    let cases: [(&str, &[&str], &[&str]); 9] = [
        ("more than the machine has", &["--ram", "900T"], &["--ram", "900"]),
        ("more than all", &["--ram", "300%"], &["--ram"]),
        ("no size", &["--ram", "lots"], &["--ram", "lots"]),
        ("nothing", &["--ram", "0"], &["--ram"]),
        ("watermarks the wrong way round", &["--high-watermark", "50", "--low-watermark", "80"], &["watermark"]),
        ("an engine that is none", &["--io", "magic"], &["--io", "uring", "threads"]),
        ("a time that is none", &["--open-wait", "soon"], &["--open-wait", "soon"]),
        ("an option that is none", &["--fast"], &["--fast"]),
        ("a wrong configuration", &["--config", text(&config)], &["ramm", text(&config)]),
    ];
    for (what, options, words) in cases {
        let mut command = program(private.path());
        command.arg("mount").args(options).args([source.path(), place.path()]);
        check_refusal(what, &command.output().expect("run weightfs"), words);
        assert!(mounts_on(place.path()).is_empty(), "{what}");
    }
    traces.check("refusals");
}

#[test]
fn nothing_to_unmount_or_to_ask() {
    if !can_mount() {
        return;
    }
    let _traces = Traces::note();
    let (private, place) = (temporary_folder("run"), temporary_folder("mnt"));
    let run = |arguments: &[&str]| program(private.path()).args(arguments).output().expect("run weightfs");
    check_refusal("unmount of a plain folder", &run(&["unmount", text(place.path())]), &[text(place.path())]);
    check_refusal("status of a plain folder", &run(&["status", text(place.path()), "--json"]), &[text(place.path())]);
    check_refusal("unmount of nothing", &run(&["unmount", "/nowhere/at/all"]), &["/nowhere/at/all"]);
}

#[test]
fn without_dev_fuse() {
    if !met(&[Need::Mount, Need::Root]) {
        return;
    }
    if !has_program("unshare") {
        skip("unshare is not installed (package util-linux)");
        return;
    }
    let traces = Traces::note();
    let (source, private, place) = (temporary_folder("source"), temporary_folder("run"), temporary_folder("mnt"));
    // A mount namespace of its own, in which /dev has nothing.
    let script = r#"mount -t tmpfs none /dev && mkdir /dev/shm && : > /dev/null && exec "$@""#;
    let mut command = Command::new("unshare");
    command.args(["-m", "sh", "-c", script, "sh"]).arg(binary()).args(["mount", "--foreground", "--ram", "64M"]);
    command.args([source.path(), place.path()]).env("XDG_RUNTIME_DIR", private.path());
    check_refusal("no /dev/fuse", &command.output().expect("run unshare"), &["/dev/fuse", "modprobe"]);
    traces.check("no /dev/fuse");
}

#[test]
fn without_rights() {
    if !met(&[Need::Mount, Need::Root]) {
        return;
    }
    let Some(setpriv) = find_program("setpriv") else {
        skip("setpriv is not installed (package util-linux)");
        return;
    };
    let traces = Traces::note();
    let (source, private, place) = (temporary_folder("source"), temporary_folder("run"), temporary_folder("mnt"));
    let copy = private.path().join("program");
    fs::copy(binary(), &copy).expect("copy the program to where everybody may run it");
    for folder in [private.path(), place.path()] {
        std::os::unix::fs::chown(folder, Some(ALICE), Some(ALICE)).expect("chown");
    }
    let user = ALICE.to_string();
    let mut command = Command::new(setpriv);
    command.args(["--reuid", &user, "--regid", &user, "--clear-groups"]).arg(&copy);
    command.args(["mount", "--ram", "64M"]).args([source.path(), place.path()]);
    // Without fusermount3 on the search path, there is no way to mount.
    command.env_clear().env("PATH", "/nonexistent").env("XDG_RUNTIME_DIR", private.path()).env("HOME", private.path());
    check_refusal("a mount without rights", &command.output().expect("run setpriv"), &["fusermount3"]);
    assert!(mounts_on(place.path()).is_empty());
    traces.check("refusals");
}
