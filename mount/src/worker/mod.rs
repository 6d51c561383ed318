//! The process that serves the mounts. It holds nothing that cannot be lost: what the kernel relies on is with the
//! supervisor and in the journal, from where the next worker goes on.

mod handover;
pub mod session;
mod upgrades;

use std::io;
use std::os::fd::AsFd;

use nix::unistd::dup2_stdin;
use rustix::fs::{Mode, OFlags};
use rustix::process::{DumpableBehavior, set_dumpable_behavior};

use crate::daemon::{self, DaemonError};
use crate::link::{Link, Report};

pub use crate::link::form;
pub use handover::{Handover, kept_generations};
pub use upgrades::Upgrades;

/// How a worker ends that leaves its mounts to the next one.
pub const YIELDED: u8 = 10;

/// Serves the mounts that the supervisor at the other end of the standard input hands over, until they are gone.
pub fn run() -> Result<(), DaemonError> {
    // The arena is mapped here: writing it to a file would take minutes in which nobody is served.
    if let Err(error) = set_dumpable_behavior(DumpableBehavior::NotDumpable) {
        tracing::warn!(%error, "a crash will write all of the RAM to a file");
    }
    let link = take_stdin().map_err(DaemonError::Link)?;
    let handover = Handover::receive(link).map_err(DaemonError::Link)?;
    let link = std::sync::Arc::clone(&handover.link);
    weightfs::failpoint::arm(handover.setup.restarts);
    let ended = daemon::run(handover);
    let last_words = match &ended {
        Ok(()) => Report::Done,
        Err(error) => Report::Failed(error.to_string()),
    };
    // The supervisor may have gone, and there is the log.
    let _ = link.send(&last_words, &[]);
    ended
}

/// The socket, in whose place nothing is left that a child could use.
fn take_stdin() -> io::Result<Link> {
    let socket = io::stdin().as_fd().try_clone_to_owned()?;
    dup2_stdin(rustix::fs::open("/dev/null", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?)?;
    Ok(Link::of(socket))
}
