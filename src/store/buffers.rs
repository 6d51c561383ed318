//! Memory for answers that are not in the arena: kept for the next one, but only as much as is often needed.

use std::cell::RefCell;

use parking_lot::Mutex;

use super::LARGEST_READ;
use super::read::SMALL;

/// How many large buffers are kept when nobody uses them. The threads that may wait for a source are many, and what each
/// of them has needed once would add up.
const LARGE: usize = 4;

thread_local! {
    static OWN: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

static KEPT: Kept = Kept(Mutex::new(Vec::new()));

/// Calls `work` with `length` bytes, of which nobody knows what is in them.
pub(super) fn with<R>(length: usize, work: impl FnOnce(&mut [u8]) -> R) -> R {
    if length as u64 <= SMALL {
        return OWN.with_borrow_mut(|own| work(sized(own, length)));
    }
    KEPT.with(length, work)
}

/// Large ones that nobody uses just now.
struct Kept(Mutex<Vec<Vec<u8>>>);

impl Kept {
    fn with<R>(&self, length: usize, work: impl FnOnce(&mut [u8]) -> R) -> R {
        let mut large = self.0.lock().pop().unwrap_or_default();
        let result = work(sized(&mut large, length));
        let mut kept = self.0.lock();
        if kept.len() < LARGE && large.len() as u64 <= LARGEST_READ {
            kept.push(large);
        }
        result
    }
}

fn sized(buffer: &mut Vec<u8>, length: usize) -> &mut [u8] {
    if buffer.len() < length {
        buffer.resize(length, 0);
    }
    &mut buffer[..length]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn little_is_kept_of_many_large_ones() {
        let (buffers, at_once) = (Kept(Mutex::default()), std::sync::Barrier::new(2 * LARGE));
        let largest = LARGEST_READ as usize;
        let work = |fill: u8| {
            buffers.with(largest - 1, |buffer| {
                assert_eq!(buffer.len(), largest - 1);
                buffer.fill(fill);
                at_once.wait();
                assert!(buffer.iter().all(|byte| *byte == fill), "two use one");
            });
            buffers.with(largest + 1, |buffer| buffer.fill(fill));
        };
        std::thread::scope(|scope| {
            (1..=2 * LARGE as u8).for_each(|fill| {
                _ = scope.spawn({
                    let work = &work;
                    move || work(fill)
                })
            });
        });
        let kept = buffers.0.lock();
        assert!(kept.len() <= LARGE && kept.iter().all(|large| large.len() <= largest));
    }
}
