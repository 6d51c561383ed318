//! The FUSE device: opened by us, mounted by us or, without rights, by `fusermount3`.

use std::io::{self, IoSliceMut};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::process::Command;

use nix::sys::socket::{AddressFamily, ControlMessageOwned, MsgFlags, SockFlag, SockType, recvmsg, socketpair};
use rustix::fs::{Mode, OFlags};
use rustix::mount::{MountFlags, UnmountFlags};

/// What the kernel calls our mounts in /proc/self/mountinfo.
pub const FS_TYPE: &str = "fuse.weightfs";

#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    #[error(
        "cannot open /dev/fuse: {0}; try 'modprobe fuse', and in a container give it the device (--device /dev/fuse)"
    )]
    Device(io::Error),
    #[error("cannot mount on {mountpoint}: {error}")]
    Mount { mountpoint: String, error: io::Error },
    #[error(
        "cannot mount on {mountpoint} without root: fusermount3 {reason}; install it with 'apt install fuse3', or run as root"
    )]
    Helper { mountpoint: String, reason: String },
}

/// How to mount.
#[derive(Clone, Copy, Debug)]
pub struct MountFlagsWanted {
    pub read_only: bool,
    pub allow_other: bool,
}

/// Mounts a new FUSE file system and returns the device that it asks.
pub fn mount(source: &Path, mountpoint: &Path, wanted: MountFlagsWanted) -> Result<OwnedFd, DeviceError> {
    let device = rustix::fs::open("/dev/fuse", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty());
    if rustix::process::geteuid().is_root() {
        let device = device.map_err(|error| DeviceError::Device(error.into()))?;
        return match mount_directly(&device, source, mountpoint, wanted) {
            Ok(()) => Ok(device),
            // Root in a container that may not mount: perhaps the helper may.
            Err(rustix::io::Errno::PERM) => mount_by_helper(source, mountpoint, wanted),
            Err(error) => Err(DeviceError::Mount { mountpoint: mountpoint.display().to_string(), error: error.into() }),
        };
    }
    mount_by_helper(source, mountpoint, wanted)
}

fn mount_directly(
    device: &OwnedFd,
    source: &Path,
    mountpoint: &Path,
    wanted: MountFlagsWanted,
) -> rustix::io::Result<()> {
    let (user, group) = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
    let mut options =
        format!("fd={},rootmode=40000,user_id={user},group_id={group},default_permissions", device.as_raw_fd());
    if wanted.allow_other {
        options.push_str(",allow_other");
    }
    let mut flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOATIME;
    if wanted.read_only {
        flags |= MountFlags::RDONLY;
    }
    let options = std::ffi::CString::new(options).expect("no zero byte in the options");
    rustix::mount::mount(source, mountpoint, FS_TYPE, flags, Some(options.as_c_str()))
}

/// `fusermount3` opens the device, mounts, and sends the descriptor over a socket that it inherits.
fn mount_by_helper(source: &Path, mountpoint: &Path, wanted: MountFlagsWanted) -> Result<OwnedFd, DeviceError> {
    let failed = |reason: String| DeviceError::Helper { mountpoint: mountpoint.display().to_string(), reason };
    let (ours, theirs) = socketpair(AddressFamily::Unix, SockType::Stream, None, SockFlag::empty())
        .map_err(|error| failed(format!("cannot be talked to ({error})")))?;
    // Commas and backslashes would be read as ends of options.
    let name = source.display().to_string().replace('\\', "\\\\").replace(',', "\\,");
    let mut options = format!("fsname={name},subtype=weightfs,default_permissions,nosuid,nodev,noatime");
    for (on, option) in [(wanted.read_only, ",ro"), (wanted.allow_other, ",allow_other")] {
        if on {
            options.push_str(option);
        }
    }
    let output = Command::new("fusermount3")
        .args(["-o", &options, "--"])
        .arg(mountpoint)
        .env("_FUSE_COMMFD", theirs.as_raw_fd().to_string())
        .output()
        .map_err(|error| failed(format!("cannot be run ({error})")))?;
    drop(theirs);
    if !output.status.success() {
        return Err(failed(format!("says: {}", String::from_utf8_lossy(&output.stderr).trim())));
    }
    receive(&ours).map_err(|error| failed(format!("sent no device ({error})")))
}

fn receive(socket: &OwnedFd) -> io::Result<OwnedFd> {
    let mut byte = [0u8; 1];
    let mut space = nix::cmsg_space!([i32; 1]);
    let mut buffers = [IoSliceMut::new(&mut byte)];
    let message = recvmsg::<()>(socket.as_raw_fd(), &mut buffers, Some(&mut space), MsgFlags::MSG_CMSG_CLOEXEC)?;
    for control in message.cmsgs()? {
        if let ControlMessageOwned::ScmRights(descriptors) = control
            && let [descriptor] = descriptors[..]
        {
            return Ok(weightfs::sys::owned_fd(descriptor));
        }
    }
    Err(io::ErrorKind::UnexpectedEof.into())
}

/// Ends a mount that nobody serves any more: out of sight, and whoever waits for an answer gets an error.
pub fn abandon(mountpoint: &Path) -> io::Result<()> {
    let flags = UnmountFlags::FORCE | UnmountFlags::NOFOLLOW;
    // Refused to users, and where files are open; what waits is let go all the same.
    let _ = rustix::mount::unmount(mountpoint, flags);
    unmount(mountpoint, true)
}

/// Ends a mount: lazily, once nobody uses it any more. Already gone is fine.
pub fn unmount(mountpoint: &Path, lazy: bool) -> io::Result<()> {
    let flags = if lazy { UnmountFlags::DETACH } else { UnmountFlags::empty() } | UnmountFlags::NOFOLLOW;
    match rustix::mount::unmount(mountpoint, flags) {
        Ok(()) | Err(rustix::io::Errno::INVAL) => Ok(()),
        Err(rustix::io::Errno::PERM) => {
            let mut helper = Command::new("fusermount3");
            helper.arg("-u");
            if lazy {
                helper.arg("-z");
            }
            let output = helper.arg("--").arg(mountpoint).output()?;
            if output.status.success() {
                return Ok(());
            }
            let text = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            let kind = if text.contains("busy") { io::ErrorKind::ResourceBusy } else { io::ErrorKind::Other };
            Err(io::Error::new(kind, text))
        }
        Err(error) => Err(error.into()),
    }
}
