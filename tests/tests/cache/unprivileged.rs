//! A mount by somebody who is not root: no passthrough, and the same bytes out of RAM, also where they are mapped.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::process::Command;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use weightfs_tests::Status;
use weightfs_tests::actor::Actor;
use weightfs_tests::api::Api;
use weightfs_tests::data::{self, digest};
use weightfs_tests::mount::binary;
use weightfs_tests::requirements::{Need, met, skip};
use weightfs_tests::system::{find_program, has_program, let_files_settle, temporary_folder, wait_until};

use crate::PATIENCE;

/// fusermount3 wants a user with a name.
const NOBODY: u32 = 65534;

/// Mounts and acts as somebody, in a mount namespace with a /dev/fuse that everybody may open, as distributions have it.
/// What is said and read comes last: the mount goes when the acts end.
const SCRIPT: &str = r#"
mknod "$1/fuse" c 10 229 && chmod 666 "$1/fuse" && mount --bind "$1/fuse" /dev/fuse || exit 9
exec "$2" --reuid "$3" --regid "$3" --clear-groups sh -c '
    "$1/program" mount --ram 96M "$2" "$3" >&2 && "$1/actor" 0
    "$1/program" unmount "$3" >&2' sh "$1" "$4" "$5"
"#;

#[test]
fn a_resident_file_is_mapped_without_root() {
    if !met(&[Need::Mount, Need::Root]) {
        return;
    }
    let (Some(setpriv), true, true) = (find_program("setpriv"), has_program("unshare"), has_program("fusermount3"))
    else {
        return skip("setpriv, unshare (package util-linux) or fusermount3 (package fuse3) is not installed");
    };
    if nix::unistd::User::from_uid(nix::unistd::Uid::from_raw(NOBODY)).is_ok_and(|user| user.is_none()) {
        return skip("there is no user with the number 65534, mostly called nobody");
    }
    let (source, private, place) = (temporary_folder("source"), temporary_folder("run"), temporary_folder("mnt"));
    let model = source.path().join("model.safetensors");
    data::write_safetensors(&model, 1, 24);
    let expected = fs::read(&model).expect("read");
    let size = expected.len() as u64;
    for path in [source.path(), &model, private.path(), place.path()] {
        chown(path, Some(NOBODY), Some(NOBODY)).expect("chown");
    }
    for (name, from) in [("program", binary()), ("actor", Actor::program())] {
        let copy = private.path().join(name);
        fs::copy(from, &copy).expect("copy a program to where everybody may run it");
        fs::set_permissions(copy, fs::Permissions::from_mode(0o755)).expect("chmod");
    }
    let_files_settle();
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private", "sh", "-c", SCRIPT, "sh"]);
    command.arg(private.path()).arg(setpriv).arg(NOBODY.to_string()).args([source.path(), place.path()]);
    command.env("XDG_RUNTIME_DIR", private.path()).env("XDG_STATE_HOME", private.path().join("state"));
    command.env("HOME", private.path());
    let mut nobody = Actor::of(command);
    let path = place.path().join("model.safetensors");
    let path = path.to_str().expect("UTF-8");
    // By its socket: its mount cannot be seen from here, and those of other tests can.
    let status = || Api::in_folder(private.path()).map(|api| Status(api.get("/v1/status").json()));
    let mapped = digest(&expected);
    assert_eq!(nobody.act(&["map", path]).as_deref(), Ok(mapped.as_str()), "cold");
    let is_resident = || status().is_some_and(|status| status.resident() >= size);
    assert!(wait_until(PATIENCE, is_resident), "it stays: {:?}", status());
    let before = status().expect("the daemon answers");
    assert!(!before.passthrough(), "without root there is none: {:#}", before.0);
    assert_eq!(nobody.act(&["map", path]).as_deref(), Ok(mapped.as_str()), "resident");
    let after = status().expect("the daemon answers");
    assert_eq!(after.source_read(), before.source_read(), "nothing is read again");
    let from_ram = after.number("/io/served_from_ram_bytes") - before.number("/io/served_from_ram_bytes");
    assert!(from_ram >= size, "{from_ram} bytes came from RAM");
    // At the first load but one, whenever it was noticed that the first is over.
    let is_kept = (0..3).any(|_| {
        let served = || status().expect("the daemon answers").number("/io/served_from_ram_bytes");
        let before = served();
        assert_eq!(nobody.act(&["map", path]).as_deref(), Ok(mapped.as_str()), "kept");
        served() - before < size / 4
    });
    assert!(is_kept, "the kernel keeps what is mapped: {:#}", status().expect("the daemon answers").0);

    // Another worker goes on, without root as well.
    let handle = nobody.act(&["open", path, "r"]).expect("open");
    let worker = after.number("/worker/pid");
    kill(Pid::from_raw(worker as i32), Signal::SIGKILL).expect("kill the worker");
    let kept = nobody.act(&["read", &handle, "0", "8"]).expect("a file that was open");
    assert_eq!(kept.as_bytes(), String::from_utf8_lossy(&expected[..8]).as_bytes());
    assert_eq!(nobody.act(&["map", path]).as_deref(), Ok(mapped.as_str()), "by another worker");
    let again = status().expect("the next worker answers");
    assert_eq!((again.number("/worker/restarts"), again.resident() >= size), (1, true), "{:#}", again.0);
    assert_ne!(again.number("/worker/pid"), worker);
    drop(nobody);
    assert!(status().is_none(), "the daemon goes with its mount");
}
