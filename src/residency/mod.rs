//! Which bytes stay in RAM.
//!
//! [`Residency`] is told what is opened, read, filled and evicted, and answers what to admit and what to evict, with
//! reasons. It does no I/O and reads no clock: the same calls give the same answers, so that a recorded trace can be
//! replayed under any policy and budget (`trace`).
//!
//! Inside, a [`policy::Policy`] models the cache in coarse [`blocks`] and names what it would keep; the engine lets
//! reality follow as misses come, exact to the extent, and adds what no policy guesses: pins, priorities, marks of
//! use, what clients hold, and the queue of what comes.

mod aged;
mod auto;
pub mod blocks;
mod decide;
mod engine;
mod explain;
pub mod extents;
mod file;
mod glance;
#[cfg(test)]
mod invariants;
mod lirs;
mod lru;
mod mru;
mod order;
pub mod policy;
mod queue;
mod reuse;
mod shelf;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
mod types;

use std::fmt;
use std::str::FromStr;

pub use engine::Residency;
pub use explain::{Explanation, Next};
pub use extents::ExtentSet;
pub use glance::Glance;
pub use queue::Upcoming;
pub use types::{AdmitReason, Decision, EvictReason, PinError, Priority, RefetchCost, Scope, UseKind, Victim};

/// The policies by name: `auto`, `reuse`, `aged:8`, `mru`, `lirs`, `lru`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PolicyKind {
    /// The best of the others, chosen by what each would have hit lately.
    #[default]
    Auto,
    /// What is reused most often for its cost.
    Reuse,
    /// MRU with ageing after this many capacities of traffic.
    Aged(u32),
    Mru,
    Lirs,
    Lru,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is no policy: choose auto, reuse, aged:K (such as aged:8), mru, lirs or lru")]
pub struct UnknownPolicy(String);

impl PolicyKind {
    pub fn build(self) -> Box<dyn policy::Policy> {
        match self {
            PolicyKind::Auto => Box::new(auto::Auto::new()),
            PolicyKind::Aged(k) => Box::new(aged::Aged::new(k)),
            PolicyKind::Mru => Box::new(mru::Mru::new()),
            PolicyKind::Lirs => Box::new(lirs::Lirs::new()),
            PolicyKind::Lru => Box::new(lru::Lru::new()),
            PolicyKind::Reuse => Box::new(reuse::Reuse::new()),
        }
    }
}

impl FromStr for PolicyKind {
    type Err = UnknownPolicy;

    fn from_str(text: &str) -> Result<PolicyKind, UnknownPolicy> {
        let unknown = || UnknownPolicy(text.to_owned());
        Ok(match text {
            "auto" => PolicyKind::Auto,
            "reuse" => PolicyKind::Reuse,
            "mru" => PolicyKind::Mru,
            "lirs" => PolicyKind::Lirs,
            "lru" => PolicyKind::Lru,
            _ => {
                let k = text.strip_prefix("aged:").and_then(|k| k.parse().ok()).filter(|k| *k > 0);
                PolicyKind::Aged(k.ok_or_else(unknown)?)
            }
        })
    }
}

impl fmt::Display for PolicyKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PolicyKind::Auto => f.write_str("auto"),
            PolicyKind::Aged(k) => write!(f, "aged:{k}"),
            PolicyKind::Reuse => f.write_str("reuse"),
            PolicyKind::Mru => f.write_str("mru"),
            PolicyKind::Lirs => f.write_str("lirs"),
            PolicyKind::Lru => f.write_str("lru"),
        }
    }
}
