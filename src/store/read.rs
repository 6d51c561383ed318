//! Reads: out of the arena at once, else when the bytes are there.

use std::fs::File;
use std::io::IoSliceMut;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use rustix::io::{Errno, ReadWriteFlags};

use super::extents::Pinned;
use super::past::is_read_alone;
use super::{Generation, Opened, ReadError, Store, buffers, bypass};
use crate::fill::{Class, SourceFile};
use crate::ids::ExtentIndex;
use crate::journal::Tally;
use crate::predict::Access;
use crate::residency::UseKind;
use crate::units::{EXTENT_SIZE, extent_bytes, extents_of};

/// A read of at most so much that nobody has prepared for is answered by itself before its extents are filled: whoever
/// looks at a little of a file must not wait for all that belongs to it.
pub(super) const SMALL: u64 = 256 << 10;

/// An extent in memory, which stays there while this lives.
pub(super) enum Piece<'a> {
    Arena(#[expect(dead_code, reason = "keeps the extent from being evicted")] Pinned<'a>),
    Slot(bypass::Reading<'a>),
}

impl Piece<'_> {
    /// `part` of the file, which lies in this extent of `generation`.
    pub(super) fn bytes<'a>(&'a self, generation: &'a Generation, part: &Range<u64>) -> &'a [u8] {
        match self {
            Self::Arena(_) => generation.arena().expect("present extents have an arena file").bytes(part.clone()),
            Self::Slot(slot) => slot.bytes((part.start % EXTENT_SIZE) as usize, (part.end - part.start) as usize),
        }
    }

    /// Counts what was handed out.
    pub(super) fn consumed(&self, part: &Range<u64>) {
        if let Self::Slot(slot) = self {
            slot.consumed((part.end - part.start) as usize);
        }
    }
}

impl Store {
    /// Answers with the bytes of `range`, fewer at the end of the file: now, on this thread, if they are in memory;
    /// later, on another, if they have to be read first. The bytes are those of the generation, or where the source
    /// has changed since it was opened, the source's own.
    pub fn read<R>(self: &Arc<Self>, opened: &Arc<Opened>, range: Range<u64>, access: Access, reply: R)
    where
        R: FnOnce(Result<&[u8], ReadError>) + Send + 'static,
    {
        let generation = &opened.generation;
        if !self.is_current(generation) {
            return self.read_source(&generation.source, generation.device(), range, reply);
        }
        let range = range.start.min(generation.size)..range.end.min(generation.size);
        if range.is_empty() {
            return reply(Ok(&[]));
        }
        let kind = opened.reads(&range, access);
        let extents = extents_of(&range);
        if let Some(_pinned) = generation.extents.pin(extents.clone()) {
            let is_new = generation.touched.add(extents);
            self.legacy.add(Tally::ServedFromRam, range.end - range.start);
            let arena = generation.arena().expect("present extents have an arena file");
            reply(Ok(arena.bytes(range.clone())));
            // Once an extent: the window moves on before the reader comes to its end.
            if is_new
                && !generation.extents.is_complete()
                && let Some(kind) = kind
            {
                opened.reconsider();
                self.bring(generation, &range, kind);
            }
            return;
        }
        let Some(kind) = kind else {
            // Only names and shapes so far: a thousand files are looked at like this without loading one.
            return self.read_source(&generation.source, generation.device(), range, reply);
        };
        opened.reconsider();
        self.read_missing(opened, range, kind, reply);
    }

    /// Answers with the source's bytes as they are now. Nothing is kept. `device` is what the source lies on.
    pub fn read_source<R>(self: &Arc<Self>, source: &Arc<SourceFile>, device: u64, range: Range<u64>, reply: R)
    where
        R: FnOnce(Result<&[u8], ReadError>) + Send + 'static,
    {
        tracing::trace!(?range, "reading aside");
        let length = (range.end - range.start) as usize;
        let cached = buffers::with(length, |buffer| {
            let read =
                rustix::io::preadv2(source.file(), &mut [IoSliceMut::new(buffer)], range.start, ReadWriteFlags::NOWAIT);
            // A short answer may be the end of the file, or only the end of what is cached.
            (read == Ok(length)).then(|| buffer.to_vec())
        });
        if let Some(bytes) = cached {
            self.count_aside(bytes.len());
            return reply(Ok(&bytes));
        }
        let (store, source) = (Arc::clone(self), Arc::clone(source));
        self.background.spawn(device, move |runs| match runs {
            true => store.read_source_here(&source, range, reply),
            false => reply(Err(ReadError::Stopped)),
        });
    }

    /// As [`Store::read_source`], on a thread that may wait.
    fn read_source_here<R>(&self, source: &SourceFile, range: Range<u64>, reply: R)
    where
        R: FnOnce(Result<&[u8], ReadError>),
    {
        buffers::with((range.end - range.start) as usize, |buffer| {
            match read_fully(source.file(), buffer, range.start) {
                Ok(length) => {
                    self.count_aside(length);
                    reply(Ok(&buffer[..length]));
                }
                Err(error) => {
                    tracing::warn!(offset = range.start, %error, "a source file cannot be read");
                    reply(Err(error));
                }
            }
        });
    }

