//! What the residency engine is told and what it answers.

use std::fmt;
use std::ops::Range;

use crate::ids::{ExtentIndex, FileId};
use crate::units::{ByteSize, EXTENT_SIZE};

use super::extents::ExtentSet;

/// What an open file is used for, as far as is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum UseKind {
    /// The weights are loaded: a use.
    Load,
    /// Only names and shapes are looked at: no use.
    HeaderPeek,
    /// Something that reads every file once, such as a hash or a backup: no use.
    Scan,
    /// Not known yet. Displaces nothing, unless the policy keeps the extents already and they are merely missing. It
    /// counts as a use only if it is closed as `Load` or, as the safe guess, still as `Unknown`.
    Unknown,
}

/// What reading a byte again from its source costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
pub struct RefetchCost {
    /// Nanoseconds for each KiB: 137 at 7 GiB/s, about 10,000 for a hard disk.
    pub ns_per_kib: u32,
}

impl RefetchCost {
    /// The cost of a source that delivers this many bytes a second. A source of unknown speed (0) is taken for slow.
    pub fn from_bytes_per_second(rate: u64) -> RefetchCost {
        let ns = 1024 * 1_000_000_000 / rate.max(1);
        RefetchCost { ns_per_kib: ns.clamp(1, 10_000_000) as u32 }
    }

    /// Seconds to read `bytes` again.
    pub fn seconds(self, bytes: u64) -> f64 {
        bytes as f64 / 1024.0 * f64::from(self.ns_per_kib) / 1e9
    }
}

/// How much a file matters to its owner. One class up is worth a source that is sixteen times slower.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    serde::Serialize,
    serde::Deserialize,
    utoipa::ToSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum Priority {
    Low,
    #[default]
    Normal,
    High,
}

/// Extents to give up, and why these.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Victim {
    pub file: FileId,
    pub extents: Range<ExtentIndex>,
    pub reason: EvictReason,
}

impl Victim {
    /// What evicting it frees.
    pub fn bytes(&self) -> u64 {
        u64::from(self.extents.end - self.extents.start) * EXTENT_SIZE
    }
}

/// Why extents are the next to go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EvictReason {
    /// A GPU holds it: nobody reads it from RAM for now.
    InVram,
    /// Never used since it came: a peek, a scan, or a prefetch that nobody needed.
    Unused,
    /// The policy keeps something else in its place.
    NotKept,
    /// The policy would keep it, but the budget holds no more.
    OverBudget,
    /// Queued, but later than what it makes room for.
    QueuedLater,
    /// A client holds it: the memory comes back when the client lets go.
    HeldByClient,
    /// Marked as in use: goes only when nothing else is left.
    InUse,
    /// Pinned: goes only when the machine is about to kill somebody.
    Pinned,
}

/// Why missed extents are kept or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AdmitReason {
    /// All are wanted for good: pinned.
    Pinned,
    /// All are wanted: the queue names the file.
    Queued,
    /// There is free room for all of them.
    FreeRoom,
    /// The policy keeps them, and what it does not keep makes room.
    Kept,
    /// Some or all are bypassed: what is resident is worth at least as much.
    WorthLess,
    /// Bypassed: a header peek or a scan is no use.
    NotAUse,
    /// Some or all are bypassed: what ought to make room is held by clients, in use or pinned.
    NothingToEvict,
}

/// What to do with extents that were missed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// To fill into the arena.
    pub admit: ExtentSet,
    /// To serve without keeping.
    pub bypass: ExtentSet,
    /// To evict first, in this order; enough for all of `admit` together with the free room.
    pub evict: Vec<Victim>,
    pub reason: AdmitReason,
}

/// What of a file a pin covers, or a load will read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Scope {
    Whole,
    /// For instance the extents of the tensors that a pattern names.
    Extents(ExtentSet),
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PinError {
    /// Carries what is pinned already, in bytes, largest first.
    #[error(
        "pinning {} more would exceed the budget of {} of which {} are pinned already: unpin one of {}, or raise --ram",
        ByteSize(*.more), ByteSize(*.budget), ByteSize(*.pinned), List(.by_file)
    )]
    OverBudget { more: u64, budget: u64, pinned: u64, by_file: Vec<(FileId, u64)> },
    #[error("{0} is not known: open it or list its folder first")]
    UnknownFile(FileId),
}

struct List<'a>(&'a [(FileId, u64)]);

impl fmt::Display for List<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return write!(f, "none (nothing is pinned)");
        }
        for (place, (file, bytes)) in self.0.iter().enumerate() {
            write!(f, "{}{file} ({})", if place == 0 { "" } else { ", " }, ByteSize(*bytes))?;
        }
        Ok(())
    }
}

impl fmt::Display for EvictReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            EvictReason::InVram => "a GPU holds it, so that nobody reads it from RAM for now",
            EvictReason::Unused => "not used since it was read in",
            EvictReason::NotKept => "the policy keeps other files in its place",
            EvictReason::OverBudget => "the budget holds no more",
            EvictReason::QueuedLater => "the queue needs it later than the rest",
            EvictReason::HeldByClient => "held by a client, which gives the memory back when it lets go",
            EvictReason::InUse => "marked as in use, and nothing else is left",
            EvictReason::Pinned => "pinned, but the machine is out of memory",
        })
    }
}

impl fmt::Display for AdmitReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            AdmitReason::Pinned => "pinned",
            AdmitReason::Queued => "the queue needs it",
            AdmitReason::FreeRoom => "there is free room",
            AdmitReason::Kept => "the policy keeps it",
            AdmitReason::WorthLess => "not kept: what is resident is worth at least as much",
            AdmitReason::NotAUse => "not kept: a header peek or a scan is no use",
            AdmitReason::NothingToEvict => "not kept: what should make room is held, in use or pinned",
        })
    }
}

impl fmt::Display for UseKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            UseKind::Load => "load",
            UseKind::HeaderPeek => "header peek",
            UseKind::Scan => "scan",
            UseKind::Unknown => "unknown",
        })
    }
}
