//! How an open is served: one pure decision, with its reason.

use std::fmt;
use std::time::Duration;

use crate::bounce::Purpose;

/// Everything that the decision depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Situation {
    /// For writing, or to be emptied.
    pub writes: bool,
    /// The kernel opens files of the arena itself.
    pub passthrough: bool,
    /// Or it may keep pages of this number.
    pub keeps: bool,
    /// A name of the file leads elsewhere by now: the kernel may have come by it.
    pub renamed: bool,
    /// The number that is opened belongs to a resident generation.
    pub resident_node: bool,
    /// That generation is what the source has now.
    pub current: bool,
    /// Every byte of the generation is in the arena.
    pub complete: bool,
    /// Somebody has that number open in passthrough.
    pub held: bool,
    /// The content may be kept: it is large enough and has settled.
    pub kept: bool,
    /// Somebody has the file open for writing.
    pub written: bool,
    /// This thread was bounced just before, for this.
    pub bounced: Option<Purpose>,
    /// This open is expected to load the whole file.
    pub expected: bool,
    /// Bytes that are missing in the arena, and whether the policy has room for them.
    pub missing: u64,
    pub room: bool,
    /// Bytes per second of the source.
    pub speed: u64,
    pub open_wait: Duration,
}

/// What is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// By the kernel, out of the arena.
    Passthrough,
    /// By the daemon, out of the arena as far as the bytes are there.
    Stream,
    /// The same, and the kernel keeps the pages that it has of it.
    Keep,
    /// By the daemon, from the source.
    Source,
    /// ESTALE: the kernel looks the name up again and gets the other number.
    Bounce,
    /// Fill what is missing first, then decide again.
    Wait,
}

/// Why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    Writing,
    Resident,
    Mapped,
    HasResidentNode,
    Renamed,
    WrongNode,
    NotKept,
    BeingWritten,
    NoPassthrough,
    CompletableSoon,
    NotComplete,
}

/// Decides how an open is served.
pub fn decide(s: &Situation) -> (Choice, Reason) {
    if s.renamed && s.bounced.is_none() {
        return (Choice::Bounce, Reason::Renamed);
    }
    if s.resident_node {
        return resident_node(s);
    }
    if s.writes {
        return (Choice::Source, Reason::Writing);
    }
    if s.written {
        return (Choice::Source, Reason::BeingWritten);
    }
    if !s.kept {
        return (Choice::Source, Reason::NotKept);
    }
    if !s.passthrough {
        return (Choice::Stream, Reason::NoPassthrough);
    }
    // A thread that was bounced gets what works on this number: it would not be bounced invisibly again.
    if s.complete {
        let choice = if s.bounced.is_some() { Choice::Stream } else { Choice::Bounce };
        return (choice, Reason::HasResidentNode);
    }
    let soon = Duration::from_secs_f64(s.missing as f64 / s.speed.max(1) as f64) < s.open_wait;
    if s.bounced.is_none() && s.expected && s.room && soon {
        return (Choice::Wait, Reason::CompletableSoon);
    }
    (Choice::Stream, Reason::NotComplete)
}

