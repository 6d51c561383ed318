//! What reading from a source costs, one figure for each device.
//!
//! Files are worth what it costs to read them again, so all files of a device must be rated alike, also when its speed
//! is seen to be another: else a device that merely has a slow minute has its files push each other out.

use super::opening::ASSUMED_SPEED;
use super::{Generation, Store};
use crate::residency::RefetchCost;

/// The rate of a device changes when its speed is seen to be so many times another. How fast it seems depends on how it
/// is read; between the kinds of storage lie more than this.
const CLEARLY_OTHER: u32 = 4;

impl Store {
    /// What reading a byte of a generation again is taken to cost.
    pub(super) fn cost(&self, generation: &Generation) -> RefetchCost {
        let device = generation.identity().device;
        let assumed = RefetchCost::from_bytes_per_second(ASSUMED_SPEED);
        let rated = *self.costs.lock().entry(device).or_insert(assumed);
        let Some(seen) = self.speed(generation).map(RefetchCost::from_bytes_per_second) else { return rated };
        if !is_clearly_other(rated, seen) {
            return rated;
        }
        tracing::debug!(device, before = rated.ns_per_kib, ns_per_kib = seen.ns_per_kib, "a device is rated anew");
        self.costs.lock().insert(device, seen);
        let current: Vec<_> = self.generations.lock().values().map(|g| (g.identity(), g.file_id())).collect();
        let resting: Vec<_> = self.resting.lock().values().copied().collect();
        let mut residency = self.residency.lock();
        for (identity, file) in current.into_iter().chain(resting) {
            // Not those that the policy does not know, or no longer.
            if identity.device == device && residency.knows(file) {
                residency.register(file, identity.size, seen);
            }
        }
        seen
    }
}

fn is_clearly_other(rated: RefetchCost, seen: RefetchCost) -> bool {
    let (low, high) = (rated.min(seen).ns_per_kib, rated.max(seen).ns_per_kib);
    high / low.max(1) >= CLEARLY_OTHER
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_in_a_slow_minute_is_no_other_device_and_a_hard_disk_is() {
        let cost = RefetchCost::from_bytes_per_second;
        assert!(!is_clearly_other(cost(1 << 30), cost(300 << 20)));
        assert!(!is_clearly_other(cost(1 << 30), cost(3 << 30)));
        assert!(is_clearly_other(cost(1 << 30), cost(150 << 20)));
        assert!(is_clearly_other(cost(1 << 30), cost(7 << 30)));
    }
}
