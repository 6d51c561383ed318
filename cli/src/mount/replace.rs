//! `weightfs mount --replace`: removes the dead mounts of daemons that died, where a new one is to be.

use std::path::Path;

use rustix::io::Errno;

use super::options::Options;
use crate::exit::Failure;
use crate::find;
use crate::unmount::detach;
use weightfs_mount::mount_table::MountTable;

/// Removes what is dead at the places of `options`, and nothing else.
pub fn dead_mounts(options: &Options) -> Result<(), Failure> {
    let first = options.mountpoint.as_ref().or(options.source.as_ref());
    let also = options.also.iter().map(|folder| folder.mountpoint.as_ref().unwrap_or(&folder.source));
    for path in first.into_iter().chain(also) {
        // What is not there is spoken of when it is to be mounted.
        if let Ok(path) = find::resolve(path) {
            remove_dead(&path)?;
        }
    }
    Ok(())
}

fn remove_dead(path: &Path) -> Result<(), Failure> {
    loop {
        let table = MountTable::read()
            .map_err(|error| Failure::failed(format!("cannot read /proc/self/mountinfo: {error}")))?;
        let is_ours = table.at(path).is_some_and(|mount| mount.is_weightfs());
        // Always asked of the daemon, while attributes may be remembered from when it lived.
        if !is_ours || rustix::fs::statfs(path).map(drop) != Err(Errno::NOTCONN) {
            return Ok(());
        }
        // Programs may have files of it open, from which they get nothing any more.
        detach(path, true)?;
    }
}
