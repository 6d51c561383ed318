//! What the kernel's FUSE gives here: found out by mounting, for a moment and out of everybody's sight.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

use fuser::{Filesystem, InitFlags, KernelConfig, Request, Session, SessionACL, Version};
use nix::mount::MsFlags;
use nix::sched::CloneFlags;
use parking_lot::Mutex;
use weightfs::arena::Arena;
use weightfs::ids::GenerationId;
use weightfs::units::{ByteSize, EXTENT_SIZE};

use super::finding::{Finding, Fix};
use crate::device::{self, DeviceError, MountFlagsWanted};
use crate::fuse::{Offered, ask_of_kernel};
use crate::tuning::{self, PAGES_LIMIT, READAHEAD_KIB, REQUEST_PAGES};

const DEVICE: &str = "/dev/fuse";

/// Without a limit of its own, a kernel takes so many pages in one request.
const FIXED_PAGES: u32 = 256;

/// What a mount of ours came to.
struct Probe {
    abi: Version,
    offered: Offered,
    /// Whether requests that a worker had taken can be asked for again.
    resend: bool,
    passthrough: Result<(), String>,
    readahead: io::Result<()>,
    /// Mounted without fusermount3.
    directly: bool,
}

#[derive(Debug, thiserror::Error)]
enum ProbeError {
    #[error(transparent)]
    Device(#[from] DeviceError),
    #[error("{0}")]
    Other(#[from] io::Error),
}

pub fn check() -> Vec<Finding> {
    let uname = rustix::system::uname();
    let release = uname.release().to_string_lossy().into_owned();
    // The mount is made in a namespace of the thread's own, which goes with the thread.
    let probe = match thread::Builder::new().name("probe".to_owned()).spawn(probe) {
        Ok(thread) => thread.join().unwrap_or_else(|_| Err(io::Error::other("trying it failed").into())),
        Err(error) => Err(error.into()),
    };
    match probe {
        Ok(probe) => found(&release, &probe),
        Err(error) => vec![no_mount(&release, &error), request_size()],
    }
}

fn no_mount(release: &str, error: &ProbeError) -> Finding {
    let finding = Finding::bad("fuse", format!("Linux {release}: {error}")).costs("nothing can be mounted");
    if Path::new(DEVICE).exists() {
        return finding.mend(
            "in a container, start it with '--device /dev/fuse --cap-add SYS_ADMIN'; without root, 'apt install fuse3'",
        );
    }
    finding.mend("modprobe fuse; in a container, start it with '--device /dev/fuse'").fix(Fix::LoadFuse)
}

fn found(release: &str, probe: &Probe) -> Vec<Finding> {
    let way = if probe.directly { "mounts without help" } else { "mounts through fusermount3" };
    let mut findings = vec![Finding::ok("fuse", format!("Linux {release}, FUSE {}, {way}", probe.abi))];
    findings.push(match &probe.passthrough {
        Ok(()) => Finding::ok("passthrough", "resident models are read without the daemon"),
        Err(reason) => Finding::warn("passthrough", reason.clone())
            .costs("resident models are handed out by the daemon, at about half the speed, and are in RAM twice where they are mapped")
            .mend(if probe.offered.passthrough { "mount as root" } else { "Linux 6.9 or later" }),
    });
    findings.push(if probe.offered.shared_maps_of_direct_files {
        Finding::ok("shared-maps", "files that are streamed can be mapped shared")
    } else {
        Finding::warn("shared-maps", "not for files that are streamed")
            .costs("streamed files go through the page cache, so that what is read of them is in RAM twice")
            .mend("Linux 6.6 or later")
    });
    findings.push(if probe.resend {
        Finding::ok("takeover", "a worker that dies is replaced while programs read")
    } else {
        Finding::warn("takeover", "requests that a worker had taken cannot be asked for again")
            .costs("a worker that dies ends its mounts")
            .mend("Linux 6.9 or later")
    });
    findings.push(request_size());
    findings.push(match &probe.readahead {
        Ok(()) => Finding::ok("readahead", format!("a page fault brings {}", ByteSize(u64::from(READAHEAD_KIB) << 10))),
        Err(error) => Finding::warn("readahead", format!("stays at 128 KiB: {error}"))
            .costs("mapped models that are not resident are read in small steps")
            .mend(format!(
                "mount as root; or as root after mounting: echo {READAHEAD_KIB} > /sys/class/bdi/$(mountpoint -d MOUNTPOINT)/read_ahead_kb"
            )),
    });
    findings
}

fn request_size() -> Finding {
    let name = "request-size";
    let size = |pages: u32| ByteSize(u64::from(pages.min(REQUEST_PAGES - 1)) * 4096);
    let Some(limit) = tuning::read_number(PAGES_LIMIT) else {
        return Finding::warn(name, format!("a read is at most {} at a time", size(FIXED_PAGES)))
            .costs("streaming is slower")
            .mend("Linux 6.13 or later");
    };
    if limit >= REQUEST_PAGES {
        return Finding::ok(name, format!("{} in one read", size(limit)));
    }
    // Opening it is enough to know; the value is for a mount to set.
    if File::options().write(true).open(PAGES_LIMIT).is_ok() {
        return Finding::ok(name, format!("{} in one read; a mount raises it to {}", size(limit), size(REQUEST_PAGES)));
    }
    Finding::warn(name, format!("a read is at most {} at a time", size(limit)))
        .costs("streaming is slower")
        .mend(format!("as root: sysctl fs.fuse.max_pages_limit={REQUEST_PAGES}, then mount again"))
        .fix(Fix::RaiseRequestSize)
}

fn probe() -> Result<Probe, ProbeError> {
    let private = nix::sched::unshare(CloneFlags::CLONE_NEWNS).is_ok() && make_private().is_ok();
    let place = Place::make()?;
    let wanted = MountFlagsWanted { read_only: true, allow_other: false };
    let device = device::mount(&place.0, &place.0, wanted)?;
    let _mounted = Mounted(&place.0);
    let seen = Arc::new(Mutex::new(Seen::default()));
    let mut config = fuser::Config::default();
    config.acl = SessionACL::Owner;
    let session = Session::from_fd(Empty(Arc::clone(&seen)), device.try_clone()?, SessionACL::Owner, config)?;
    let Seen { abi, offered, resend } = *seen.lock();
    let readahead = tuning::device_number_here(&place.0).and_then(|number| tuning::set_readahead(&number));
    let passthrough =
        if offered.passthrough { try_passthrough(device.as_fd()) } else { Err("the kernel lacks it".to_owned()) };
    drop(session);
    Ok(Probe { abi, offered, resend, passthrough, readahead, directly: private })
}

fn try_passthrough(device: BorrowedFd<'_>) -> Result<(), String> {
    let arena = Arena::create(2 * EXTENT_SIZE).map_err(|error| error.to_string())?;
    let file = arena.file(GenerationId(0), EXTENT_SIZE).map_err(|error| error.to_string())?;
    tuning::register(device, file.as_file().as_fd()).map(drop)
}

/// What this thread mounts from now on is seen by nobody else.
fn make_private() -> nix::Result<()> {
    nix::mount::mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_PRIVATE, None::<&str>)
}

/// An empty folder that goes with this value.
struct Place(PathBuf);

impl Place {
    fn make() -> io::Result<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("weightfs-probe-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().canonicalize()?.join(name);
        std::fs::create_dir(&path)?;
        Ok(Self(path))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir(&self.0) {
            tracing::warn!(%error, folder = %self.0.display(), "a folder is left behind");
        }
    }
}

struct Mounted<'a>(&'a Path);

