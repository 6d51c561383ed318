//! Runs the mounts of one daemon.

use crate::settings::Settings;

/// What runs once every mount answers.
#[derive(Debug)]
pub struct Started;

#[derive(Debug, thiserror::Error)]
pub enum DaemonError {
    #[error("this build has no filesystem: install a release of weightfs")]
    NoFilesystem,
}

/// Mounts, calls `ready` once every mount answers, and serves until the last mount is gone.
pub fn run(_settings: Settings, _ready: impl FnOnce(&Started)) -> Result<(), DaemonError> {
    Err(DaemonError::NoFilesystem)
}
