//! What a check found, and what can be done about it at once.

use std::path::PathBuf;
use std::process::Command;
use std::{fs, io};

use weightfs::control::{Check, CheckState};

use crate::device;
use crate::tuning::{PAGES_LIMIT, REQUEST_PAGES};

/// Where systems read settings of the kernel from when they start (sysctl.d(5)).
const SYSCTL_FILE: &str = "/etc/sysctl.d/60-weightfs.conf";

/// A check, and what `weightfs doctor --fix` may do about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    pub check: Check,
    pub fix: Option<Fix>,
}

/// Safe to do at any time: nothing that runs is disturbed, and nobody gets more rights.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fix {
    LoadFuse,
    /// Raises the kernel's bound on the pages of one request, now and at every start.
    RaiseRequestSize,
    /// Takes away a mount whose daemon has died.
    RemoveDeadMount(PathBuf),
}

#[derive(Debug, thiserror::Error)]
pub enum FixError {
    #[error("cannot run modprobe: {0}")]
    NoModprobe(io::Error),
    #[error("modprobe says: {0}")]
    Modprobe(String),
    #[error("cannot write {file}: {error}; it needs root")]
    Write { file: &'static str, error: io::Error },
    #[error("cannot unmount {}: {error}", .mountpoint.display())]
    Unmount { mountpoint: PathBuf, error: io::Error },
}

impl Finding {
    pub fn new(name: &str, state: CheckState, found: impl Into<String>) -> Self {
        let check = Check { name: name.to_owned(), subject: None, state, found: found.into(), costs: None, mend: None };
        Self { check, fix: None }
    }

    pub fn ok(name: &str, found: impl Into<String>) -> Self {
        Self::new(name, CheckState::Ok, found)
    }

    pub fn warn(name: &str, found: impl Into<String>) -> Self {
        Self::new(name, CheckState::Warn, found)
    }

    pub fn bad(name: &str, found: impl Into<String>) -> Self {
        Self::new(name, CheckState::Bad, found)
    }

    pub fn unknown(name: &str, found: impl Into<String>) -> Self {
        Self::new(name, CheckState::Unknown, found)
    }

    pub fn on(mut self, subject: impl Into<String>) -> Self {
        self.check.subject = Some(subject.into());
        self
    }

    pub fn costs(mut self, costs: impl Into<String>) -> Self {
        self.check.costs = Some(costs.into());
        self
    }

    pub fn mend(mut self, mend: impl Into<String>) -> Self {
        self.check.mend = Some(mend.into());
        self
    }

    pub fn fix(mut self, fix: Fix) -> Self {
        self.fix = Some(fix);
        self
    }
}

impl Fix {
    /// Does it, and says what was done.
    pub fn apply(&self) -> Result<String, FixError> {
        match self {
            Self::LoadFuse => load_fuse(),
            Self::RaiseRequestSize => raise_request_size(),
            Self::RemoveDeadMount(mountpoint) => match device::unmount(mountpoint, true) {
                Ok(()) => Ok(format!("removed the dead mount {}", mountpoint.display())),
                Err(error) => Err(FixError::Unmount { mountpoint: mountpoint.clone(), error }),
            },
        }
    }
}

fn load_fuse() -> Result<String, FixError> {
    let output = Command::new("modprobe").arg("fuse").output().map_err(FixError::NoModprobe)?;
    if output.status.success() {
        return Ok("loaded the module fuse".to_owned());
    }
    Err(FixError::Modprobe(String::from_utf8_lossy(&output.stderr).trim().to_owned()))
}

fn raise_request_size() -> Result<String, FixError> {
    let write =
        |file: &'static str, text: String| fs::write(file, text).map_err(|error| FixError::Write { file, error });
    write(PAGES_LIMIT, REQUEST_PAGES.to_string())?;
    write(
        SYSCTL_FILE,
        format!("# Reads of 4 MiB at a time through FUSE.\nfs.fuse.max_pages_limit = {REQUEST_PAGES}\n"),
    )?;
    Ok(format!("set fs.fuse.max_pages_limit={REQUEST_PAGES}, and wrote {SYSCTL_FILE} for the next start"))
}
