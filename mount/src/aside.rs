//! Where operations run that may have to wait for the source.
//!
//! On the thread that took the request, which is fastest, as long as enough others are free to take requests; else on a
//! thread of the lane of its device. A source that does not answer so holds up who asks it, while two threads are always
//! left that wait for nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use weightfs::store::Background;

/// Threads that take requests from one mount.
pub const REQUEST_THREADS: usize = 8;

/// How many of them may be at operations that may wait.
const INLINE: usize = REQUEST_THREADS - 2;

pub struct Aside {
    busy: AtomicUsize,
    background: Background,
    finishing: Arc<AtomicBool>,
}

impl Aside {
    /// # Errors
    /// Where no thread can be started.
    pub fn start() -> std::io::Result<Self> {
        let background = Background::start("aside")?;
        Ok(Self { busy: AtomicUsize::new(0), background, finishing: Arc::default() })
    }

    /// Takes one of the places on the threads that take requests, for as long as the result lives. None where all are
    /// taken.
    pub fn inline(&self) -> Option<Inline<'_>> {
        let inline = Inline(self);
        (self.busy.fetch_add(1, Ordering::AcqRel) < INLINE).then_some(inline)
    }

    /// Before another process goes on: returns when what was given to other threads is done, or takes too long. What
    /// comes later is done by whoever asks, so that no client sees an error.
    pub fn finish(&self) {
        self.finishing.store(true, Ordering::Release);
        self.background.stop();
    }

    /// Runs `operation` on a thread of the lane `device`. At the very end, when there are none any more, it is dropped,
    /// and its reply with it, which is an error to the client.
    pub fn run(&self, device: u64, operation: impl FnOnce() + Send + 'static) {
        let finishing = Arc::clone(&self.finishing);
        self.background.spawn(device, move |runs| {
            if runs || finishing.load(Ordering::Acquire) {
                operation();
            }
        });
    }
}

pub struct Inline<'a>(&'a Aside);

impl Drop for Inline<'_> {
    fn drop(&mut self) {
        self.0.busy.fetch_sub(1, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn some_threads_always_stay_free() {
        let aside = Aside::start().unwrap();
        let taken: Vec<_> = std::iter::from_fn(|| aside.inline()).collect();
        assert_eq!(taken.len(), INLINE);
        assert!(aside.inline().is_none());
        drop(taken);
        assert!(aside.inline().is_some());
    }
}
