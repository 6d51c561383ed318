//! How a mount begins and ends, and what it says when it cannot begin.

mod begin;
mod end;
mod refusals;

use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

use weightfs_tests::requirements::{Need, met};
use weightfs_tests::system::shared_memory_names;

fn can_mount() -> bool {
    met(&[Need::Mount])
}

/// What must be the same before a mount and after it. One test at a time looks at it.
struct Traces {
    sockets: Vec<PathBuf>,
    shared_memory: Vec<PathBuf>,
    _alone: MutexGuard<'static, ()>,
}

impl Traces {
    fn note() -> Traces {
        static ALONE: Mutex<()> = Mutex::new(());
        // A failed test has said what failed; the others need not.
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        Traces { sockets: sockets(), shared_memory: shared_memory_names(), _alone: alone }
    }

    fn check(&self, after: &str) {
        assert_eq!(self.sockets, sockets(), "sockets after {after}");
        assert_eq!(self.shared_memory, shared_memory_names(), "names in /dev/shm after {after}");
    }
}

/// Sockets of root's daemons. A user's are in the private folder of the test and go with it.
fn sockets() -> Vec<PathBuf> {
    let entries = std::fs::read_dir("/run/weightfs").into_iter().flatten().flatten().map(|entry| entry.path());
    let mut sockets: Vec<_> = entries.filter(|path| path.extension().is_some_and(|ending| ending == "sock")).collect();
    sockets.sort();
    sockets
}
