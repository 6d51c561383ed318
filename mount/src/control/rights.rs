//! Who may look, and who may steer.
//!
//! Whoever can connect to the socket may look. Steering is for root, the daemon's user, the owner of the mounted folder
//! and the members of one group. What makes the daemon write files or run programs is for root and the daemon's user
//! alone: anyone else would get the daemon's rights by it.

use std::ffi::CString;
use std::path::Path;

use nix::unistd::{Gid, Uid, User, getgrouplist};
use serde::{Deserialize, Serialize};
use weightfs::control::ControlError;

/// Who asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Peer {
    /// On the socket, as the kernel says.
    Local { uid: u32, gid: u32 },
    /// By TCP; `token` is whether the right one was shown.
    Web { token: bool },
}

/// Somebody who may not read everything.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reader {
    pub uid: u32,
    pub groups: Vec<u32>,
}

impl Reader {
    /// Whether a file's mode allows all of `bits` (of read 4, write 2, execute 1). Access lists are not looked at.
    pub fn may(&self, mode: u32, owner: u32, group: u32, bits: u32) -> bool {
        let shift = match () {
            () if owner == self.uid => 6,
            () if self.groups.contains(&group) => 3,
            () => 0,
        };
        mode >> shift & bits == bits
    }
}

/// Who may do what.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rights {
    pub daemon_uid: u32,
    /// Whose folders are mounted, in the order of the mounts.
    pub owners: Vec<u32>,
    /// Whose members may steer.
    pub group: Option<u32>,
    /// Whether others than the daemon's user may use the mounts.
    pub open: bool,
}

impl Rights {
    /// Whether somebody may do anything at all. Others cannot keep these out.
    pub fn is_master(&self, uid: u32) -> bool {
        uid == 0 || uid == self.daemon_uid
    }

    /// For who wants to see how things are.
    pub fn may_look(&self, peer: &Peer) -> Result<(), ControlError> {
        match *peer {
            Peer::Web { .. } => Ok(()),
            Peer::Local { uid, .. } if self.open || self.is_master(uid) || self.owners.contains(&uid) => Ok(()),
            // Who may change things may look.
            Peer::Local { .. } => self.may_steer(peer, None),
        }
    }

    /// None for whoever may read everything.
    pub fn reader(&self, peer: &Peer) -> Option<Reader> {
        match *peer {
            Peer::Local { uid, gid } if !self.is_master(uid) => Some(Reader { uid, groups: groups_of(uid, gid) }),
            _ => None,
        }
    }

    /// For what concerns the mount with this number, or all mounts. May ask the user database.
    pub fn may_steer(&self, peer: &Peer, mount: Option<usize>) -> Result<(), ControlError> {
        let (uid, gid) = match *peer {
            Peer::Web { token: true } => return Ok(()),
            Peer::Web { token: false } => return Err(no_token()),
            Peer::Local { uid, gid } => (uid, gid),
        };
        let owns = match mount {
            Some(mount) => self.owners.get(mount) == Some(&uid),
            None => !self.owners.is_empty() && self.owners.iter().all(|owner| *owner == uid),
        };
        let in_group = |group: u32| group == gid || groups_of(uid, gid).contains(&group);
        if self.is_master(uid) || owns || self.group.is_some_and(in_group) {
            return Ok(());
        }
        Err(ControlError::NotPermitted(format!(
            "only root, the user of the daemon (uid {}), the owner of the folder and members of --control-group may do \
             this, not uid {uid}",
            self.daemon_uid
        )))
    }

    /// For what the daemon does with its own rights.
    pub fn may_command(&self, peer: &Peer) -> Result<(), ControlError> {
        match *peer {
            Peer::Local { uid, .. } if self.is_master(uid) => Ok(()),
            _ => Err(ControlError::NotPermitted(format!(
                "only root and the user of the daemon (uid {}) may do this, on the daemon's socket",
                self.daemon_uid
            ))),
        }
    }
}

