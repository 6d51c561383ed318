//! The state of every extent of a generation, without a lock.
//!
//! One word an extent: three flags and the number of readers. A reader first counts itself and then looks whether the
//! extent is present; whoever evicts first takes the extent from "present, no readers" to "evicting" in one step. So
//! nobody reads an extent that is being evicted, and nobody waits for readers.

use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::ids::ExtentIndex;

const PRESENT: u32 = 1 << 31;
const FILLING: u32 = 1 << 30;
const EVICTING: u32 = 1 << 29;
const FLAGS: u32 = PRESENT | FILLING | EVICTING;

/// What an attempt to fill an extent met.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Begin {
    /// The caller fills it now, and nobody else does.
    Started,
    /// Somebody else fills it.
    Filling,
    Present,
    /// Its old bytes are just being freed.
    Evicting,
}

#[derive(Debug)]
pub struct Extents {
    words: Box<[AtomicU32]>,
    present: AtomicU32,
}

/// Keeps extents from being evicted.
#[derive(Debug)]
pub struct Pinned<'a> {
    extents: &'a Extents,
    range: Range<ExtentIndex>,
}

impl Extents {
    pub fn new(count: ExtentIndex) -> Self {
        Self { words: (0..count).map(|_| AtomicU32::new(0)).collect(), present: AtomicU32::new(0) }
    }

    pub fn count(&self) -> ExtentIndex {
        self.words.len() as ExtentIndex
    }

    /// How many are present.
    pub fn present(&self) -> ExtentIndex {
        self.present.load(Ordering::Acquire)
    }

    pub fn is_complete(&self) -> bool {
        self.present() == self.count()
    }

    pub fn is_present(&self, extent: ExtentIndex) -> bool {
        self.words[extent as usize].load(Ordering::Acquire) & PRESENT != 0
    }

    /// Whether anything is present, or being filled or evicted.
    pub fn occupied(&self) -> bool {
        self.words.iter().any(|word| word.load(Ordering::Acquire) & FLAGS != 0)
    }

    pub fn is_filling(&self, extent: ExtentIndex) -> bool {
        self.words[extent as usize].load(Ordering::Acquire) & FILLING != 0
    }

    /// Pins all extents of `range`, or none if one is absent.
    pub fn pin(&self, range: Range<ExtentIndex>) -> Option<Pinned<'_>> {
        let mut pinned = Pinned { extents: self, range: range.start..range.start };
        for extent in range {
            // Counted first, looked at second: see the module's description.
            let word = self.words[extent as usize].fetch_add(1, Ordering::AcqRel);
            pinned.range.end = extent + 1;
            if word & PRESENT == 0 {
                return None;
            }
        }
        Some(pinned)
    }

    pub fn begin_fill(&self, extent: ExtentIndex) -> Begin {
        let word = &self.words[extent as usize];
        let mut now = word.load(Ordering::Acquire);
        loop {
            match now & FLAGS {
                0 => match word.compare_exchange_weak(now, now | FILLING, Ordering::AcqRel, Ordering::Acquire) {
                    Ok(_) => return Begin::Started,
                    Err(changed) => now = changed,
                },
                FILLING => return Begin::Filling,
                EVICTING => return Begin::Evicting,
                _ => return Begin::Present,
            }
        }
    }

    /// The bytes are there.
    pub fn filled(&self, extent: ExtentIndex) {
        // Counted first: whoever evicts it at once must not count below zero.
        self.present.fetch_add(1, Ordering::AcqRel);
        let before = self.words[extent as usize].fetch_xor(FILLING | PRESENT, Ordering::AcqRel);
        assert_eq!(before & FLAGS, FILLING, "an extent was filled that nobody was filling");
    }

    /// The bytes could not be had.
    pub fn fill_failed(&self, extent: ExtentIndex) {
        let before = self.words[extent as usize].fetch_and(!FILLING, Ordering::AcqRel);
        assert_eq!(before & FLAGS, FILLING, "a fill failed that nobody had begun");
    }

    /// From now on nobody reads this extent; false where somebody does now, or where it is not present.
    pub fn begin_evict(&self, extent: ExtentIndex) -> bool {
        let begun = self.words[extent as usize]
            .compare_exchange(PRESENT, EVICTING, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok();
        if begun {
            self.present.fetch_sub(1, Ordering::AcqRel);
        }
        begun
    }

    /// Its pages are freed.
    pub fn evicted(&self, extent: ExtentIndex) {
        let before = self.words[extent as usize].fetch_and(!EVICTING, Ordering::AcqRel);
        assert_eq!(before & FLAGS, EVICTING, "an extent was evicted that nobody had claimed");
    }

    /// The pages could not be freed: the bytes are still there.
    pub fn kept(&self, extent: ExtentIndex) {
        self.present.fetch_add(1, Ordering::AcqRel);
        let before = self.words[extent as usize].fetch_xor(EVICTING | PRESENT, Ordering::AcqRel);
        assert_eq!(before & FLAGS, EVICTING, "an extent was kept that nobody was evicting");
    }
}

