//! The kernel's references to arena files, one for each resident number that is open in passthrough.
//!
//! A number is open either so or for the kernel to keep its pages, never both at once: the kernel would refuse the later
//! one. The first handle decides.
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

/// A reference, none where the kernel keeps pages instead, and the handles that are open so.
#[derive(Debug, Default)]
struct Backing {
    number: Option<u32>,
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

    /// A number that is known from an earlier worker, with the handles that have it open. A reference that nobody uses is
    /// given back.
    pub fn restore(&self, resident: u64, number: Option<u32>, handles: BTreeSet<u64>) {
        if handles.is_empty() {
            self.close(resident, number);
        } else {
            self.by_resident.lock().insert(resident, Backing { number, handles });
        }
    }

    /// The number of the reference for one more handle, None where the kernel is to keep pages instead. The first handle of a
    /// resident number decides: by whether there is an `arena` to refer to, and whether the kernel opens files of the arena
    /// itself; where it does not, `failed` is told why.
    pub fn of(&self, resident: u64, handle: u64, arena: Option<&File>, failed: impl FnOnce(io::Error)) -> Option<u32> {
        let mut by_resident = self.by_resident.lock();
        if let Some(backing) = by_resident.get_mut(&resident) {
            backing.handles.insert(handle);
            return backing.number;
        }
        let number = arena.and_then(|arena| fuser::BackingId::create_raw(&self.device, arena).map_err(failed).ok());
        if number.is_some() {
            self.ledger.note(&Record::Backing { mount: self.ledger.mount, resident, backing: number });
        }
        by_resident.insert(resident, Backing { number, handles: BTreeSet::from([handle]) });
        number
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
    fn close(&self, resident: u64, number: Option<u32>) {
        let Some(number) = number else { return };
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

#[cfg(test)]
mod tests {
    use super::*;

    /// What a number is open as depends on its first handle, until the last one is closed.
    #[test]
    fn the_first_handle_decides() {
        // It refers to nothing.
        let device = File::options().read(true).write(true).open("/dev/null").unwrap();
        let backings = Backings::new(device.into(), Ledger::of_nobody());
        let arena = tempfile::tempfile().unwrap();
        let failures = std::cell::Cell::new(0);
        let of = |handle, arena| backings.of(7, handle, arena, |_| failures.set(failures.get() + 1));
        assert_eq!([of(1, Some(&arena)), of(2, Some(&arena)), of(3, None)], [None; 3]);
        assert_eq!(failures.get(), 1, "tried once");
        (1..=3).for_each(|handle| backings.release(7, handle));
        assert_eq!((of(4, Some(&arena)), failures.get()), (None, 2), "and again by the next first one");
        backings.restore(8, Some(5), BTreeSet::from([9]));
        backings.restore(9, None, BTreeSet::from([10]));
        let arena = Some(&arena);
        let [in_passthrough, kept] = [8, 9].map(|number| backings.of(number, 11, arena, |_| unreachable!()));
        assert_eq!((in_passthrough, kept), (Some(5), None), "as an earlier worker has opened them");
    }
}
