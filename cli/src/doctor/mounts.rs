//! What is mounted here: as its daemons see it, and mounts that nobody serves any more.

use std::path::{Path, PathBuf};
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use rustix::io::Errno;
use weightfs_mount::control_client::ControlClient;
use weightfs_mount::doctor::{Finding, Fix};

use crate::exit::Failure;
use crate::find;
use weightfs_mount::mount_table::MountTable;

/// A daemon that takes longer to say what its mount has room for does not answer.
const PATIENCE: Duration = Duration::from_secs(3);

/// Mountpoints of weightfs, and paths that lie in none.
pub struct Sorted {
    pub mounts: Vec<PathBuf>,
    pub plain: Vec<PathBuf>,
}

/// Sorts what a person named; where that is nothing, everything that is mounted.
pub fn sort(paths: &[PathBuf]) -> Result<Sorted, Failure> {
    let table =
        MountTable::read().map_err(|error| Failure::failed(format!("cannot read /proc/self/mountinfo: {error}")))?;
    let mut sorted = Sorted { mounts: Vec::new(), plain: Vec::new() };
    if paths.is_empty() {
        sorted.mounts = table.weightfs().map(|mount| mount.mountpoint.clone()).collect();
    }
    for path in paths {
        let path = find::resolve(path)?;
        match table.containing(&path) {
            Some(mount) if mount.is_weightfs() => sorted.mounts.push(mount.mountpoint.clone()),
            _ => sorted.plain.push(path),
        }
    }
    sorted.mounts.sort();
    sorted.mounts.dedup();
    Ok(sorted)
}

/// What is found of the mounts at these places.
pub fn check(mountpoints: &[PathBuf], observe: &mut dyn FnMut(&str)) -> Vec<Finding> {
    let mut findings = Vec::new();
    for mountpoint in mountpoints {
        observe(&format!("{}: whether it answers", mountpoint.display()));
        match judge(mountpoint, ask(mountpoint)) {
            Some(finding) => findings.push(finding),
            None => {
                observe(&format!("{}: what its daemon finds", mountpoint.display()));
                findings.extend(of_daemon(mountpoint));
            }
        }
    }
    findings
}

/// What the daemon found of this mount. What it says of the machine was looked at already.
fn of_daemon(mountpoint: &Path) -> Vec<Finding> {
    let shown = mountpoint.display().to_string();
    let unknown = |error: String| vec![Finding::unknown("mount", error).on(shown.clone())];
    let daemon = match ControlClient::of_path(mountpoint, &find::runtime_dirs()) {
        Ok(daemon) => daemon,
        Err(error) => return unknown(error.to_string()),
    };
    match daemon.doctor() {
        Ok(found) => {
            let of_it = found.checks.into_iter().filter(|check| check.subject.as_deref() == Some(&shown));
            of_it.map(|check| Finding { check, fix: None }).collect()
        }
        Err(error) => unknown(error.to_string()),
    }
}

/// None where it does not answer.
fn ask(mountpoint: &Path) -> Option<Result<(), Errno>> {
    let (sender, receiver) = channel();
    let asked = mountpoint.to_owned();
    // A mount that hangs keeps whoever asks it: not the one who waits here.
    thread::spawn(move || sender.send(rustix::fs::statfs(&asked).map(drop)));
    receiver.recv_timeout(PATIENCE).ok()
}

/// What is wrong with a mount that answers so.
fn judge(mountpoint: &Path, answer: Option<Result<(), Errno>>) -> Option<Finding> {
    let shown = mountpoint.display().to_string();
    let finding = match answer {
        Some(Err(Errno::NOTCONN)) => Finding::bad("mount", "its daemon has died")
            .costs("everything beneath it gives errors")
            .mend(format!("weightfs unmount {shown}"))
            .fix(Fix::RemoveDeadMount(mountpoint.to_owned())),
        None => Finding::bad("mount", format!("does not answer within {} seconds", PATIENCE.as_secs()))
            .costs("programs that use it wait")
            .mend(format!("weightfs unmount --lazy {shown}; the daemon's log may say why")),
        Some(_) => return None,
    };
    Some(finding.on(shown))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_dead_is_taken_away() {
        let judge = |answer| judge(Path::new("/m"), answer);
        assert_eq!(judge(Some(Ok(()))), None);
        assert_eq!(judge(Some(Err(Errno::ACCESS))), None);
        assert_eq!(judge(Some(Err(Errno::NOTCONN))).unwrap().fix, Some(Fix::RemoveDeadMount("/m".into())));
        assert_eq!(judge(None).unwrap().fix, None);
    }

    #[test]
    fn a_folder_that_is_not_mounted_is_plain() {
        let place = tempfile::tempdir().unwrap();
        let sorted = sort(&[place.path().to_owned()]).unwrap();
        assert_eq!((sorted.mounts.len(), sorted.plain), (0, vec![place.path().canonicalize().unwrap()]));
        assert!(sort(&[place.path().join("none")]).is_err());
    }
}