impl Drop for Pinned<'_> {
    fn drop(&mut self) {
        for extent in self.range.clone() {
            self.extents.words[extent as usize].fetch_sub(1, Ordering::AcqRel);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU64;

    #[test]
    fn an_extent_is_filled_once_and_read_after_that() {
        let extents = Extents::new(3);
        assert!(extents.pin(0..1).is_none());
        assert_eq!(extents.begin_fill(1), Begin::Started);
        assert_eq!(extents.begin_fill(1), Begin::Filling);
        assert!(extents.pin(1..2).is_none());
        extents.filled(1);
        assert_eq!(extents.begin_fill(1), Begin::Present);
        assert!(extents.pin(1..2).is_some());
        assert!(extents.pin(0..2).is_none() && extents.pin(1..3).is_none());
        assert_eq!((extents.present(), extents.is_complete()), (1, false));
        assert_eq!(extents.begin_fill(0), Begin::Started);
        extents.fill_failed(0);
        assert_eq!(extents.begin_fill(0), Begin::Started);
    }

    #[test]
    fn what_is_read_is_not_evicted() {
        let extents = Extents::new(1);
        extents.begin_fill(0);
        extents.filled(0);
        let pinned = extents.pin(0..1).unwrap();
        assert!(!extents.begin_evict(0));
        drop(pinned);
        assert!(extents.begin_evict(0));
        assert!(extents.pin(0..1).is_none() && !extents.begin_evict(0));
        assert_eq!(extents.begin_fill(0), Begin::Evicting);
        extents.kept(0);
        assert!(extents.pin(0..1).is_some() && extents.is_complete());
        assert!(extents.begin_evict(0));
        extents.evicted(0);
        assert_eq!(extents.begin_fill(0), Begin::Started);
    }

    /// The bytes behind an extent are a counter that is odd exactly while somebody changes them.
    #[test]
    fn readers_never_see_an_extent_change() {
        let extents = Extents::new(1);
        let bytes = AtomicU64::new(1);
        let rounds = 20_000;
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    for _ in 0..rounds {
                        if let Some(_pinned) = extents.pin(0..1) {
                            let seen = bytes.load(Ordering::SeqCst);
                            assert_eq!(seen % 2, 0);
                            std::hint::spin_loop();
                            assert_eq!(bytes.load(Ordering::SeqCst), seen);
                        }
                    }
                });
            }
            scope.spawn(|| {
                for _ in 0..rounds {
                    if extents.begin_evict(0) {
                        bytes.fetch_add(1, Ordering::SeqCst);
                        extents.evicted(0);
                    } else if extents.begin_fill(0) == Begin::Started {
                        bytes.fetch_add(1, Ordering::SeqCst);
                        extents.filled(0);
                    }
                }
            });
        });
    }
}
