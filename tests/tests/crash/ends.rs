//! Ends that are nobody's wish: of the supervisor, of a worker that cannot live, and the dead mount that is left.

use std::fs;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use weightfs_tests::Mount;
use weightfs_tests::data;
use weightfs_tests::mount::program;
use weightfs_tests::system::{mounts_on, temporary_folder, wait_until};

use crate::{answers, can_take_over, worker};

#[test]
fn without_its_supervisor_a_worker_goes_on() {
    if !can_take_over() {
        return;
    }
    let source = temporary_folder("source");
    data::write_file(&source.path().join("model"), 1, 3 << 20);
    let mut mount = Mount::start(source.path(), &["--ram", "64M"]);
    let pid = worker(&mount).expect("a worker");
    mount.signal(Signal::SIGKILL);
    mount.wait();
    let hears = || mount.log().contains("the supervisor is gone");
    assert!(wait_until(Duration::from_secs(10), hears), "{}", mount.log());
    // Opens are parked with nobody.
    let found = fs::read(mount.join("model")).expect("read");
    data::check(1, 0, &found).expect("the right bytes");
    fs::write(mount.join("new"), b"new").expect("write");
    assert_eq!(mount.status().number("/worker/pid"), pid.as_raw() as u64);
    let place = mount.path().to_str().expect("UTF-8").to_owned();
    let upgrade =
        mount.run(&["upgrade", program(mount.private_folder()).get_program().to_str().expect("UTF-8"), &place]);
    assert!(!upgrade.status.success(), "nobody is there to do it");
    let output = mount.run(&["unmount", &place]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let gone = || kill(pid, None).is_err() && mounts_on(mount.path()).is_empty();
    assert!(wait_until(Duration::from_secs(10), gone), "{}", mount.log());
    assert!(!mount.run(&["status", &place]).status.success(), "its socket is gone");
    mount.forget();
}

#[test]
fn a_worker_that_cannot_live_is_given_up() {
    if !can_take_over() {
        return;
    }
    let source = temporary_folder("source");
    let mut mount = Mount::start(source.path(), &["--ram", "64M"]);
    assert!(answers(&mount));
    let ended = wait_until(Duration::from_secs(20), || {
        if let Some(pid) = worker(&mount) {
            // It may have died just now.
            let _ = kill(pid, Signal::SIGKILL);
        }
        mount.has_ended()
    });
    assert!(ended, "{}", mount.log());
    assert!(!mount.wait().success());
    assert!(mounts_on(mount.path()).is_empty());
    assert!(mount.log().contains("again and again"), "{}", mount.log());
    mount.forget();
}

#[test]
fn a_dead_mount_is_replaced() {
    if !can_take_over() {
        return;
    }
    let source = temporary_folder("source");
    fs::write(source.path().join("f"), b"x").expect("write");
    let mut dead = Mount::start(source.path(), &["--ram", "64M"]);
    let pid = worker(&dead).expect("a worker");
    // Both at once, so that neither can end the mount.
    kill(pid, Signal::SIGSTOP).expect("stop");
    dead.signal(Signal::SIGKILL);
    dead.wait();
    kill(pid, Signal::SIGKILL).expect("kill");
    let place = dead.path().to_owned();
    assert!(wait_until(Duration::from_secs(10), || kill(pid, None).is_err()));
    assert_eq!(rustix::fs::statfs(&place).map(drop), Err(rustix::io::Errno::NOTCONN));
    assert_eq!(mounts_on(&place).len(), 1, "a dead mount is there");
    let private = temporary_folder("run");
    let (from, to) = (source.path().to_str().expect("UTF-8"), place.to_str().expect("UTF-8"));
    let refused = program(private.path()).args(["mount", "--ram", "64M", from, to]).output().expect("run weightfs");
    let message = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && message.contains("--replace"), "{message}");
    let run = |arguments: &[&str]| program(private.path()).args(arguments).output().expect("run weightfs");
    let replaced = run(&["mount", "--ram", "64M", "--replace", from, to]);
    // A mount that lives is replaced by nobody.
    let again = run(&["mount", "--ram", "64M", "--replace", from, to]);
    let (found, mounts) = (fs::read(place.join("f")), mounts_on(&place).len());
    let end = run(&["unmount", to]);
    assert!(replaced.status.success(), "{}", String::from_utf8_lossy(&replaced.stderr));
    assert!(!again.status.success());
    assert_eq!((found.expect("it answers"), mounts), (b"x".to_vec(), 1));
    assert!(end.status.success(), "{}", String::from_utf8_lossy(&end.stderr));
    dead.forget();
}
