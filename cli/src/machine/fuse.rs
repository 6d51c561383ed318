//! Whether this user can mount a FUSE filesystem here. Tried where trying is harmless.

use std::ffi::OsStr;
use std::fs::{self, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use rustix::thread::{CapabilitySet, capabilities};

const DEVICE: &str = "/dev/fuse";
const FUSE_CONF: &str = "/etc/fuse.conf";
/// Where else fusermount3 is, for users whose PATH lacks it.
const SYSTEM_DIRS: [&str; 3] = ["/bin", "/usr/bin", "/usr/local/bin"];

#[derive(Debug, thiserror::Error)]
pub enum FuseError {
    #[error(
        "/dev/fuse is missing, so nothing can be mounted: load the module with 'modprobe fuse' as root; \
             in a container, start it with '--device /dev/fuse --cap-add SYS_ADMIN'"
    )]
    NoDevice,
    #[error("/dev/fuse cannot be opened ({0}): in a container, start it with '--device /dev/fuse --cap-add SYS_ADMIN'")]
    DeviceClosed(io::Error),
    #[error(
        "root has no right to mount here, as in most containers: start it with \
             '--device /dev/fuse --cap-add SYS_ADMIN'"
    )]
    RootWithoutRights,
    #[error(
        "mounting without root needs fusermount3: install it ('apt install fuse3' or 'dnf install fuse3'), \
             or run weightfs as root, which is faster as well"
    )]
    NoFusermount,
    #[error(
        "--allow-other is only for root unless /etc/fuse.conf has the line 'user_allow_other': \
             add it as root, or leave --allow-other out"
    )]
    AllowOtherForbidden,
}

/// Whether this process may mount without help.
pub fn can_mount() -> bool {
    capabilities(None).is_ok_and(|sets| sets.effective.contains(CapabilitySet::SYS_ADMIN))
}

/// `path` is the value of PATH.
pub fn check(allow_other: bool, path: Option<&OsStr>) -> Result<(), FuseError> {
    if !Path::new(DEVICE).exists() {
        return Err(FuseError::NoDevice);
    }
    if can_mount() {
        return open_device();
    }
    if rustix::process::geteuid().is_root() {
        return Err(FuseError::RootWithoutRights);
    }
    // It opens the device itself, with its own rights.
    if fusermount(path).is_none() {
        return Err(FuseError::NoFusermount);
    }
    if allow_other && !allows_other(&fs::read_to_string(FUSE_CONF).unwrap_or_default()) {
        return Err(FuseError::AllowOtherForbidden);
    }
    Ok(())
}

fn open_device() -> Result<(), FuseError> {
    match OpenOptions::new().read(true).write(true).open(DEVICE).map(drop) {
        // The device is there, and the module is not.
        Err(error) if Errno::from_io_error(&error) == Some(Errno::NODEV) => Err(FuseError::NoDevice),
        opened => opened.map_err(FuseError::DeviceClosed),
    }
}

/// The set-user-id program that mounts for those who may not. `path` is the value of PATH.
pub fn fusermount(path: Option<&OsStr>) -> Option<PathBuf> {
    let from_path = path.map(|path| std::env::split_paths(path).collect::<Vec<_>>()).unwrap_or_default();
    let directories = from_path.into_iter().chain(SYSTEM_DIRS.map(PathBuf::from));
    directories.map(|directory| directory.join("fusermount3")).find(|program| Path::is_file(program))
}

fn allows_other(fuse_conf: &str) -> bool {
    fuse_conf.lines().any(|line| line.trim() == "user_allow_other")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_commented_line_allows_nothing() {
        assert!(allows_other("# x\n user_allow_other \n"));
        assert!(!allows_other("#user_allow_other\nmount_max = 1000\n"));
    }

    #[test]
    fn fusermount_is_looked_for_in_the_path_first() {
        let place = tempfile::tempdir().unwrap();
        let program = place.path().join("fusermount3");
        fs::write(&program, "").unwrap();
        assert_eq!(fusermount(Some(place.path().as_os_str())), Some(program));
    }
}
