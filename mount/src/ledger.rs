//! What one mount notes for the worker that may come after this one.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use weightfs::journal::{Legacy, Parked, Record};

/// No counter.
const NONE: u32 = u32::MAX;

/// The legacy, as one mount sees it.
#[derive(Clone, Debug)]
pub struct Ledger {
    pub legacy: Arc<Legacy>,
    pub mount: u8,
}

/// How many lookups of a number the kernel has not forgotten: a counter that outlives the process, as long as the number
/// is known. Changed under the lock of the table that the number is in.
#[derive(Debug)]
pub struct Lookups(AtomicU32);

impl Ledger {
    /// For tests, and for processes that nobody succeeds.
    #[cfg(test)]
    pub fn of_nobody() -> Self {
        Self { legacy: Legacy::of_nobody().unwrap(), mount: 0 }
    }

    pub fn note(&self, record: &Record<'_>) {
        self.legacy.note(record);
    }

    pub fn park(&self, handle: u64, descriptor: BorrowedFd<'_>) -> io::Result<()> {
        self.legacy.park(Parked::Handle { mount: self.mount, handle }, descriptor)
    }

    pub fn unpark(&self, handle: u64) {
        self.legacy.unpark(Parked::Handle { mount: self.mount, handle });
    }
}

impl Lookups {
    /// Of a number that nobody knows yet.
    pub fn none() -> Self {
        Self(AtomicU32::new(NONE))
    }

    pub fn in_slot(slot: u32) -> Self {
        Self(AtomicU32::new(slot))
    }

    /// Where they are counted, in a new counter if there is none. The second value tells whether it is new.
    ///
    /// # Errors
    /// Where there are millions already.
    pub fn slot(&self, ledger: &Ledger) -> Result<(u32, bool), rustix::io::Errno> {
        match self.0.load(Ordering::Acquire) {
            NONE => {
                let slot = ledger.legacy.journal().take_slot().ok_or(rustix::io::Errno::NOMEM)?;
                self.0.store(slot, Ordering::Release);
                Ok((slot, true))
            }
            slot => Ok((slot, false)),
        }
    }

    /// One more. There must be a counter.
    pub fn add(&self, ledger: &Ledger) {
        ledger.legacy.journal().counter(self.0.load(Ordering::Acquire)).fetch_add(1, Ordering::AcqRel);
    }

    /// Takes `forgotten` away; whether none are left.
    pub fn forget(&self, ledger: &Ledger, forgotten: u64) -> bool {
        let slot = self.0.load(Ordering::Acquire);
        if slot == NONE {
            return true;
        }
        let counter = ledger.legacy.journal().counter(slot);
        let left = counter.load(Ordering::Acquire).saturating_sub(forgotten);
        counter.store(left, Ordering::Release);
        left == 0
    }

    pub fn count(&self, ledger: &Ledger) -> u64 {
        match self.0.load(Ordering::Acquire) {
            NONE => 0,
            slot => ledger.legacy.journal().counter(slot).load(Ordering::Acquire),
        }
    }

    /// The number is not known any more, which was noted.
    pub fn release(&self, ledger: &Ledger) {
        match self.0.swap(NONE, Ordering::AcqRel) {
            NONE => {}
            slot => ledger.legacy.journal().give_slot(slot),
        }
    }
}
