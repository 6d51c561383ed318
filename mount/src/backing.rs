//! The kernel's references to arena files, one for each resident number that is open in passthrough.
//!
//! They belong to the connection and not to the process that made them: the next worker goes on with their numbers,
//! which is why they are kept as numbers. All handles of one number must use the same reference.

use std::collections::{BTreeSet, HashMap};
use std::fs::File;
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use parking_lot::Mutex;
use weightfs::journal::Record;

use crate::ledger::Ledger;

const FOPEN_PASSTHROUGH: u32 = 1 << 7;
/// Bytes of a header, and of the answer to an open.
const HEADER: u32 = 16;
const OPENED: u32 = 16;

/// A reference, and the handles that use it.
#[derive(Debug, Default)]
struct Backing {
    number: u32,
    handles: BTreeSet<u64>,
}

pub struct Backings {
    device: OwnedFd,
    ledger: Ledger,
    by_resident: Mutex<HashMap<u64, Backing>>,
}

impl Backings {
    pub fn new(device: OwnedFd, ledger: Ledger) -> Self {
        Self { device, ledger, by_resident: Mutex::default() }
    }

    pub fn device(&self) -> BorrowedFd<'_> {
        self.device.as_fd()
    }

    /// A reference of an earlier worker, with the handles that use it. One that nobody uses is given back.
    pub fn restore(&self, resident: u64, number: u32, handles: BTreeSet<u64>) {
        if handles.is_empty() {
            self.close(resident, number);
        } else {
            self.by_resident.lock().insert(resident, Backing { number, handles });
        }
    }

    /// The number of the reference for one more handle.
    ///
    /// # Errors
    /// Where the kernel does not open files of the arena itself.
    pub fn of(&self, resident: u64, handle: u64, arena: &File) -> io::Result<u32> {
        let mut by_resident = self.by_resident.lock();
        if let Some(backing) = by_resident.get_mut(&resident) {
            backing.handles.insert(handle);
            return Ok(backing.number);
        }
        let number = fuser::BackingId::create_raw(&self.device, arena)?;
        self.ledger.note(&Record::Backing { mount: self.ledger.mount, resident, backing: Some(number) });
        by_resident.insert(resident, Backing { number, handles: BTreeSet::from([handle]) });
        Ok(number)
    }

    /// A handle was closed.
    pub fn release(&self, resident: u64, handle: u64) {
        let mut by_resident = self.by_resident.lock();
        let Some(backing) = by_resident.get_mut(&resident) else { return };
        backing.handles.remove(&handle);
        if backing.handles.is_empty() {
            let number = backing.number;
            by_resident.remove(&resident);
            self.close(resident, number);
        }
    }

    /// Noted first: a number that was given back may soon stand for another file.
    fn close(&self, resident: u64, number: u32) {
        self.ledger.note(&Record::Backing { mount: self.ledger.mount, resident, backing: None });
        if let Err(error) = weightfs::sys::close_backing(self.device.as_fd(), number) {
            tracing::debug!(%error, "the kernel keeps a reference to an arena file");
        }
    }

    /// Answers an open with passthrough. The FUSE library's own answer takes no number.
    pub fn answer(&self, unique: u64, handle: u64, number: u32) {
        let mut message = Vec::with_capacity((HEADER + OPENED) as usize);
        message.extend_from_slice(&(HEADER + OPENED).to_ne_bytes());
        message.extend_from_slice(&0i32.to_ne_bytes());
        message.extend_from_slice(&unique.to_ne_bytes());
        message.extend_from_slice(&handle.to_ne_bytes());
        message.extend_from_slice(&FOPEN_PASSTHROUGH.to_ne_bytes());
        message.extend_from_slice(&number.to_ne_bytes());
        if let Err(error) = rustix::io::writev(&self.device, &[IoSlice::new(&message)]) {
            tracing::debug!(%error, "an open was not waited for");
        }
    }
}
