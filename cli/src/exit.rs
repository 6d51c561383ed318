//! How the program ends: every exit code, and the error that carries one.

use std::fmt;
use std::process::ExitCode;

/// The exit codes, a contract with scripts. `--help` shows [`EXIT_CODES_HELP`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    Ok = 0,
    Failed = 1,
    /// clap's code for arguments that it refuses.
    Usage = 2,
    NoDaemon = 3,
    NotPermitted = 4,
    Busy = 5,
    Unsupported = 6,
    /// As a shell reports a program that Ctrl-C ended.
    Interrupted = 130,
}

pub const EXIT_CODES_HELP: &str = "\
Exit codes:
  0  done
  1  failed; the message says why and what to do
  2  an option, a variable or the configuration file is wrong
  3  no daemon was found
  4  not permitted
  5  the mount is in use
  6  this machine lacks something that weightfs needs (FUSE, fusermount3)
  130  stopped by Ctrl-C";

/// What mount(8) wants of a helper: 1 for a wrong invocation, 32 for a mount that failed.
const MOUNT_HELPER_USAGE: u8 = 1;
const MOUNT_HELPER_FAILED: u8 = 32;

impl Exit {
    pub const ALL: [Self; 8] = [
        Self::Ok,
        Self::Failed,
        Self::Usage,
        Self::NoDaemon,
        Self::NotPermitted,
        Self::Busy,
        Self::Unsupported,
        Self::Interrupted,
    ];

    /// The exit that a process with this code had. Codes of other programs count as failed.
    pub fn of_code(code: i32) -> Self {
        Self::ALL.into_iter().find(|exit| *exit as i32 == code).unwrap_or(Self::Failed)
    }

    pub fn for_mount_helper(self) -> ExitCode {
        match self {
            Self::Ok => ExitCode::SUCCESS,
            Self::Usage => MOUNT_HELPER_USAGE.into(),
            _ => MOUNT_HELPER_FAILED.into(),
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        (exit as u8).into()
    }
}

/// An error for the person at the terminal, and the code to end with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    pub exit: Exit,
    pub message: String,
}

impl Failure {
    /// The message is the error and what caused it.
    pub fn new(exit: Exit, error: &dyn std::error::Error) -> Self {
        let mut message = error.to_string();
        let mut cause = error.source();
        while let Some(error) = cause {
            let text = error.to_string();
            // Errors that pass on the words of their cause would say them twice.
            if !message.contains(&text) {
                message = format!("{message}: {text}");
            }
            cause = error.source();
        }
        Self { exit, message }
    }

    pub fn failed(message: impl Into<String>) -> Self {
        Self { exit: Exit::Failed, message: message.into() }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_is_documented() {
        for exit in Exit::ALL {
            assert!(EXIT_CODES_HELP.contains(&format!("\n  {}  ", exit as u8)), "{exit:?}");
            assert_eq!(Exit::of_code(exit as i32), exit);
        }
        assert_eq!(Exit::of_code(101), Exit::Failed);
    }

    #[test]
    fn causes_are_told_once() {
        let inner = std::io::Error::other("disk on fire");
        let error = std::io::Error::other(inner);
        assert_eq!(Failure::new(Exit::Failed, &error).message, "disk on fire");
    }
}
