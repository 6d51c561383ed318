//! What a request may have come to under an earlier worker: every change of names is noted before it begins and when it
//! is done, so that one that is asked for again is answered and not carried out twice. An open is answered with the
//! handle that it was given.

use std::os::fd::BorrowedFd;

use rustix::io::Errno;
use weightfs::failpoint;
use weightfs::journal::{FileKey, HandleKind, Record, StepState, Underway};

use super::{Caller, Fs};
use crate::attr::SourceKey;
use crate::error::FsError;
use crate::source::birth;

impl Fs {
    /// Where a request changes something: it is noted who is at it, and if a thread of a dead worker still is, that is
    /// waited for.
    pub fn begin(&self, caller: &Caller) -> Underway<'_> {
        self.ledger.legacy.journal().begin(self.ledger.mount, caller.unique, caller.resent)
    }

    /// Carries out a change of names. `before` is what the names lead to now.
    pub(super) fn step<R>(
        &self,
        caller: &Caller,
        before: [Option<FileKey>; 2],
        carry_out: impl FnOnce() -> Result<R, FsError>,
    ) -> Result<R, FsError> {
        let (mount, unique) = (self.ledger.mount, caller.unique);
        self.ledger.note(&Record::Begun { mount, unique, before });
        failpoint::pass("rename.begun");
        let result = carry_out();
        failpoint::pass("rename.carried-out");
        let errno = result.as_ref().map_or_else(FsError::errno, |_| 0);
        self.ledger.note(&Record::Done { mount, unique, errno });
        failpoint::pass("rename.done");
        result
    }

    fn earlier(&self, caller: &Caller) -> Option<StepState> {
        if !caller.resent {
            return None;
        }
        self.steps.lock().get(&caller.unique).copied()
    }

    /// Whether an earlier worker has made what this request asks for. `now` is what the names lead to.
    pub(super) fn made_before(&self, caller: &Caller, now: [Option<FileKey>; 2]) -> bool {
        match self.earlier(caller) {
            Some(StepState { done: Some(errno), .. }) => errno == 0,
            // There was nothing of that name, and now there is.
            Some(StepState { before, done: None }) => before[0].is_none() && now[0].is_some(),
            None => false,
        }
    }

    /// The outcome, if an earlier worker has taken a name away that leads to `now`.
    pub(super) fn taken_before(&self, caller: &Caller, now: Option<FileKey>) -> Option<Result<(), FsError>> {
        let step = self.earlier(caller)?;
        match step.done {
            Some(0) => Some(Ok(())),
            Some(errno) => Some(Err(Errno::from_raw_os_error(errno).into())),
            None => (now != step.before[0]).then_some(Ok(())),
        }
    }

    /// The outcome, and what was moved, if an earlier worker has carried out a rename. `now` is what the two names lead
    /// to.
    pub(super) fn moved_before(
        &self,
        caller: &Caller,
        now: [Option<FileKey>; 2],
        exchange: bool,
    ) -> Option<(Result<(), FsError>, Option<SourceKey>)> {
        let step = self.earlier(caller)?;
        let moved = step.before[0].map(|(device, inode)| SourceKey { device, inode });
        match step.done {
            Some(0) => Some((Ok(()), moved)),
            Some(errno) => Some((Err(Errno::from_raw_os_error(errno).into()), None)),
            None if exchange => (now == [step.before[1], step.before[0]]).then_some((Ok(()), moved)),
            None => (now[1] == step.before[0] && now[0] != step.before[0]).then_some((Ok(()), moved)),
        }
    }

    /// The handle with which an earlier worker has answered this open, or was about to.
    pub(super) fn opened_before(&self, caller: &Caller) -> Option<u64> {
        if !caller.resent {
            return None;
        }
        self.opens.lock().remove(&caller.unique)
    }

    /// A handle that the kernel is about to hear of.
    pub(super) fn note_open(
        &self,
        handle: u64,
        node: u64,
        caller: &Caller,
        kind: HandleKind,
        flags: u32,
        descriptor: BorrowedFd<'_>,
    ) -> Result<(), FsError> {
        self.ledger.park(handle, descriptor).map_err(|error| {
            tracing::warn!(%error, "an open file could not be kept safe");
            FsError::Source(Errno::from_io_error(&error).unwrap_or(Errno::IO))
        })?;
        failpoint::pass("open.parked");
        let (mount, unique) = (self.ledger.mount, caller.unique);
        self.ledger.note(&Record::Opened { mount, handle, node, unique, kind, flags });
        // The others are found again by their generation, or need not be the very same.
        if matches!(kind, HandleKind::Source { .. } | HandleKind::Stream(_))
            && let Some(at) = birth(descriptor)
        {
            self.ledger.note(&Record::Born { mount, handle, at });
        }
        failpoint::pass("open.noted");
        Ok(())
    }

    pub(super) fn note_close(&self, handle: u64) {
        self.ledger.note(&Record::Closed { mount: self.ledger.mount, handle });
        failpoint::pass("release.noted");
        self.ledger.unpark(handle);
    }
}