impl Drop for Mounted<'_> {
    fn drop(&mut self) {
        if let Err(error) = device::unmount(self.0, true) {
            tracing::warn!(%error, mountpoint = %self.0.display(), "a mount is left behind");
        }
    }
}

#[derive(Clone, Copy)]
struct Seen {
    abi: Version,
    offered: Offered,
    resend: bool,
}

impl Default for Seen {
    fn default() -> Self {
        Self { abi: Version(0, 0), offered: Offered::default(), resend: false }
    }
}

/// A file system that only introduces itself.
struct Empty(Arc<Mutex<Seen>>);

impl Filesystem for Empty {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        let resend = config.capabilities().contains(InitFlags::FUSE_HAS_RESEND);
        *self.0.lock() = Seen { abi: config.kernel_abi(), offered: ask_of_kernel(config), resend };
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weightfs::control::CheckState;

    fn probe_of(passthrough: Result<(), String>) -> Probe {
        Probe {
            abi: Version(7, 40),
            offered: Offered { passthrough: true, shared_maps_of_direct_files: false },
            resend: true,
            passthrough,
            readahead: Err(io::ErrorKind::PermissionDenied.into()),
            directly: false,
        }
    }

    #[test]
    fn what_is_missing_has_a_price_and_a_way_out() {
        let findings = found("6.10", &probe_of(Err("it needs root".into())));
        let missing = ["passthrough", "shared-maps", "readahead"];
        for name in missing {
            let check = &findings.iter().find(|finding| finding.check.name == name).unwrap().check;
            assert_eq!(check.state, CheckState::Warn, "{name}");
            assert!(check.costs.is_some() && check.mend.is_some(), "{name}");
        }
        assert_eq!(findings[0].check.found, "Linux 6.10, FUSE 7.40, mounts through fusermount3");
    }

    #[test]
    fn trying_leaves_nothing_behind() {
        let table = || std::fs::read_to_string("/proc/self/mountinfo").unwrap();
        let ours = |table: &str| table.matches("weightfs-probe-").count();
        let before = ours(&table());
        let findings = check();
        assert_eq!(ours(&table()), before);
        assert!(findings.iter().any(|finding| finding.check.name == "request-size"));
        let name = format!("weightfs-probe-{}-", std::process::id());
        let left = std::fs::read_dir(std::env::temp_dir()).unwrap().flatten();
        assert_eq!(left.filter(|entry| entry.file_name().to_string_lossy().starts_with(&name)).count(), 0);
    }
}
