//! Settings of the machine that decide how fast a mount is: raised where that is allowed, spoken of where it is not.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use weightfs::arena::Pages;
use weightfs::store::Store;
use weightfs::units::ByteSize;

use crate::fuse::Offered;
use crate::mount_table::MountTable;

/// Pages in one request: 4 MiB, and one more for a read at an odd offset.
pub const REQUEST_PAGES: u32 = 1025;
pub const PAGES_LIMIT: &str = "/proc/sys/fs/fuse/max_pages_limit";

/// What a page fault of a mapped file brings, in KiB. Bulk readers profit from more, scattered faults from less.
pub const READAHEAD_KIB: u32 = 2048;

/// Every open file of a client is one here too.
pub fn raise_descriptor_limit() {
    if let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE)
        && soft < hard
        && let Err(error) = setrlimit(Resource::RLIMIT_NOFILE, hard, hard)
    {
        tracing::warn!(%error, "the limit on open files cannot be raised");
    }
}

/// What has to be set before the kernel and the daemon agree on the size of requests.
pub fn before_mounting() -> Option<String> {
    let limit = read_number(PAGES_LIMIT)?;
    if limit >= REQUEST_PAGES || std::fs::write(PAGES_LIMIT, REQUEST_PAGES.to_string()).is_ok() {
        return None;
    }
    Some(format!(
        "a read is at most {} at a time, which makes streaming slower; as root: sysctl fs.fuse.max_pages_limit={REQUEST_PAGES}, then mount again",
        ByteSize(u64::from(limit) * 4096)
    ))
}

/// What the arena lacks.
pub fn of_store(store: &Store) -> Vec<String> {
    let mut notes = Vec::new();
    match store.pages() {
        Pages::Detached { huge: true, never_swapped: true } => {}
        Pages::Detached { huge, never_swapped } => {
            if !huge {
                notes.push("the kernel has no 2 MiB pages for tmpfs: mapped models take longer to touch".to_owned());
            }
            if !never_swapped {
                notes.push("the kernel may swap the arena out (keeping it in RAM needs Linux 6.4)".to_owned());
            }
        }
        Pages::Shared => notes.push(format!(
            "without root the arena lies in /dev/shm, of which {} are locked in RAM; raise the limit (ulimit -l), or mount as root",
            ByteSize(store.lock_limit())
        )),
    }
    notes
}

/// Whether the kernel opens arena files itself, as is `known` where an earlier worker has found out, and what else could
/// not be had.
pub fn after_mounting(
    offered: Offered,
    wanted: bool,
    device: BorrowedFd<'_>,
    store: &Store,
    mountpoint: &Path,
    known: Option<bool>,
) -> (bool, Vec<String>) {
    let mut notes = Vec::new();
    if !offered.shared_maps_of_direct_files {
        notes.push("the kernel lacks shared maps of directly served files (Linux 6.6): streamed files pass through its page cache".to_owned());
    }
    if let Err(error) = device_number(mountpoint).and_then(|device| set_readahead(&device)) {
        notes.push(format!(
            "readahead stays at 128 KiB ({error}), which makes page faults of streamed files slower; as root: echo {READAHEAD_KIB} > /sys/class/bdi/DEVICE/read_ahead_kb"
        ));
    }
    let passthrough = match (wanted, offered.passthrough) {
        (false, _) => Err("it was turned off (--no-passthrough)".to_owned()),
        (true, false) => Err("the kernel lacks it (Linux 6.9)".to_owned()),
        // An earlier worker has tried.
        (true, true) if known == Some(true) => Ok(()),
        // Tried with a file of the arena itself.
        (true, true) => register(device, store.arena_probe().as_fd())
            .and_then(|backing| weightfs::sys::close_backing(device, backing).map_err(|error| error.to_string())),
    };
    let works = match passthrough {
        Ok(()) => true,
        Err(reason) => {
            notes.push(format!(
                "resident models are handed out by the daemon, at about half the speed of passthrough, and are in the page cache as well where they are mapped: {reason}"
            ));
            false
        }
    };
    (works, notes)
}

/// Has the kernel keep a reference to an arena file, for opens in passthrough. The error is for a person.
pub fn register(device: BorrowedFd<'_>, file: BorrowedFd<'_>) -> Result<u32, String> {
    fuser::BackingId::create_raw(device, file).map_err(|error| match error.kind() {
        io::ErrorKind::PermissionDenied => "it needs root".to_owned(),
        _ => error.to_string(),
    })
}

/// `device` is "MAJOR:MINOR" of a mount of ours.
pub fn set_readahead(device: &str) -> io::Result<()> {
    std::fs::write(format!("/sys/class/bdi/{device}/read_ahead_kb"), READAHEAD_KIB.to_string())
}

/// "MAJOR:MINOR" of our mount, by which the kernel's tables name it. Not by asking the mount, which may not answer yet.
pub fn device_number(mountpoint: &Path) -> io::Result<String> {
    device_in(&MountTable::read()?, mountpoint)
}

/// The same, of a mount in the namespace of the calling thread.
pub fn device_number_here(mountpoint: &Path) -> io::Result<String> {
    device_in(&MountTable::of("thread-self")?, mountpoint)
}

fn device_in(table: &MountTable, mountpoint: &Path) -> io::Result<String> {
    table.last_weightfs_at(mountpoint).map(|mount| mount.device.clone()).ok_or(io::ErrorKind::NotFound.into())
}

/// The number that a file of the kernel's has, if it is there.
pub fn read_number(path: &str) -> Option<u32> {
    std::fs::read_to_string(path).ok()?.trim().parse().ok()
}
