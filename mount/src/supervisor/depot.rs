//! The descriptor store of a service manager (sd_notify(3), FDSTORE): what is kept there outlives the supervisor, and is
//! handed to the next one when the service is started again. Where nobody stores anything, nothing is lost either.

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};

use sd_notify::NotifyState;

/// Not to be looked at: a descriptor whose other end has closed is kept all the same.
const UNWATCHED: NotifyState<'static> = NotifyState::Custom("FDPOLL=0");

#[derive(Debug, Default)]
pub struct Depot {
    /// Somebody listens.
    open: bool,
    names: BTreeSet<String>,
}

impl Depot {
    /// For a process that no service manager starts again.
    pub fn none() -> Self {
        Self::default()
    }

    /// For the main process of a service. Without a service manager it is the same as [`Depot::none`].
    pub fn of_service() -> Self {
        Self { open: std::env::var_os("NOTIFY_SOCKET").is_some_and(|socket| !socket.is_empty()), ..Self::default() }
    }

    /// What an earlier main process of this service has left, by name.
    pub(super) fn inherit(&mut self) -> io::Result<HashMap<String, OwnedFd>> {
        let found = sd_notify::listen_fds_with_names()?;
        let found: HashMap<_, _> = found.map(|(number, name)| (name, weightfs::sys::owned_fd(number))).collect();
        self.names.extend(found.keys().cloned());
        Ok(found)
    }

    pub(super) fn keep(&mut self, name: &str, descriptor: BorrowedFd<'_>) {
        if !self.open {
            return;
        }
        self.names.insert(name.to_owned());
        let state = [NotifyState::FdStore, NotifyState::FdName(name), UNWATCHED];
        if let Err(error) = sd_notify::notify_with_fds(&state, &[descriptor]) {
            tracing::warn!(%error, name, "a descriptor is not kept by the service manager");
        }
    }

    /// As [`Depot::keep`], in the place of what was kept under this name.
    pub(super) fn replace(&mut self, name: &str, descriptor: BorrowedFd<'_>) {
        self.remove(name);
        self.keep(name, descriptor);
    }

    pub(super) fn remove(&mut self, name: &str) {
        if !self.names.remove(name) {
            return;
        }
        if let Err(error) = sd_notify::notify(&[NotifyState::FdStoreRemove, NotifyState::FdName(name)]) {
            tracing::warn!(%error, name, "the service manager keeps a descriptor that nobody needs");
        }
    }

    /// Nobody is to go on with what is kept.
    pub(super) fn clear(&mut self) {
        while let Some(name) = self.names.first().cloned() {
            self.remove(&name);
        }
    }
}
