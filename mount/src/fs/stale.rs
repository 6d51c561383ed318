//! Answers to who has come to something that is not there any more: the kernel is told once to look its path up again.
//! Who comes back to what has gone once more is told that there is nothing, as if it had come a moment later. So no
//! client ever sees ESTALE.

use std::os::fd::AsFd;

use rustix::fs::{FileType, Stat};
use rustix::io::Errno;

use super::{Caller, Fs, Located};
use crate::attr::SourceKey;
use crate::bounce::Purpose;
use crate::error::FsError;
use crate::nodes::Node;
use crate::source::open_at;

impl Fs {
    /// As [`Fs::locate`]. For who was sent back and has looked `id` up since, what its name leads to by now is as right as
    /// what it led to a moment ago.
    pub(super) fn locate_for(&self, id: u64, node: &Node, caller: &Caller) -> Result<(Located, Stat), FsError> {
        let found = self.locate(node);
        if let Err(FsError::Stale) = found
            && let Some(name) = self.bounced.name(caller.thread, id)
        {
            let directory = self.directory(name.parent)?;
            let located = open_at(directory.as_fd(), &name.name)?;
            let stat = rustix::fs::fstat(&located)?;
            if FileType::from_raw_mode(stat.st_mode) == node.kind {
                return Ok((Located::Found(located), stat));
            }
        }
        found
    }

    /// Lets go of what is kept for callers that will not come back.
    pub fn tidy(&self) {
        self.bounced.tidy();
    }

    /// The answer to a request about `id` that may be one of several for the same call: the kernel asks for attributes
    /// and rights of what is on the way.
    pub fn once<R>(&self, id: u64, caller: &Caller, result: Result<R, FsError>) -> Result<R, FsError> {
        self.once_for(id, caller, Purpose::Unknown, result)
    }

    /// The answer to the last request of a call.
    pub fn last<R>(&self, id: u64, caller: &Caller, result: Result<R, FsError>) -> Result<R, FsError> {
        self.last_of(id, caller, Purpose::Unknown, result)
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
        let Err(FsError::Stale) = result else {
            if result.is_ok() {
                let is_file = || self.node(id).is_ok_and(|node| node.kind.is_file());
                self.bounced.answered(caller.thread, id, is_file);
            }
            return result;
        };
        // Threads that the kernel cannot name cannot be told from each other.
        if caller.thread != 0 && self.bounced.second_try(caller.thread, id).is_some() {
            tracing::info!(node = id, "what was looked up a moment ago has gone again");
            self.bounced.landed(caller.thread);
            return Err(Errno::NOENT.into());
        }
        let file = self.node(id).map_or(SourceKey { device: 0, inode: 0 }, |node| node.key);
        // Of threads that cannot be told from each other, only that one of them is to write is worth knowing.
        if caller.thread != 0 || purpose == Purpose::Write {
            self.bounced.bounce(caller.thread, id, file, purpose);
        }
        Err(FsError::Stale)
    }
}
