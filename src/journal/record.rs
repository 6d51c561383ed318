//! One entry of the journal, and its frame: length, checksum, then the record in postcard's form.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::ids::{ExtentIndex, FileId, GenerationId, SourceIdentity, Timestamp};

/// Bytes before every record: its length and its checksum. A length of zero is the end.
const FRAME: usize = 8;

/// A file of a source: device and inode.
pub type FileKey = (u64, u64);

/// A name in a directory: the directory's node number, and the name.
pub type NameIn<'a> = (u64, &'a [u8]);

/// How the bytes of an open file reach its readers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum HandleKind {
    Directory,
    /// By the daemon, out of the arena as far as they are there; of this generation, once the content had settled.
    Stream(Option<GenerationId>),
    /// By the daemon from the source; `cached` where the kernel keeps pages.
    Source {
        cached: bool,
    },
    /// By the kernel out of the arena, under a resident number.
    Passthrough {
        resident: u64,
        generation: GenerationId,
    },
}

/// What is noted. The order of the variants and of their fields is the form of the journal: whoever changes it raises
/// [`super::VERSION`]. Mounts are counted from zero in the order of the daemon's settings.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Record<'a> {
    /// What the worker answered to the kernel's introduction, and whether passthrough works.
    Mounted {
        mount: u8,
        passthrough: bool,
        reply: &'a [u8],
    },
    /// A node number is known to the kernel. Its lookups are counted in `slot`. `origin` is where a followed link
    /// leads: a directory, and a path beneath it.
    Node {
        mount: u8,
        id: u64,
        key: FileKey,
        kind: u32,
        slot: u32,
        origin: Option<(&'a [u8], &'a [u8])>,
        #[serde(borrow)]
        name: Option<NameIn<'a>>,
    },
    NodeGone {
        mount: u8,
        id: u64,
    },
    /// The latest name of a node.
    Name {
        mount: u8,
        id: u64,
        #[serde(borrow)]
        name: NameIn<'a>,
    },
    NameGone {
        mount: u8,
        id: u64,
        #[serde(borrow)]
        name: NameIn<'a>,
    },
    Resident {
        mount: u8,
        id: u64,
        node: u64,
        generation: GenerationId,
        slot: u32,
    },
    ResidentGone {
        mount: u8,
        id: u64,
    },
    /// The kernel's number for the arena file behind a resident number, or that it was given back.
    Backing {
        mount: u8,
        resident: u64,
        backing: Option<u32>,
    },
    /// Opened in answer to the request `unique`.
    Opened {
        mount: u8,
        handle: u64,
        node: u64,
        unique: u64,
        kind: HandleKind,
        /// The flags of the open that concern the source.
        flags: u32,
    },
    Closed {
        mount: u8,
        handle: u64,
    },
    /// A thread is to look its name up again.
    Bounced {
        mount: u8,
        thread: u32,
        key: FileKey,
        writes: bool,
    },
    Landed {
        mount: u8,
        thread: u32,
    },
    /// A change of names begins in answer to the request `unique`: what the one or two names led to before.
    Begun {
        mount: u8,
        unique: u64,
        before: [Option<FileKey>; 2],
    },
    /// What came of it: zero, or an errno.
    Done {
        mount: u8,
        unique: u64,
        errno: i32,
    },
    Generation {
        id: GenerationId,
        file: FileId,
        identity: SourceIdentity,
    },
    /// The same content under other times.
    Rebound {
        id: GenerationId,
        identity: SourceIdentity,
    },
    /// The source has other content now.
    Ended {
        id: GenerationId,
    },
    GenerationGone {
        id: GenerationId,
    },
    /// The bytes of these extents are there.
    Filled {
        id: GenerationId,
        extents: Range<ExtentIndex>,
    },
    /// The bytes of these extents are about to go.
    Evicted {
        id: GenerationId,
        extents: Range<ExtentIndex>,
    },
    /// When the file of an open handle was made. A number can be given to another file once the last descriptor of this
    /// one is closed; the time cannot.
    Born {
        mount: u8,
        handle: u64,
        at: Timestamp,
    },
}

/// Puts a record, framed, into `buffer`, which it replaces.
pub fn encode(record: &Record<'_>, buffer: &mut Vec<u8>) {
    buffer.clear();
    buffer.extend_from_slice(&[0; FRAME]);
    let taken = std::mem::take(buffer);
    *buffer = postcard::to_extend(record, taken).expect("memory takes every record");
    let length = (buffer.len() - FRAME) as u32;
    let sum = crc32fast::hash(&buffer[FRAME..]);
    buffer[..4].copy_from_slice(&length.to_le_bytes());
    buffer[4..FRAME].copy_from_slice(&sum.to_le_bytes());
}

/// The records of `bytes`, up to the end or the first one that is not whole.
pub fn decode(mut bytes: &[u8]) -> impl Iterator<Item = Record<'_>> {
    std::iter::from_fn(move || {
        let (frame, rest) = bytes.split_at_checked(FRAME)?;
        let word = |at: usize| u32::from_le_bytes(frame[at..at + 4].try_into().expect("four bytes"));
        let length = word(0) as usize;
        if length == 0 {
            return None;
        }
        let (payload, rest) = rest.split_at_checked(length)?;
        if crc32fast::hash(payload) != word(4) {
            return None;
        }
        bytes = rest;
        postcard::from_bytes(payload).ok()
    })
}
