//! `weightfs unmount`: through the daemon, or without it where it is dead.

mod holders;

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use clap::Args;
use nix::errno::Errno;
use nix::mount::{MntFlags, umount2};
use weightfs::control::ProblemKind;
use weightfs_mount::control_client::{ClientError, ControlClient};

use crate::env_vars::PATH;
use crate::exit::{EXIT_CODES_HELP, Exit, Failure};
use crate::find;
use crate::machine::fuse::{self, FuseError};
use weightfs_mount::mount_table::{Mount, MountTable};

/// How long the mount, and then its daemon, may take to be gone once it was told.
const PATIENCE: Duration = Duration::from_secs(30);
const LOOK_AGAIN: Duration = Duration::from_millis(20);

const HELP: &str = "\
A plain 'umount MOUNTPOINT' or 'fusermount3 -u MOUNTPOINT' does the same. Dead mounts are removed as well.

Examples:
  weightfs unmount ~/ComfyUI/models
  weightfs unmount --lazy /mnt/models     out of sight now, ended when the last program lets go";

#[derive(Args, Clone, Debug)]
#[command(after_help = format!("{HELP}\n\n{EXIT_CODES_HELP}"))]
pub struct UnmountArgs {
    /// Where the folder is mounted.
    #[arg(value_name = "MOUNTPOINT")]
    mountpoint: PathBuf,

    /// Take the mount out of sight at once, also while programs use it; it ends when the last of them lets go.
    #[arg(long)]
    lazy: bool,
}

pub fn run(arguments: &UnmountArgs) -> Result<(), Failure> {
    let (path, mount) = mount_at(&arguments.mountpoint, &table()?)?;
    // Nothing asks the mount itself: a source that does not answer is a reason to unmount.
    let daemon = ControlClient::of_mount(&path, &find::runtime_dirs()).filter(|_| !arguments.lazy);
    let serves_nothing_else = |daemon: &&ControlClient| daemon.status().is_ok_and(|status| status.mounts.len() == 1);
    let ending = daemon.as_ref().filter(serves_nothing_else);

    end(&path, daemon.as_ref(), arguments.lazy).map_err(|failure| match failure.exit {
        Exit::Busy => Failure { message: failure.message + &holders::list(&mount), ..failure },
        _ => failure,
    })?;
    let gone = || Ok(!table()?.has(mount.id));
    wait_until(gone, || format!("{} was told to end and is still there", path.display()))?;
    match ending {
        // A new daemon may take the old one's place as soon as this returns.
        Some(daemon) => wait_until(
            || Ok(!daemon.is_alive()),
            || format!("{} is unmounted, but its daemon has not ended; its log may say why", path.display()),
        ),
        None => Ok(()),
    }
}

fn table() -> Result<MountTable, Failure> {
    MountTable::read().map_err(|error| Failure::failed(format!("cannot read /proc/self/mountinfo: {error}")))
}

/// The weightfs mount that a user's `path` names, and its mountpoint. It is not looked into if the way to it tells enough.
fn mount_at(path: &Path, table: &MountTable) -> Result<(PathBuf, Mount), Failure> {
    let by_way = std::path::absolute(path).ok().and_then(|absolute| {
        let mountpoint = std::fs::canonicalize(absolute.parent()?).ok()?.join(absolute.file_name()?);
        let mount = table.at(&mountpoint).filter(|mount| mount.is_weightfs())?;
        Some((mountpoint, mount.clone()))
    });
    if let Some(found) = by_way {
        return Ok(found);
    }
    let path = find::resolve(path)?;
    let mount = weightfs_at(&path, table)?;
    Ok((path, mount))
}

