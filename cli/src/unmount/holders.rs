//! Who keeps a mount from ending: what `/proc` shows of open files, mappings and directories. Processes of other users
//! show nothing to those who are not root, and nobody is asked to wait for the mount to be looked at.

use std::fmt::Write;
use std::fs;
use std::path::Path;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use weightfs_mount::mount_table::Mount;

/// Beyond these nobody reads on.
const MAX_LISTED: usize = 10;

/// How long to look. What `/proc` shows of a process that hangs may hang too.
const PATIENCE: Duration = Duration::from_secs(2);

/// What to add to a message that `mount` is in use.
pub fn list(mount: &Mount) -> String {
    let (found, complete) = find_for(PATIENCE, mount);
    let mut text = String::new();
    for holder in found.iter().take(MAX_LISTED) {
        // Writing to a String cannot fail.
        let _ = write!(text, "\n  process {} ({}) has {}", holder.pid, holder.name, holder.what);
    }
    match found.len().saturating_sub(MAX_LISTED) {
        0 => {}
        more => drop(write!(text, "\n  and {more} more")),
    }
    if !complete {
        text.push_str("\n  (some processes do not answer, and were not looked at)");
    }
    if text.is_empty() && !rustix::process::geteuid().is_root() {
        text.push_str("\n  (who uses it can only be seen by root)");
    }
    text
}

/// What can be found in this time, and whether that is all. A search that hangs is left behind: it ends with this process.
fn find_for(patience: Duration, mount: &Mount) -> (Vec<Holder>, bool) {
    let deadline = Instant::now() + patience;
    let (sender, received) = mpsc::channel();
    let mount = mount.clone();
    thread::spawn(move || {
        find(Path::new("/proc"), &mount, |holder| {
            // Nobody listens any more after the deadline.
            let _ = sender.send(holder);
        });
    });
    let mut found = Vec::new();
    loop {
        match received.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(holder) => found.push(holder),
            Err(mpsc::RecvTimeoutError::Disconnected) => return (found, true),
            Err(mpsc::RecvTimeoutError::Timeout) => return (found, false),
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
struct Holder {
    pid: u32,
    name: String,
    what: &'static str,
}

fn find(proc: &Path, mount: &Mount, found: impl FnMut(Holder)) {
    let Ok(entries) = fs::read_dir(proc) else { return };
    let mut pids: Vec<u32> = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect();
    pids.sort_unstable();
    let holder = |pid: u32| {
        let process = proc.join(pid.to_string());
        let what = held_by(&process, mount)?;
        let name: String = fs::read_to_string(process.join("comm")).unwrap_or_default();
        let name = name.trim_end().chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect();
        Some(Holder { pid, name, what })
    };
    pids.into_iter().filter_map(holder).for_each(found);
}

fn held_by(process: &Path, mount: &Mount) -> Option<&'static str> {
    let leads_into =
        |link: &str| fs::read_link(process.join(link)).is_ok_and(|target| target.starts_with(&mount.mountpoint));
    // The mount's own number tells its files from those of what it is mounted over, which have the same paths.
    let opened = fs::read_dir(process.join("fdinfo"))
        .into_iter()
        .flatten()
        .flatten()
        .any(|entry| fs::read_to_string(entry.path()).is_ok_and(|info| mount_id(&info) == Some(mount.id)));
    if opened {
        Some("files open there")
    } else if leads_into("cwd") {
        Some("its working directory there")
    } else if leads_into("root") {
        Some("its root directory there")
    } else if fs::read_to_string(process.join("maps")).is_ok_and(|maps| maps_device(&maps, &mount.device)) {
        // Last, since only this waits for the process.
        Some("files mapped there")
    } else {
        None
    }
}

/// A line of `/proc/PID/fdinfo/FD` begins with `mnt_id:` and ends with the number.
fn mount_id(info: &str) -> Option<u64> {
    info.lines().find_map(|line| line.strip_prefix("mnt_id:"))?.trim().parse().ok()
}

/// `7f…-7f… r--p 00000000 00:32 1234 /path` in `/proc/PID/maps`: the device in hexadecimal, while the table of mounts
/// has it in decimal.
fn maps_device(maps: &str, device: &str) -> bool {
    let parse = |text: &str, radix| {
        let (major, minor) = text.split_once(':')?;
        Some((u32::from_str_radix(major, radix).ok()?, u32::from_str_radix(minor, radix).ok()?))
    };
    let wanted = parse(device, 10);
    wanted.is_some() && maps.lines().any(|line| line.split(' ').nth(3).and_then(|field| parse(field, 16)) == wanted)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;

    #[test]
    fn an_open_file_of_this_process_is_found_by_its_mount() {
        let place = tempfile::tempdir().unwrap();
        let file = File::create(place.path().join("held")).unwrap();
        let fd = std::os::fd::AsRawFd::as_raw_fd(&file);
        let id = mount_id(&fs::read_to_string(format!("/proc/self/fdinfo/{fd}")).unwrap()).unwrap();
        let mount = |id, mountpoint: &str| Mount {
            id,
            device: "4095:1".into(),
            mountpoint: mountpoint.into(),
            fs_type: "fuse.weightfs".into(),
        };
        let me = Path::new("/proc/self");
        assert_eq!(held_by(me, &mount(id, "/nowhere")), Some("files open there"));
        assert_eq!(held_by(me, &mount(u64::MAX, "/nowhere")), None);
        let here = std::env::current_dir().unwrap();
        assert_eq!(held_by(me, &mount(u64::MAX, here.to_str().unwrap())), Some("its working directory there"));
        let found = find_for(PATIENCE, &mount(id, "/nowhere")).0;
        assert!(found.iter().any(|found| found.pid == std::process::id()));
    }

    #[test]
    fn mappings_are_told_by_their_device() {
        let maps = "7f00-7f10 r--p 00000000 00:32 77 /m/a b\n7f20-7f30 rw-p 00000000 00:00 0 [heap]\n";
        assert!(maps_device(maps, "0:50"));
        assert!(!maps_device(maps, "0:32"));
        assert!(!maps_device("garbage\n", "0:50") && !maps_device(maps, "odd"));
    }
}
