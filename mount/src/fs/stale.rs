//! Answers to who has come to something that is not there any more: the kernel is told once to look its path up again.
//! Who comes back to what has gone once more is told that there is nothing, as if it had come a moment later. So no
//! client ever sees ESTALE.

use rustix::io::Errno;

use super::{Caller, Fs};
use crate::attr::SourceKey;
use crate::bounce::Purpose;
use crate::error::FsError;

impl Fs {
    /// The answer to a request about `id` that may be one of several for the same call: the kernel asks for attributes
    /// and rights of what is on the way.
    pub fn once<R>(&self, id: u64, caller: &Caller, result: Result<R, FsError>) -> Result<R, FsError> {
        self.once_for(id, caller, Purpose::Read, result)
    }

    /// The answer to the last request of a call.
    pub fn last<R>(&self, id: u64, caller: &Caller, result: Result<R, FsError>) -> Result<R, FsError> {
        self.last_of(id, caller, Purpose::Read, result)
    }

    /// As [`Fs::last`]. `purpose` is what the next lookups of the caller are for, if there are any.
    pub(super) fn last_of<R>(
        &self,
        id: u64,
        caller: &Caller,
        purpose: Purpose,
        result: Result<R, FsError>,
    ) -> Result<R, FsError> {
        if !matches!(result, Err(FsError::Stale)) {
            self.bounced.landed(caller.thread);
        }
        self.once_for(id, caller, purpose, result)
    }

    fn once_for<R>(
        &self,
        id: u64,
        caller: &Caller,
        purpose: Purpose,
        result: Result<R, FsError>,
    ) -> Result<R, FsError> {
        let Err(FsError::Stale) = result else { return result };
        // Threads that the kernel cannot name cannot be told from each other.
        if caller.thread != 0 && self.bounced.second_try(caller.thread, id).is_some() {
            tracing::info!(node = id, "what was looked up a moment ago has gone again");
            self.bounced.landed(caller.thread);
            return Err(Errno::NOENT.into());
        }
        let file = self.node(id).map_or(SourceKey { device: 0, inode: 0 }, |node| node.key);
        self.bounced.bounce(caller.thread, id, file, purpose);
        Err(FsError::Stale)
    }
}
