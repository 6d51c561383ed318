//! Who may have one more connection, so that nobody's idle connections keep out others.
//!
//! Root and the daemon's user have places of their own, and so have browsers; every other user has a bounded number of
//! the rest.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::control::rights::Peer;

const MOST_OF_ONE_USER: usize = 16;
const MOST_OF_STRANGERS: usize = 128;
const MOST_OF_MASTERS: usize = 64;
const MOST_OF_BROWSERS: usize = 64;

/// The connections that are open.
#[derive(Debug, Default)]
pub struct Admission {
    daemon_uid: u32,
    open: Mutex<Open>,
}

#[derive(Debug, Default)]
struct Open {
    by_user: HashMap<u32, usize>,
    strangers: usize,
    masters: usize,
    browsers: usize,
    refused: u64,
}

/// One connection's place, which is free again when this is dropped.
#[derive(Debug)]
pub struct Seat {
    admission: Arc<Admission>,
    peer: Peer,
}

impl Admission {
    pub fn new(daemon_uid: u32) -> Arc<Self> {
        Arc::new(Self { daemon_uid, open: Mutex::default() })
    }

    /// Root and the daemon's user.
    pub fn is_master(&self, uid: u32) -> bool {
        uid == 0 || uid == self.daemon_uid
    }

    /// None where there is no room.
    pub fn admit(self: &Arc<Self>, peer: Peer) -> Option<Seat> {
        let mut open = self.open.lock();
        let room = match peer {
            Peer::Web { .. } => open.browsers < MOST_OF_BROWSERS,
            Peer::Local { uid, .. } if self.is_master(uid) => open.masters < MOST_OF_MASTERS,
            Peer::Local { uid, .. } => {
                open.strangers < MOST_OF_STRANGERS
                    && open.by_user.get(&uid).is_none_or(|count| *count < MOST_OF_ONE_USER)
            }
        };
        if !room {
            open.refused += 1;
            return None;
        }
        match peer {
            Peer::Web { .. } => open.browsers += 1,
            Peer::Local { uid, .. } if self.is_master(uid) => open.masters += 1,
            Peer::Local { uid, .. } => {
                open.strangers += 1;
                *open.by_user.entry(uid).or_default() += 1;
            }
        }
        Some(Seat { admission: Arc::clone(self), peer })
    }

    /// How many connections are open, and how many were turned away so far.
    pub fn counts(&self) -> (usize, u64) {
        let open = self.open.lock();
        (open.strangers + open.masters + open.browsers, open.refused)
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut open = self.admission.open.lock();
        match self.peer {
            Peer::Web { .. } => open.browsers -= 1,
            Peer::Local { uid, .. } if self.admission.is_master(uid) => open.masters -= 1,
            Peer::Local { uid, .. } => {
                open.strangers -= 1;
                if let Some(count) = open.by_user.get_mut(&uid) {
                    *count -= 1;
                    if *count == 0 {
                        open.by_user.remove(&uid);
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn local(uid: u32) -> Peer {
        Peer::Local { uid, gid: uid }
    }

    #[test]
    fn strangers_keep_out_neither_masters_nor_each_other() {
        let admission = Admission::new(7);
        let fill = |peer| std::iter::from_fn(|| admission.admit(peer)).collect::<Vec<_>>();
        let of_one = fill(local(1000));
        assert_eq!(of_one.len(), MOST_OF_ONE_USER);
        let others: Vec<_> = (2000..).map_while(|uid| admission.admit(local(uid))).collect();
        assert_eq!(of_one.len() + others.len(), MOST_OF_STRANGERS);
        let (masters, pages) = (fill(local(7)), fill(Peer::Web { token: false }));
        assert_eq!((masters.len(), pages.len()), (MOST_OF_MASTERS, MOST_OF_BROWSERS));
        assert!(admission.admit(local(0)).is_none());
        assert_eq!(admission.counts(), (MOST_OF_STRANGERS + MOST_OF_MASTERS + MOST_OF_BROWSERS, 5));
        drop((of_one, others, masters, pages));
        assert_eq!(admission.counts().0, 0);
        assert!(admission.admit(local(0)).is_some() && admission.open.lock().by_user.is_empty());
    }
}
