//! What a trace consists of.

use std::ops::Range;

use crate::ids::{ExtentIndex, FileId};
use crate::residency::{AdmitReason, EvictReason, RefetchCost, UseKind};

/// One thing that happened, with the milliseconds since the trace began.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    pub at_ms: u64,
    pub what: What,
}

/// `open` numbers tell apart opens that overlap; one may be used again after its close.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum What {
    /// A file became known, or its cost changed. Comes before anything else about it.
    File {
        file: FileId,
        size: u64,
        cost: RefetchCost,
    },
    /// With the kind of use that was known or expected at the time.
    Open {
        open: u32,
        file: FileId,
        kind: UseKind,
    },
    /// A run of extents was read, hit or missed.
    Read {
        open: u32,
        extents: Range<ExtentIndex>,
    },
    /// With the kind of use that it turned out to be.
    Close {
        open: u32,
        kind: UseKind,
    },
    /// Missed extents were kept (`reason` says why) or bypassed.
    Decided {
        file: FileId,
        extents: Range<ExtentIndex>,
        admitted: bool,
        reason: AdmitReason,
    },
    Evicted {
        file: FileId,
        extents: Range<ExtentIndex>,
        reason: EvictReason,
    },
    /// A run of extents was in RAM when the trace began.
    Resident {
        file: FileId,
        extents: Range<ExtentIndex>,
    },
    /// A GPU holds all of a file from now on, or no longer.
    InVram {
        file: FileId,
        held: bool,
    },
    /// The budget became this many bytes.
    Budget {
        bytes: u64,
    },
}
