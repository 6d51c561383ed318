//! What a daemon that was killed leaves: a mount that answers nobody. Making one needs the right to mount; without it
//! these tests say so and try nothing.

use std::fs::OpenOptions;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use tempfile::TempDir;
use weightfs_mount::settings::FS_TYPE;

struct DeadMount {
    place: TempDir,
}

impl DeadMount {
    fn new() -> Option<Self> {
        let place = tempfile::tempdir().unwrap();
        let dead = place.path().join("dead");
        std::fs::create_dir(&dead).unwrap();
        let device = OpenOptions::new().read(true).write(true).open("/dev/fuse").ok()?;
        let data = format!("fd={},rootmode=40000,user_id=0,group_id=0", device.as_raw_fd());
        match mount(Some("models"), &dead, Some(FS_TYPE), MsFlags::empty(), Some(data.as_str())) {
            // The device is closed here, which is what a killed daemon does.
            Ok(()) => Some(Self { place }),
            Err(error) => {
                eprintln!("not tried: mounting needs root ({error})");
                None
            }
        }
    }

    fn path(&self) -> PathBuf {
        self.place.path().join("dead")
    }
}

impl Drop for DeadMount {
    fn drop(&mut self) {
        let _ = umount2(&self.path(), MntFlags::MNT_DETACH);
    }
}

fn run(arguments: &[&str], path: &Path) -> (i32, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_weightfs"));
    let Output { status, stderr, .. } = command.env_clear().args(arguments).arg(path).output().unwrap();
    (status.code().unwrap(), String::from_utf8(stderr).unwrap())
}

#[test]
fn a_dead_mount_is_recognised_and_removed() {
    let Some(dead) = DeadMount::new() else { return };
    let path = dead.path();
    let removal = format!("'weightfs unmount {}'", path.display());
    for (command, expected) in [("status", 3), ("mount", 1)] {
        let (code, errors) = run(&[command], &path);
        assert!(code == expected && errors.contains(&removal), "{command}: {code} {errors}");
    }
    assert_eq!(run(&["unmount"], &path), (0, String::new()));
    assert!(std::fs::read_dir(&path).unwrap().next().is_none());
    assert_eq!(run(&["unmount"], &path).0, 3);
}

#[test]
fn a_dead_mount_can_be_taken_away_lazily() {
    let Some(dead) = DeadMount::new() else { return };
    assert_eq!(run(&["unmount", "--lazy"], &dead.path()), (0, String::new()));
    assert!(std::fs::read_dir(dead.path()).unwrap().next().is_none());
}

#[test]
fn the_doctor_finds_a_dead_mount_and_takes_it_away_if_it_is_asked_to() {
    let Some(dead) = DeadMount::new() else { return };
    let place = dead.path();
    let doctor = |fix: bool| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_weightfs"));
        command.env_clear().args(["doctor", "--json"]).arg(&place).args(fix.then_some("--fix"));
        let Output { status, stdout, .. } = command.output().unwrap();
        let report: serde_json::Value = serde_json::from_slice(&stdout).unwrap();
        (status.code().unwrap(), report)
    };
    let of_it = |report: &serde_json::Value| {
        let checks = report["checks"].as_array().unwrap().iter();
        checks.filter(|check| check["subject"].as_str() == place.to_str()).cloned().collect::<Vec<_>>()
    };
    let (code, report) = doctor(false);
    let [check] = &of_it(&report)[..] else { panic!("{report:#}") };
    assert_eq!((code, &check["name"], &check["state"]), (6, &"mount".into(), &"bad".into()), "{report:#}");
    assert!(report.get("mended").is_none(), "{report:#}");
    let (code, report) = doctor(true);
    assert_eq!(code, 0, "{report:#}");
    assert!(report["mended"][0].as_str().unwrap().contains("removed the dead mount"), "{report:#}");
    assert!(of_it(&report).iter().all(|check| check["state"] != "bad"), "{report:#}");
    assert_eq!(run(&["unmount"], &place).0, 3);
}
