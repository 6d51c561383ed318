//! What the engine knows of one file, without what it would do next: cheap enough for a list of all.

use std::time::Duration;

use super::engine::Residency;
use super::extents::ExtentSet;
use super::types::Priority;
use crate::ids::FileId;
use crate::units::EXTENT_SIZE;

/// Bytes are those of whole extents.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Glance {
    pub pinned_bytes: u64,
    /// What the policy would keep, resident or not.
    pub kept_bytes: u64,
    pub priority: Priority,
    /// Clients hold it.
    pub held: bool,
    /// Somebody has said that it is used.
    pub in_use: bool,
    /// Since when anything of it has been resident.
    pub since: Option<Duration>,
    pub last_use: Option<Duration>,
}

impl Residency {
    /// `None` for a file that is not known.
    pub fn glance(&self, id: FileId, now: Duration) -> Option<Glance> {
        let file = self.files.get(&id)?;
        Some(Glance {
            pinned_bytes: file.pin.as_ref().map_or(0, ExtentSet::count) * EXTENT_SIZE,
            kept_bytes: file.layout.weights(self.policy.kept(id)) * EXTENT_SIZE,
            priority: file.priority,
            held: file.held,
            in_use: file.in_use(now),
            since: file.since,
            last_use: file.last_use.map(|last| last.at),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::residency::{Scope, PolicyKind, RefetchCost, UseKind};

    #[test]
    fn a_glance_agrees_with_an_explanation() {
        let (file, at) = (FileId(1), Duration::from_secs);
        let mut residency = Residency::new(PolicyKind::Auto, 64 * EXTENT_SIZE);
        assert_eq!(residency.glance(file, at(0)), None);
        residency.register(file, 8 * EXTENT_SIZE, RefetchCost { ns_per_kib: 100 });
        residency.pin(file, &Scope::Extents(std::iter::once(0..3).collect())).unwrap();
        residency.opened(file, UseKind::Load);
        residency.filled(file, 0..8, at(1));
        residency.touched(file, std::slice::from_ref(&(0..8)), UseKind::Load, at(2));
        residency.in_use(file, at(10));
        for now in [at(5), at(11)] {
            let (glance, whole) = (residency.glance(file, now).unwrap(), residency.explain(file, now).unwrap());
            assert_eq!(glance.pinned_bytes, whole.pinned_bytes);
            assert_eq!(glance.kept_bytes, whole.kept_bytes);
            assert_eq!((glance.since, glance.last_use), (whole.since, whole.last_use));
            assert_eq!(glance.in_use, whole.in_use_until.is_some());
        }
    }
}