fn weightfs_at(path: &Path, table: &MountTable) -> Result<Mount, Failure> {
    match (table.at(path), table.containing(path)) {
        (Some(mount), _) if mount.is_weightfs() => Ok(mount.clone()),
        (Some(mount), _) => Err(Failure::failed(format!(
            "{path} is a mount of another kind ({}), which weightfs leaves alone: use 'umount {path}'",
            mount.fs_type,
            path = path.display()
        ))),
        (None, Some(mount)) if mount.is_weightfs() => Err(Failure::failed(format!(
            "{} is inside the mount {mount}: use 'weightfs unmount {mount}'",
            path.display(),
            mount = mount.mountpoint.display()
        ))),
        _ => Err(Failure { exit: Exit::NoDaemon, message: format!("{} is not mounted", path.display()) }),
    }
}

fn end(path: &Path, daemon: Option<&ControlClient>, lazy: bool) -> Result<(), Failure> {
    let Some(daemon) = daemon else { return detach(path, lazy) };
    match daemon.unmount(path) {
        Ok(()) => Ok(()),
        Err(error) if is_last_word(&error) => Err(find::failure(&error)),
        // Dead, hung, or of another version: the kernel can do it as well.
        Err(_) => detach(path, lazy),
    }
}

fn is_last_word(error: &ClientError) -> bool {
    matches!(error, ClientError::Refused(problem)
        if matches!(problem.kind, ProblemKind::Busy | ProblemKind::NotPermitted))
}

/// Ends a mount without its daemon.
pub fn detach(path: &Path, lazy: bool) -> Result<(), Failure> {
    if fuse::can_mount() {
        let how = if lazy { MntFlags::MNT_DETACH } else { MntFlags::empty() };
        return umount2(path, how | MntFlags::UMOUNT_NOFOLLOW).map_err(|error| match error {
            Errno::EBUSY => busy(path),
            error => Failure::failed(format!("cannot unmount {}: {}", path.display(), error.desc())),
        });
    }
    let fusermount = fuse::fusermount(env::var_os(PATH).as_deref())
        .ok_or_else(|| Failure::new(Exit::Unsupported, &FuseError::NoFusermount))?;
    let output = Command::new(fusermount)
        .arg(if lazy { "-uz" } else { "-u" })
        .arg("--")
        .arg(path)
        // Its words are looked at below.
        .env("LC_ALL", "C")
        .output()
        .map_err(|error| Failure::failed(format!("cannot run fusermount3: {error}")))?;
    let words = String::from_utf8_lossy(&output.stderr);
    if output.status.success() {
        Ok(())
    } else if words.contains("busy") {
        Err(busy(path))
    } else if words.contains("not permitted") || words.contains("not found in") {
        let message =
            format!("{} is not yours to unmount: do it as root or as the user who mounted it", path.display());
        Err(Failure { exit: Exit::NotPermitted, message })
    } else {
        Err(Failure::failed(format!("cannot unmount {}: {}", path.display(), words.trim())))
    }
}

fn busy(path: &Path) -> Failure {
    let message = format!(
        "{path} is in use: close what is open there, or take it out of sight with 'weightfs unmount --lazy {path}'",
        path = path.display()
    );
    Failure { exit: Exit::Busy, message }
}

fn wait_until(done: impl Fn() -> Result<bool, Failure>, otherwise: impl Fn() -> String) -> Result<(), Failure> {
    let until = Instant::now() + PATIENCE;
    while !done()? {
        if Instant::now() >= until {
            return Err(Failure::failed(otherwise()));
        }
        thread::sleep(LOOK_AGAIN);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_weightfs_mounts_are_ended() {
        let table = MountTable::parse(
            b"1 0 8:1 / / rw - ext4 x rw\n2 1 0:9 / /m rw - fuse.weightfs x rw\n3 1 0:8 / /t rw - tmpfs x rw\n",
        );
        let at = |path: &str| weightfs_at(Path::new(path), &table);
        assert_eq!(at("/m").unwrap().id, 2);
        assert!(at("/m/a").unwrap_err().message.contains("weightfs unmount /m'"));
        assert!(at("/t").unwrap_err().message.contains("tmpfs"));
        assert_eq!(at("/none").unwrap_err().exit, Exit::NoDaemon);
    }
}
