//! Tells a service manager that the service is ready.

use sd_notify::NotifyState;

/// Does nothing where no service manager listens.
pub fn ready() {
    if let Err(error) = sd_notify::notify(&[NotifyState::Ready]) {
        tracing::warn!(%error, "cannot tell the service manager that the mounts are ready");
    }
}