    fn read_missing<R>(self: &Arc<Self>, opened: &Arc<Opened>, range: Range<u64>, kind: UseKind, reply: R)
    where
        R: FnOnce(Result<&[u8], ReadError>) + Send + 'static,
    {
        let generation = &opened.generation;
        let extents = extents_of(&range);
        generation.touched.add(extents.clone());
        let is_coming = |mut extents: Range<_>| extents.any(|extent| generation.extents.is_filling(extent));
        let is_small = range.end - range.start <= SMALL;
        if is_small && !is_coming(extents.clone()) && self.pieces(generation, &range).is_none() {
            let (store, looked_at) = (Arc::clone(self), Arc::clone(generation));
            return self.read_source(&generation.source, generation.device(), range.clone(), move |result| {
                reply(result);
                // Not here: whoever waits for what is brought may be answered on this thread, which is at an answer.
                let filling = Arc::clone(&store);
                store.background.spawn(looked_at.device(), move |runs| {
                    if runs {
                        filling.bring(&looked_at, &range, kind);
                    }
                });
            });
        }
        self.bring(generation, &range, kind);
        let (store, waited) = (Arc::clone(self), Arc::clone(generation));
        self.when_settled(generation, extents, Class::Demand, move || store.serve(&waited, range, reply));
    }

    /// Answers out of the arena and the slots, or where an extent is in neither (its fill failed, or it was evicted
    /// again) with the source's bytes.
    fn serve<R>(self: &Arc<Self>, generation: &Arc<Generation>, range: Range<u64>, reply: R)
    where
        R: FnOnce(Result<&[u8], ReadError>) + Send + 'static,
    {
        let from_arena = |pieces: &[Piece<'_>]| pieces.iter().all(|piece| matches!(piece, Piece::Arena(_)));
        let pieces = match self.pieces(generation, &range) {
            // Together in one place.
            Some(pieces) if pieces.len() > 1 && !from_arena(&pieces) && is_read_alone(&range) => None,
            pieces => pieces,
        };
        let Some(pieces) = pieces else {
            if is_read_alone(&range) {
                return self.serve_alone(generation, range, reply);
            }
            return self.read_source(&generation.source, generation.device(), range, reply);
        };
        let length = range.end - range.start;
        let from_arena = from_arena(&pieces);
        self.legacy.add(if from_arena { Tally::ServedFromRam } else { Tally::ServedFromSource }, length);
        let first = extents_of(&range).start;
        match &pieces[..] {
            _ if from_arena => {
                let arena = generation.arena().expect("present extents have an arena file");
                reply(Ok(arena.bytes(range)));
            }
            [Piece::Slot(slot)] => {
                let start = extent_bytes(first, generation.size).start;
                reply(Ok(slot.bytes((range.start - start) as usize, length as usize)));
                slot.consumed(length as usize);
            }
            _ => buffers::with(length as usize, |buffer| {
                for (extent, piece) in (first..).zip(&pieces) {
                    let whole = extent_bytes(extent, generation.size);
                    let part = range.start.max(whole.start)..range.end.min(whole.end);
                    let place = (part.start - range.start) as usize..(part.end - range.start) as usize;
                    buffer[place].copy_from_slice(piece.bytes(generation, &part));
                    piece.consumed(&part);
                }
                reply(Ok(buffer));
            }),
        }
    }

    fn pieces<'a>(&'a self, generation: &'a Generation, range: &Range<u64>) -> Option<Vec<Piece<'a>>> {
        extents_of(range).map(|extent| self.piece(generation, extent)).collect()
    }

    /// An extent, where it is in memory.
    pub(super) fn piece<'a>(&'a self, generation: &'a Generation, extent: ExtentIndex) -> Option<Piece<'a>> {
        match generation.extents.pin(extent..extent + 1) {
            Some(pinned) => Some(Piece::Arena(pinned)),
            None => self.bypass.read(generation.id, extent).map(Piece::Slot),
        }
    }

    fn count_aside(&self, length: usize) {
        self.legacy.add(Tally::ServedFromSource, length as u64);
        self.legacy.add(Tally::ReadAside, length as u64);
    }
}

/// Reads until the buffer is full or the file ends.
///
/// # Errors
/// Also where the source gives no more bytes although it says that the file goes on there.
fn read_fully(file: &File, buffer: &mut [u8], offset: u64) -> Result<usize, ReadError> {
    let mut length = 0;
    let mut ended = false;
    while length < buffer.len() {
        let at = offset + length as u64;
        let failed = |errno: Errno| ReadError::Source { offset: at, errno: errno.raw_os_error() };
        match file.read_at(&mut buffer[length..], at) {
            Ok(0) => {
                let size = rustix::fs::fstat(file).map_err(failed)?.st_size as u64;
                if at >= size {
                    break;
                }
                // It may have grown just now. Twice in a row is an answer that cannot be right.
                if std::mem::replace(&mut ended, true) {
                    return Err(failed(Errno::IO));
                }
            }
            Ok(read) => {
                length += read;
                ended = false;
            }
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(failed(Errno::from_io_error(&error).unwrap_or(Errno::IO))),
        }
    }
    Ok(length)
}
