//! Threads that read pieces of tensors through one descriptor.

use std::fs::File;
use std::num::NonZeroU64;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::fs::Advice;

use crate::error::{Doing, Result};

const THREADS: usize = 8;
const PIECE: u64 = 2 << 20;

/// The threads' buffers, kept so that no load pays for their first touch.
pub struct Pool {
    buffers: Vec<Vec<u8>>,
}

impl Pool {
    pub fn new() -> Self {
        // Not zeros: those would be pages that nobody has touched yet.
        Self { buffers: vec![vec![1; PIECE as usize]; THREADS] }
    }

    /// Reads the header, and then every tensor in the order given. `and_drop` has each piece leave the page cache.
    /// Gives the bytes read.
    pub fn load(&mut self, path: &Path, tensors: &[Range<u64>], and_drop: bool) -> Result<u64> {
        let what = || format!("read {}", path.display());
        let file = File::open(path).doing(what)?;
        let header = tensors.iter().map(|range| range.start).min().unwrap_or(0);
        let pieces: Vec<Range<u64>> = pieces(&(0..header)).chain(tensors.iter().flat_map(pieces)).collect();
        let next = AtomicUsize::new(0);
        let read = |buffer: &mut [u8]| -> std::io::Result<()> {
            while let Some(piece) = pieces.get(next.fetch_add(1, Ordering::Relaxed)) {
                let length = piece.end - piece.start;
                file.read_exact_at(&mut buffer[..length as usize], piece.start)?;
                if and_drop {
                    rustix::fs::fadvise(&file, piece.start, NonZeroU64::new(length), Advice::DontNeed)?;
                }
            }
            Ok(())
        };
        std::thread::scope(|scope| {
            let threads: Vec<_> = self.buffers.iter_mut().map(|buffer| scope.spawn(|| read(buffer))).collect();
            threads.into_iter().try_for_each(|thread| thread.join().expect("a reader does not panic"))
        })
        .doing(what)?;
        Ok(pieces.iter().map(|piece| piece.end - piece.start).sum())
    }
}

impl Default for Pool {
    fn default() -> Self {
        Self::new()
    }
}

fn pieces(range: &Range<u64>) -> impl Iterator<Item = Range<u64>> + use<> {
    let end = range.end;
    (range.start..end).step_by(PIECE as usize).map(move |start| start..(start + PIECE).min(end))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_cover_a_range_without_overlap() {
        let all: Vec<_> = pieces(&(5..5 + 2 * PIECE + 1)).collect();
        assert_eq!(all, [5..5 + PIECE, 5 + PIECE..5 + 2 * PIECE, 5 + 2 * PIECE..6 + 2 * PIECE]);
        assert_eq!(pieces(&(3..3)).count(), 0);
    }
}
