//! Faults that tests script for a source file: they change what an attempt seems to have given.

use parking_lot::Mutex;
use rustix::io::Errno;

use super::piece::Piece;

/// What becomes of one attempt that covers the byte `at` of the source.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Fault {
    /// Fails.
    Error(Errno),
    /// Gives this many bytes only; the memory of the others holds garbage.
    Short(usize),
}

/// Each fault is used up by the first attempt that covers its byte.
#[derive(Debug, Default)]
pub(crate) struct Faults(Mutex<Vec<(u64, Fault)>>);

impl Faults {
    pub fn new(faults: impl IntoIterator<Item = (u64, Fault)>) -> Self {
        Self(Mutex::new(faults.into_iter().collect()))
    }

    pub fn apply(&self, piece: &Piece, result: Result<usize, Errno>) -> Result<usize, Errno> {
        let mut faults = self.0.lock();
        let Some(index) = faults.iter().position(|(at, _)| piece.bytes.contains(at)) else { return result };
        let (_, fault) = faults.remove(index);
        let given = match fault {
            Fault::Error(_) => 0,
            Fault::Short(bytes) => result?.min(bytes),
        };
        let target = piece.target();
        piece.memory.target(target.start + given..target.end).fill(0xEE);
        match fault {
            Fault::Error(errno) => Err(errno),
            Fault::Short(_) => Ok(given),
        }
    }
}
