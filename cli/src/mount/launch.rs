//! Starts a daemon in the background and waits until its mounts answer, or until it says why not.
//!
//! The daemon is this program again, in the foreground of a session of its own: a process that forks without an exec
//! would carry half-copied threads. Its standard output is a pipe on which it says [`READY`] or what went wrong, its
//! standard error the log, so that a panic is found there.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};

use super::options::Options;
use super::plan::Plan;
use crate::exit::{Exit, Failure};

/// What a daemon says when its mounts answer.
pub const READY: &str = "ready\n";

/// Bytes of a daemon's last words that are passed on.
const MAX_WORDS: u64 = 64 << 10;

#[derive(Debug, thiserror::Error)]
pub enum LaunchError {
    #[error("cannot start the daemon: {0}")]
    Spawn(#[from] io::Error),
    /// The daemon's own words.
    #[error("{words}")]
    Refused { words: String, exit: Exit },
    #[error("the daemon ended before its mounts were ready ({0}), and did not say why")]
    Silent(ExitStatus),
}

/// Returns once the mounts of `plan`, which was made of `options`, answer.
pub fn background(plan: &Plan, options: &Options) -> Result<(), Failure> {
    plan.runtime.prepare().map_err(|error| Failure::new(Exit::Failed, &error))?;
    let log = open_log(&plan.background_log, plan.logging.file.is_some())
        .map_err(|error| Failure::failed(format!("cannot write the log {}: {error}", plan.background_log.display())))?;
    let program = this_program().map_err(|error| Failure::new(Exit::Failed, &LaunchError::Spawn(error)))?;
    let mut command = Command::new(program);
    command.arg0("weightfs").args(["mount", "--foreground", "--ready-on-stdout"]).args(options.to_arguments());
    start(command, log).map_err(|error| match error {
        LaunchError::Refused { words, exit } => Failure { exit, message: words },
        LaunchError::Silent(_) => Failure::failed(format!("{error}; its log is {}", plan.background_log.display())),
        LaunchError::Spawn(_) => Failure::new(Exit::Failed, &error),
    })
}

/// A log that was named grows; of the usual one, the one before is kept beside it.
fn open_log(path: &Path, named: bool) -> io::Result<File> {
    if !named {
        match fs::rename(path, path.with_extension("log.old")) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    OpenOptions::new().append(true).create(true).open(path)
}

/// Under its own name where that still leads to it, so that `ps` shows it.
pub fn this_program() -> io::Result<PathBuf> {
    let named = std::env::current_exe()?;
    Ok(if named.is_file() { named } else { "/proc/self/exe".into() })
}

fn start(mut command: Command, log: File) -> Result<(), LaunchError> {
    let mut daemon = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log).spawn()?;
    let mut words = Vec::new();
    let mut said = daemon.stdout.take().expect("it was piped").take(MAX_WORDS);
    let mut chunk = [0; 4096];
    loop {
        match said.read(&mut chunk) {
            Ok(0) => break,
            Ok(count) => words.extend_from_slice(&chunk[..count]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error.into()),
        }
        if words == READY.as_bytes() {
            return Ok(());
        }
    }
    let status = daemon.wait()?;
    let words = String::from_utf8_lossy(&words).trim().to_owned();
    if words.is_empty() {
        return Err(LaunchError::Silent(status));
    }
    // A daemon that said why and yet ended well did not do what was asked.
    let exit = status.code().map_or(Exit::Failed, Exit::of_code);
    Err(LaunchError::Refused { words, exit: if exit == Exit::Ok { Exit::Failed } else { exit } })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Result<(), LaunchError> {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", script]);
        start(command, tempfile::tempfile().unwrap())
    }

    #[test]
    fn a_daemon_that_says_ready_is_left_alone() {
        let place = tempfile::tempdir().unwrap();
        let gate = place.path().join("gate");
        rustix::fs::mknodat(rustix::fs::CWD, &gate, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
        // It says the word in two pieces and goes on until the gate opens.
        shell(&format!("printf rea; printf 'dy\\n'; exec >/dev/null; read word <{}", gate.display())).unwrap();
        fs::write(&gate, "go\n").unwrap();
    }

    #[test]
    fn a_daemon_that_fails_is_quoted() {
        match shell("echo 'no fuse: load it'; echo noise >&2; exit 6") {
            Err(LaunchError::Refused { words, exit }) => {
                assert_eq!((words.as_str(), exit), ("no fuse: load it", Exit::Unsupported));
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_daemon_that_dies_without_a_word_is_said_to() {
        let error = shell("kill -9 $$").unwrap_err();
        assert!(error.to_string().contains("signal: 9"), "{error}");
        assert!(matches!(shell("exit 0"), Err(LaunchError::Silent(_))));
    }

    #[test]
    fn the_usual_log_is_kept_once_and_a_named_one_grows() {
        use std::io::Write;
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("x.log");
        for (named, kept) in [(false, ""), (false, "1"), (true, "11")] {
            let mut log = open_log(&path, named).unwrap();
            log.write_all(b"1").unwrap();
            let old = fs::read_to_string(place.path().join("x.log.old")).unwrap_or_default();
            let expected = if named { fs::read_to_string(&path).unwrap() } else { old };
            assert_eq!(expected, kept);
        }
    }
}
