//! Mounts here that nobody serves any more.

use std::path::Path;
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use rustix::io::Errno;
use weightfs_mount::doctor::{Finding, Fix};

use crate::machine::mount_table::MountTable;

/// A daemon that takes longer to say what its mount has room for does not answer.
const PATIENCE: Duration = Duration::from_secs(3);

pub fn check() -> Vec<Finding> {
    let Ok(table) = MountTable::read() else { return Vec::new() };
    table.weightfs().filter_map(|mount| judge(&mount.mountpoint, ask(&mount.mountpoint))).collect()
}

/// None where it does not answer.
fn ask(mountpoint: &Path) -> Option<Result<(), Errno>> {
    let (sender, receiver) = channel();
    let asked = mountpoint.to_owned();
    // A mount that hangs keeps whoever asks it: not the one who waits here.
    thread::spawn(move || sender.send(rustix::fs::statfs(&asked).map(drop)));
    receiver.recv_timeout(PATIENCE).ok()
}

fn judge(mountpoint: &Path, answer: Option<Result<(), Errno>>) -> Option<Finding> {
    let shown = mountpoint.display().to_string();
    let costs = "everything beneath it gives errors";
    let finding = match answer {
        Some(Err(Errno::NOTCONN)) => Finding::bad("mount", "its daemon has died")
            .costs(costs)
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
}