fn resident_node(s: &Situation) -> (Choice, Reason) {
    if s.writes {
        // Passthrough handles of the number exclude every other kind. Only who reopens a descriptor gets here bounced.
        let choice = if s.bounced.is_some() { Choice::Source } else { Choice::Bounce };
        return (choice, Reason::Writing);
    }
    if s.complete && s.passthrough && s.current && !s.written {
        return (Choice::Passthrough, Reason::Resident);
    }
    if s.complete && s.keeps && s.current && !s.written {
        return (Choice::Keep, Reason::Mapped);
    }
    if s.bounced.is_none() {
        return (Choice::Bounce, Reason::WrongNode);
    }
    // Where nobody holds the number, any other way of opening works on it. Where somebody does, only this one: the lookup
    // that gave it was made for this open, and the content was right then. The open is counted as of that moment.
    if s.held && s.complete && s.passthrough {
        return (Choice::Passthrough, Reason::Resident);
    }
    (Choice::Source, Reason::WrongNode)
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Reason::Writing => "opened for writing",
            Reason::Resident => "every byte is in the arena",
            Reason::Mapped => "every byte is in the arena, and its last load was by mapping",
            Reason::HasResidentNode => "the arena has it under another node number",
            Reason::Renamed => "the name may lead to another file by now",
            Reason::WrongNode => "the node number no longer stands for the content",
            Reason::NotKept => "too small, or changed too lately, to be kept",
            Reason::BeingWritten => "somebody is writing to it",
            Reason::NoPassthrough => "passthrough is not available",
            Reason::CompletableSoon => "it can be completed within the open wait",
            Reason::NotComplete => "not every byte is in the arena",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: Situation = Situation {
        writes: false,
        passthrough: true,
        keeps: false,
        renamed: false,
        resident_node: false,
        current: true,
        complete: false,
        held: false,
        kept: true,
        written: false,
        bounced: None,
        expected: true,
        missing: 1 << 30,
        room: true,
        speed: 1 << 30,
        open_wait: Duration::from_secs(2),
    };
    const WHOLE: Situation = Situation { complete: true, missing: 0, ..PLAIN };
    const RESIDENT: Situation = Situation { resident_node: true, ..WHOLE };
    const KEPT: Situation = Situation { passthrough: false, keeps: true, ..RESIDENT };

    #[test]
    fn the_table() {
        use Choice::*;
        let read = Some(Purpose::Read);
        let write = Some(Purpose::Write);
        let table = [
            (PLAIN, Wait),
            (Situation { missing: 3 << 30, ..PLAIN }, Stream),
            (Situation { speed: 100 << 20, ..PLAIN }, Stream),
            (Situation { room: false, ..PLAIN }, Stream),
            (Situation { expected: false, ..PLAIN }, Stream),
            (Situation { open_wait: Duration::ZERO, ..PLAIN }, Stream),
            (Situation { bounced: read, ..PLAIN }, Stream),
            (Situation { passthrough: false, ..PLAIN }, Stream),
            (Situation { kept: false, ..PLAIN }, Source),
            (Situation { written: true, ..PLAIN }, Source),
            (Situation { writes: true, ..PLAIN }, Source),
            (WHOLE, Bounce),
            (Situation { bounced: read, ..WHOLE }, Stream),
            (Situation { passthrough: false, ..WHOLE }, Stream),
            (Situation { written: true, ..WHOLE }, Source),
            (Situation { writes: true, ..WHOLE }, Source),
            (Situation { renamed: true, ..PLAIN }, Bounce),
            (Situation { renamed: true, writes: true, ..PLAIN }, Bounce),
            (Situation { renamed: true, bounced: read, kept: false, ..PLAIN }, Source),
            (Situation { renamed: true, ..RESIDENT }, Bounce),
            (RESIDENT, Passthrough),
            (Situation { held: true, ..RESIDENT }, Passthrough),
            (Situation { current: false, ..RESIDENT }, Bounce),
            (Situation { written: true, ..RESIDENT }, Bounce),
            (Situation { complete: false, ..RESIDENT }, Bounce),
            (Situation { current: false, bounced: read, ..RESIDENT }, Source),
            (Situation { current: false, bounced: read, held: true, ..RESIDENT }, Passthrough),
            (Situation { complete: false, bounced: read, ..RESIDENT }, Source),
            (KEPT, Keep),
            (Situation { bounced: read, ..KEPT }, Keep),
            (Situation { keeps: false, ..KEPT }, Bounce),
            (Situation { current: false, ..KEPT }, Bounce),
            (Situation { written: true, ..KEPT }, Bounce),
            (Situation { complete: false, ..KEPT }, Bounce),
            (Situation { current: false, bounced: read, ..KEPT }, Source),
            (Situation { writes: true, ..KEPT }, Bounce),
            (Situation { writes: true, ..RESIDENT }, Bounce),
            (Situation { writes: true, bounced: write, ..RESIDENT }, Source),
            (Situation { writes: true, bounced: write, held: true, ..RESIDENT }, Source),
        ];
        for (situation, choice) in table {
            assert_eq!(decide(&situation).0, choice, "{situation:?}");
        }
    }

    /// Every situation there is: a thread that was bounced is never bounced again.
    #[test]
    fn nobody_is_bounced_twice() {
        for bits in 0..1u32 << 12 {
            let bit = |n: u32| bits >> n & 1 == 1;
            let situation = Situation {
                passthrough: bit(0),
                resident_node: bit(1),
                current: bit(2),
                complete: bit(3),
                held: bit(4),
                kept: bit(5),
                written: bit(6),
                room: bit(7),
                speed: u64::from(bit(8)) << 30,
                renamed: bit(9),
                writes: bit(10),
                keeps: bit(11),
                bounced: Some(Purpose::Read),
                ..PLAIN
            };
            assert_ne!(decide(&situation).0, Choice::Bounce, "{situation:?}");
        }
    }
}
