//! Events: what happens, told to whoever listens.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

use parking_lot::Mutex;
use tokio::sync::broadcast::{Receiver, Sender, channel};
use weightfs::control::{Event, EventKind};

/// Events that a slow listener may be behind before it loses some.
const BEHIND: usize = 1024;

/// Where events come together. Telling never waits, and costs nothing where nobody listens.
#[derive(Debug)]
pub struct Hub {
    /// None once it is closed.
    sender: Mutex<Option<Sender<Event>>>,
    told: AtomicU64,
}

impl Default for Hub {
    fn default() -> Self {
        Self { sender: Mutex::new(Some(channel(BEHIND).0)), told: AtomicU64::new(0) }
    }
}

impl Hub {
    /// What is told from now on, until the hub is closed.
    pub fn listen(&self) -> Receiver<Event> {
        self.sender.lock().as_ref().map_or_else(|| channel(1).1, Sender::subscribe)
    }

    /// Nothing more is told: those who listen come to an end.
    pub fn close(&self) {
        *self.sender.lock() = None;
    }

    /// Tells what `event` makes, if anybody listens.
    pub fn tell(&self, event: impl FnOnce() -> Event) {
        // Not held while the event is made: that may look at other things.
        let sender = self.sender.lock().clone();
        if let Some(sender) = sender.filter(|sender| sender.receiver_count() > 0) {
            // The last listener may leave just now.
            let _ = sender.send(event());
            self.told.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// How many listen.
    pub fn listeners(&self) -> usize {
        self.sender.lock().as_ref().map_or(0, Sender::receiver_count)
    }

    /// Events told so far.
    pub fn told(&self) -> u64 {
        self.told.load(Ordering::Relaxed)
    }
}

/// An event that happens now.
pub fn event(kind: EventKind, path: Option<&Path>, bytes: Option<u64>, reason: Option<String>) -> Event {
    Event { kind, at: unix_time(), path: path.map(|path| path.to_string_lossy().into_owned()), bytes, reason }
}

/// Seconds since 1970.
pub fn unix_time() -> f64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::sync::broadcast::error::TryRecvError;

    #[test]
    fn nobody_is_told_nothing_and_the_slow_are_told_what_they_missed() {
        let hub = Hub::default();
        hub.tell(|| panic!("nobody listens"));
        let mut slow = hub.listen();
        for number in 0..BEHIND as u64 + 3 {
            hub.tell(|| event(EventKind::Budget, None, Some(number), None));
        }
        assert!(matches!(slow.try_recv(), Err(TryRecvError::Lagged(3))));
        assert_eq!(slow.try_recv().unwrap().bytes, Some(3));
        assert_eq!((hub.listeners(), hub.told()), (1, BEHIND as u64 + 3));
        hub.close();
        while slow.try_recv().is_ok() {}
        assert_eq!(slow.try_recv().unwrap_err(), TryRecvError::Closed);
        assert_eq!(hub.listen().try_recv().unwrap_err(), TryRecvError::Closed);
    }
}
