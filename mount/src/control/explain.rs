//! Why a file is or is not in RAM.

use std::path::Path;
use std::time::Duration;

use weightfs::control::{ControlError, Explained, NextToGo};
use weightfs::residency::Explanation;
use weightfs::units::EXTENT_SIZE;

use super::Control;
use super::rights::Peer;

impl Control {
    pub fn explain(&self, peer: &Peer, path: &Path) -> Result<Explained, ControlError> {
        self.must_read(peer, path)?;
        let identity = self.places.identity(path)?;
        let generation = self.store.find(&identity);
        let ram = self.store.ram_report();
        let known = generation.as_ref().and_then(|generation| self.store.explain(generation));
        let mut explained = Explained {
            path: path.to_owned(),
            size_bytes: identity.size,
            resident_bytes: generation.map_or(0, |generation| generation.resident_bytes().min(identity.size)),
            pinned_bytes: 0,
            kept_bytes: 0,
            resident_seconds: None,
            unused_seconds: None,
            held: false,
            why: "nothing of it was read since it was last let go".to_owned(),
            next: None,
            policy: self.store.policy(),
            budget_bytes: ram.budget,
            budget_reason: self.budget_reason(&ram),
        };
        if let Some(known) = known {
            fill_in(&mut explained, known, self.store.clock());
        }
        Ok(explained)
    }
}

fn fill_in(explained: &mut Explained, known: Explanation, now: Duration) {
    let ago = |then: Duration| now.saturating_sub(then).as_secs_f64();
    explained.why = why(&known);
    explained.pinned_bytes = known.pinned_bytes;
    explained.kept_bytes = known.kept_bytes;
    explained.resident_seconds = known.since.map(ago);
    explained.unused_seconds = known.last_use.map(ago);
    explained.held = known.held;
    explained.next = known.next.map(|next| NextToGo {
        bytes: next.extents.count() * EXTENT_SIZE,
        reason: next.reason.to_string(),
        bytes_before: next.bytes_before,
    });
}

fn why(known: &Explanation) -> String {
    let whole = known.size.next_multiple_of(EXTENT_SIZE);
    let what = match () {
        () if known.pinned_bytes >= whole => "it is pinned",
        () if known.pinned_bytes > 0 => "a part of it is pinned",
        () if known.queued.is_some() => "the queue needs it",
        () if known.in_use_until.is_some() => "it is marked as in use",
        () if known.kept_bytes >= whole => "the policy keeps it",
        () if known.kept_bytes > 0 => "the policy keeps a part of it: what else it keeps is worth as much",
        () if known.resident.is_empty() => "it was not used enough to take the place of what is resident",
        () => "there was room for it; the policy keeps others before it",
    };
    what.to_owned()
}
