//! Why a file is or is not in RAM, for people.

use std::fmt;
use std::time::Duration;

use super::engine::Residency;
use super::extents::ExtentSet;
use super::types::{EvictReason, Priority};
use crate::ids::FileId;
use crate::units::{ByteSize, EXTENT_SIZE};

/// What the engine knows of one file and would do with it next. Bytes are those of whole extents.
#[derive(Clone, Debug, PartialEq)]
pub struct Explanation {
    pub size: u64,
    pub resident: ExtentSet,
    /// Since when anything of it has been resident.
    pub since: Option<Duration>,
    pub last_use: Option<Duration>,
    pub pinned_bytes: u64,
    pub priority: Priority,
    pub held: bool,
    pub in_use_until: Option<Duration>,
    /// A GPU holds it.
    pub in_vram: bool,
    /// Its nearest place in the queue, 0 for the next.
    pub queued: Option<u64>,
    /// How much of it the policy would keep, resident or not.
    pub kept_bytes: u64,
    /// What of it goes first when room is needed; `None` if nothing of it may go.
    pub next: Option<Next>,
    /// As the user names it, with the rule in force if the policy chooses among several.
    pub policy: String,
    pub budget: u64,
    /// Of all files.
    pub resident_bytes: u64,
    pub pinned_in_all: u64,
}

/// The next of a file to go.
#[derive(Clone, Debug, PartialEq)]
pub struct Next {
    pub extents: ExtentSet,
    pub reason: EvictReason,
    /// What goes before it, of other files.
    pub bytes_before: u64,
}

impl Residency {
    /// `None` for a file that is not known.
    pub fn explain(&mut self, id: FileId, now: Duration) -> Option<Explanation> {
        self.settle();
        let file = self.files.get(&id)?;
        Some(Explanation {
            size: file.size,
            resident: file.resident.clone(),
            since: file.since,
            last_use: file.last_use.map(|last| last.at),
            pinned_bytes: file.pin.as_ref().map_or(0, ExtentSet::count) * EXTENT_SIZE,
            priority: file.priority,
            held: file.held,
            in_use_until: file.in_use_until.filter(|_| file.in_use(now)),
            in_vram: file.in_vram,
            queued: file.queued.first().map(|(place, _)| *place),
            kept_bytes: file.layout.weights(self.policy.kept(id)) * EXTENT_SIZE,
            next: self.next(id, now),
            policy: self.policy.name(),
            budget: self.budget * EXTENT_SIZE,
            resident_bytes: self.resident_bytes(),
            pinned_in_all: self.pinned_bytes(),
        })
    }

    fn next(&self, id: FileId, now: Duration) -> Option<Next> {
        let mut before = 0;
        for key in self.order.iter() {
            let file = &self.files[&key.file];
            let extents = key.part(file, self.policy.kept(key.file));
            if key.file == id {
                let reason = if file.in_use(now) { EvictReason::InUse } else { key.reason(file) };
                return Some(Next { extents, reason, bytes_before: before * EXTENT_SIZE });
            }
            before += extents.count();
        }
        None
    }
}

impl Explanation {
    fn resident_of_it(&self) -> u64 {
        self.resident.count() * EXTENT_SIZE
    }
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let resident = self.resident_of_it();
        match (resident, resident >= self.size) {
            (0, _) => writeln!(f, "absent")?,
            (_, true) => writeln!(f, "resident")?,
            (_, false) => writeln!(f, "partial: {} of {} are resident", ByteSize(resident), ByteSize(self.size))?,
        }
        if self.pinned_bytes > 0 {
            writeln!(f, "{} of it are pinned", ByteSize(self.pinned_bytes.min(self.size)))?;
        }
        if let Some(place) = self.queued {
            writeln!(f, "the queue needs it, {place} files before it")?;
        }
        if self.in_vram {
            writeln!(f, "a GPU holds it")?;
        }
        if self.held {
            writeln!(f, "a client holds it: evicting a part of it would free nothing")?;
        }
        if self.in_use_until.is_some() {
            writeln!(f, "it is marked as in use")?;
        }
        let kept = ByteSize(self.kept_bytes.min(self.size));
        writeln!(f, "policy {} keeps {kept} of it, priority {:?}", self.policy, self.priority)?;
        match &self.next {
            Some(next) => {
                let last = next.extents.runs().last().map_or(0, |run| run.end);
                let size = ByteSize(next.extents.count() * EXTENT_SIZE);
                write!(f, "next to go: {size} of it, from extent {last} down: {}; ", next.reason)?;
                writeln!(f, "{} of other files go before it", ByteSize(next.bytes_before))?;
            }
            None if resident > 0 => writeln!(f, "nothing of it may be evicted")?,
            None => {}
        }
        write!(
            f,
            "budget {}, of which {} are in use and {} pinned",
            ByteSize(self.budget),
            ByteSize(self.resident_bytes),
            ByteSize(self.pinned_in_all)
        )
    }
}