fn no_token() -> ControlError {
    ControlError::NotPermitted(
        "this page may only look; open it with 'weightfs dashboard', which gives it the right to change things".into(),
    )
}

/// All groups of a user, as the user database has them.
pub fn groups_of(uid: u32, gid: u32) -> Vec<u32> {
    let name = User::from_uid(Uid::from_raw(uid)).ok().flatten().and_then(|user| CString::new(user.name).ok());
    let groups = name.and_then(|name| getgrouplist(&name, Gid::from_raw(gid)).ok());
    groups.map_or_else(|| vec![gid], |groups| groups.into_iter().map(Gid::as_raw).collect())
}

/// The number of the mount that a path lies in, among mountpoints: the innermost.
pub fn mount_of<'a>(path: &Path, mountpoints: impl Iterator<Item = &'a Path>) -> Option<usize> {
    let around = mountpoints.enumerate().filter(|(_, mountpoint)| path.starts_with(mountpoint));
    around.max_by_key(|(_, mountpoint)| mountpoint.as_os_str().len()).map(|(number, _)| number)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn local(uid: u32) -> Peer {
        Peer::Local { uid, gid: 4_000_000 }
    }

    #[test]
    fn owners_steer_what_is_theirs() {
        let rights = Rights { daemon_uid: 7, owners: vec![1000, 1001], ..Rights::default() };
        for master in [0, 7] {
            assert!(rights.may_steer(&local(master), None).is_ok() && rights.may_command(&local(master)).is_ok());
        }
        assert!(rights.may_steer(&local(1000), Some(0)).is_ok());
        assert!(rights.may_steer(&local(1000), Some(1)).is_err());
        assert!(rights.may_steer(&local(1000), None).is_err());
        assert!(rights.may_command(&local(1000)).is_err());
        let error = rights.may_steer(&local(2000), Some(0)).unwrap_err();
        assert!(error.to_string().contains("uid 2000"), "{error}");
        assert!(rights.may_look(&local(1001)).is_ok() && rights.may_look(&local(2000)).is_err());
        assert!(Rights { open: true, ..rights.clone() }.may_look(&local(2000)).is_ok());
        let one = Rights { owners: vec![1000], ..rights };
        assert!(one.may_steer(&local(1000), None).is_ok());
    }

    #[test]
    fn a_group_and_a_token_steer_but_do_not_command() {
        let rights = Rights { daemon_uid: 7, group: Some(50), ..Rights::default() };
        let member = Peer::Local { uid: 4_000_001, gid: 50 };
        assert!(rights.may_steer(&member, None).is_ok() && rights.may_command(&member).is_err());
        assert!(rights.may_steer(&local(4_000_001), None).is_err());
        let page = |token| Peer::Web { token };
        assert!(rights.may_steer(&page(true), None).is_ok() && rights.may_command(&page(true)).is_err());
        assert!(rights.may_steer(&page(false), None).is_err());
    }

    #[test]
    fn modes_are_read_as_the_kernel_reads_them() {
        let reads = |mode, uid, groups: &[u32]| Reader { uid, groups: groups.to_vec() }.may(mode, 1, 2, 0o4);
        assert!(reads(0o400, 1, &[]) && !reads(0o044, 1, &[2]));
        assert!(reads(0o040, 3, &[2]) && !reads(0o404, 3, &[2]));
        assert!(reads(0o004, 3, &[]) && !reads(0o440, 3, &[]));
    }

    #[test]
    fn the_innermost_mount_counts() {
        let mounts = [Path::new("/m"), Path::new("/m/in"), Path::new("/other")];
        let of = |path: &str| mount_of(Path::new(path), mounts.into_iter());
        assert_eq!([of("/m/x"), of("/m/in/x"), of("/m/inner"), of("/z")], [Some(0), Some(1), Some(0), None]);
    }
}
