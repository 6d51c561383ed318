//! Places at which a test may kill the process, to see that the next one goes on from there.
//!
//! In release builds there are none. In debug builds `WEIGHTFS_FAILPOINTS` arms one place per process: the variable is a
//! number N, and the process with the restart count R dies at the place R modulo the number of places, the first to the
//! N-th time that it comes by (more often with every round). The log says where.

/// Every place, in the order in which they are armed.
pub const PLACES: [&str; 20] = [
    "open.parked",
    "takeover.journal",
    "open.noted",
    "fill.submitted",
    "takeover.generation",
    "fill.landed",
    "fill.noted",
    "takeover.handle",
    "evict.noted",
    "evict.punched",
    "takeover.session",
    "rename.begun",
    "rename.carried-out",
    "takeover.resend",
    "rename.done",
    "create.made",
    "unlink.carried-out",
    "lookup.noted",
    "release.noted",
    "bounce.noted",
];

#[cfg(debug_assertions)]
mod armed {
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicU64, Ordering};

    static PLACE: OnceLock<(&'static str, u64)> = OnceLock::new();
    static PASSES: AtomicU64 = AtomicU64::new(0);

    pub fn arm(restarts: u64) {
        let Some(most) = std::env::var("WEIGHTFS_FAILPOINTS").ok().and_then(|text| text.parse::<u64>().ok()) else {
            return;
        };
        let count = super::PLACES.len() as u64;
        let place = super::PLACES[(restarts % count) as usize];
        let pass = 1 + restarts / count % most.max(1);
        tracing::warn!(place, pass, "a failpoint is armed");
        // Armed once a process.
        let _ = PLACE.set((place, pass));
    }

    pub fn pass(place: &str) {
        if let Some((armed, pass)) = PLACE.get()
            && *armed == place
            && PASSES.fetch_add(1, Ordering::Relaxed) + 1 == *pass
        {
            tracing::warn!(place, "dying at a failpoint");
            std::process::abort();
        }
    }
}

/// Chooses the place for a process that replaces `restarts` others.
pub fn arm(restarts: u64) {
    #[cfg(debug_assertions)]
    armed::arm(restarts);
    let _ = restarts;
}

/// The process may die here.
#[inline]
pub fn pass(place: &str) {
    #[cfg(debug_assertions)]
    armed::pass(place);
    let _ = place;
}
