//! `weightfs upgrade` under load, and what it refuses.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use weightfs_tests::Mount;
use weightfs_tests::mount::binary;
use weightfs_tests::system::{let_files_settle, temporary_folder};

use crate::clients::{Report, make_models, with_clients};
use crate::kills::tell;
use crate::{can_take_over, times, worker};

#[test]
fn nobody_notices() {
    if !can_take_over() {
        return;
    }
    let upgrades = times("WEIGHTFS_UPGRADES", 5);
    let (source, programs) = (temporary_folder("source"), temporary_folder("programs"));
    make_models(source.path());
    let_files_settle();
    let mount = Mount::start(source.path(), &["--ram", "64M"]);
    let place = mount.path().to_str().expect("UTF-8");
    let report = Report::default();
    let mut pauses = Vec::new();
    with_clients(mount.path(), &report, || {
        for round in 0..upgrades {
            // Another program each time, as far as the system can tell; the one before is gone.
            let program = programs.path().join(format!("weightfs-{round}"));
            fs::copy(binary(), &program).expect("copy the program");
            std::thread::sleep(Duration::from_millis(300));
            report.take_longest();
            let output = mount.run(&["upgrade", program.to_str().expect("UTF-8"), place]);
            pauses.push(report.take_longest());
            assert!(output.status.success(), "{}\n{}", String::from_utf8_lossy(&output.stderr), mount.log());
            let pid = worker(&mount).expect("a worker");
            let running = fs::read_link(format!("/proc/{pid}/exe")).expect("its program");
            assert_eq!(running, program);
            fs::remove_file(&program).expect("remove the program");
        }
    });
    assert_eq!(report.faults(), [""; 0], "{}", mount.log());
    tell(&format!("{upgrades} upgrades"), pauses);
    assert_eq!(mount.status().number("/worker/restarts"), upgrades);
    // The program of the worker is gone from the disk, and yet it can be replaced.
    crate::kill_worker(&mount);
    assert!(crate::answers(&mount), "{}", mount.log());
    mount.stop();
}

#[test]
fn what_cannot_take_over_is_refused() {
    if !can_take_over() {
        return;
    }
    let (source, programs) = (temporary_folder("source"), temporary_folder("programs"));
    let mount = Mount::start(source.path(), &["--ram", "64M"]);
    let place = mount.path().to_str().expect("UTF-8");
    let before = mount.status().number("/worker/pid");
    let script = |name: &str, text: &str| {
        let path = programs.path().join(name);
        fs::write(&path, text).expect("write");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("chmod");
        path
    };
    let cases = [
        (script("newer", "#!/bin/sh\necho 4711\n"), "form 4711"),
        (script("other", "#!/bin/sh\nexit 2\n"), "no weightfs"),
        (programs.path().to_owned(), "cannot take over"),
    ];
    for (program, words) in cases {
        let output = mount.run(&["upgrade", program.to_str().expect("UTF-8"), place]);
        let message = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && message.contains(words), "{message}");
    }
    assert_eq!(mount.status().number("/worker/pid"), before, "the old one goes on");
    mount.stop();
}
