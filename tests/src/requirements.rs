//! What a test needs of the machine. A test that cannot run says so where nobody can overlook it, and fails in CI,
//! where a skipped test would be a proof that is not there.

use std::io::Write;

/// Something that not every machine has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// `/dev/fuse`, and the right to mount.
    Mount,
    /// Acting as other users, mounting a tmpfs.
    Root,
    /// The Python of `.venv` with the packages of `tests/requirements.txt`.
    Python,
    /// A terminal that can be looked at.
    Tmux,
}

/// Whether everything in `needs` is there. If not, the calling test should return at once.
///
/// # Panics
/// In CI (`CI=true`), where a test that does not run is a failure.
pub fn met(needs: &[Need]) -> bool {
    let Some(reason) = needs.iter().find_map(|need| missing(*need)) else { return true };
    skip(&reason);
    false
}

/// Says that the calling test does not run.
///
/// # Panics
/// In CI (`CI=true`).
pub fn skip(reason: &str) {
    let test = std::thread::current().name().unwrap_or("a test").to_owned();
    assert!(std::env::var("CI").as_deref() != Ok("true"), "{test} cannot run, and CI must not skip it: {reason}");
    // Straight to the descriptor: the test runner hides what passing tests print.
    let _ = writeln!(std::io::stderr(), "\n*** SKIPPED {test}: {reason} ***");
}

fn missing(need: Need) -> Option<String> {
    match need {
        Need::Mount => {
            if let Err(error) = std::fs::OpenOptions::new().read(true).write(true).open("/dev/fuse") {
                return Some(format!(
                    "/dev/fuse cannot be opened ({error}); try 'modprobe fuse', or --device /dev/fuse in a container"
                ));
            }
            (!is_root() && !crate::system::has_program("fusermount3"))
                .then(|| "mounting needs root or fusermount3 (package fuse3)".to_owned())
        }
        Need::Root => (!is_root()).then(|| "it acts as several users, so it must start as root".to_owned()),
        Need::Tmux => {
            (!crate::system::has_program("tmux")).then(|| "it needs a terminal to look at (package tmux)".to_owned())
        }
        Need::Python => {
            let python = crate::python::interpreter();
            (!python.exists()).then(|| format!("{} is not there; 'make venv' makes it", python.display()))
        }
    }
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}
