//! A source file as the engine reads it: directly where that is possible, through the page cache where not.

use std::fs::File;
use std::io::IoSliceMut;
use std::num::NonZeroU64;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use rustix::fs::{Advice, AtFlags, Mode as FileMode, OFlags, StatxFlags};
use rustix::io::{Errno, ReadWriteFlags};

use super::BLOCK;
use super::piece::{Mode, Piece, Route};
use crate::sys::cachestat;

/// `STATX_DIOALIGN` of Linux 6.1.
const DIOALIGN: StatxFlags = StatxFlags::from_bits_retain(0x2000);

/// File systems whose direct reads may be left to io_uring: ext, XFS, Btrfs, F2FS, tmpfs, ZFS, bcachefs.
///
/// Where a direct read comes back short, io_uring reads on by itself, from where the file system has moved the position
/// to. FUSE does not move it (seen with Linux 6.18), and the file's beginning follows where its middle should. Stacked
/// file systems pass such reads on. Elsewhere each read is a `preadv` of a thread, which tells what it gave.
const FOR_RING: [rustix::fs::FsWord; 7] =
    [0xEF53, 0x5846_5342, 0x9123_683E, 0xF2F5_2010, 0x0102_1994, 0x2FC1_2FC1, 0xCA45_1A4E];

/// A source file that is open for filling.
#[derive(Debug)]
pub struct SourceFile {
    buffered: File,
    /// The same file with O_DIRECT, where its filesystem takes that flag. Not there yet where nobody has waited for it.
    direct: OnceLock<Option<Direct>>,
    /// The filesystem took the flag but not the reads.
    direct_refused: AtomicBool,
    /// Requests that a driver has at present.
    in_flight: AtomicUsize,
    #[cfg(test)]
    faults: Option<super::faults::Faults>,
}

#[derive(Debug)]
struct Direct {
    file: Arc<File>,
    /// Its reads may be left to io_uring.
    for_ring: bool,
    /// Offsets and lengths of its reads are multiples of this, in bytes.
    align: u64,
}

impl SourceFile {
    /// Takes a file that was opened for reading, and opens it a second time for direct reads: the very same inode,
    /// whatever its name leads to by now. Where that is not allowed or not supported, reads are buffered.
    pub fn new(file: File) -> Self {
        let source = Self::unasked(file);
        source.open_directly();
        source
    }

    /// As [`SourceFile::new`], without asking the source, which may not answer: reads are buffered until
    /// [`SourceFile::open_directly`] was called.
    pub fn unasked(file: File) -> Self {
        // Readahead beyond a request would leave pages behind that nobody asked for. Advice: it may be ignored.
        let _ = rustix::fs::fadvise(&file, 0, None, Advice::Random);
        Self {
            buffered: file,
            direct: OnceLock::new(),
            direct_refused: AtomicBool::new(false),
            in_flight: AtomicUsize::new(0),
            #[cfg(test)]
            faults: None,
        }
    }

    /// Opens the file for direct reads, if that has not been done. Waits for the source.
    pub fn open_directly(&self) {
        self.direct.get_or_init(|| {
            let again = format!("/proc/self/fd/{}", self.buffered.as_raw_fd());
            // Not O_NONBLOCK: io_uring would then give up on filesystems that it has to wait for.
            let flags = OFlags::RDONLY | OFlags::DIRECT | OFlags::CLOEXEC;
            rustix::fs::open(again, flags, FileMode::empty()).ok().and_then(Direct::of)
        });
    }

    /// As [`SourceFile::new`], with a descriptor of the same file that was opened with O_DIRECT and without
    /// O_NONBLOCK, or none.
    pub fn with_direct(file: File, direct: Option<OwnedFd>) -> Self {
        let source = Self::unasked(file);
        source.direct.get_or_init(|| direct.and_then(Direct::of));
        source
    }

    /// The file, for reads through the page cache and for its metadata.
    pub fn file(&self) -> &File {
        &self.buffered
    }

    /// Whether reads can bypass the page cache, as far as is known.
    pub fn is_direct(&self) -> bool {
        self.direct().is_some()
    }

    fn direct(&self) -> Option<&Direct> {
        self.direct.get()?.as_ref().filter(|_| !self.direct_refused.load(Ordering::Relaxed))
    }

    pub(crate) fn direct_file(&self) -> Option<&Arc<File>> {
        self.direct().map(|direct| &direct.file)
    }

    /// The file for direct reads by io_uring.
    pub(crate) fn ring_file(&self) -> Option<&Arc<File>> {
        self.direct().filter(|direct| direct.for_ring).map(|direct| &direct.file)
    }

    pub(crate) fn in_flight(&self) -> usize {
        self.in_flight.load(Ordering::Relaxed)
    }

    /// A driver gets a piece.
    pub(crate) fn given(&self) {
        self.in_flight.fetch_add(1, Ordering::Relaxed);
    }

    /// A piece came back.
    pub(crate) fn returned(&self) {
        self.in_flight.fetch_sub(1, Ordering::Relaxed);
    }

    /// A direct read was answered with EINVAL: there will be no others.
    pub(crate) fn refuse_direct(&self) {
        if !self.direct_refused.swap(true, Ordering::Relaxed) {
            tracing::debug!("direct reads are refused, reading through the page cache");
        }
    }

    /// The way that the next attempt at `piece` should take.
    pub(crate) fn mode(&self, piece: &Piece) -> Mode {
        let (offset, len) = (piece.bytes.start, piece.len() as u64);
        if piece.route == Route::Any && cachestat::all_cached(&self.buffered, offset, len) == Some(true) {
            return Mode::Cached;
        }
        let aligned = |direct: &Direct| offset.is_multiple_of(direct.align) && len.is_multiple_of(direct.align);
        let may_be_direct = piece.route != Route::Buffered && self.direct().is_some_and(aligned);
        if may_be_direct { Mode::Direct } else { Mode::Buffered }
    }

    /// One attempt at `piece`, on this thread.
    pub(crate) fn read(&self, piece: &Piece, mode: Mode) -> Result<usize, Errno> {
        let offset = piece.bytes.start;
        let target = &mut [IoSliceMut::new(piece.memory.target(piece.target()))];
        let result = match mode {
            Mode::Cached => rustix::io::preadv2(&self.buffered, target, offset, ReadWriteFlags::NOWAIT),
            Mode::Direct => match self.direct_file() {
                Some(direct) => rustix::io::preadv(direct, target, offset),
                // Refused since the mode was chosen.
                None => Err(Errno::INVAL),
            },
            Mode::Buffered => self.read_and_drop(piece, target),
        };
        self.outcome(piece, result)
    }

    /// Reads through the page cache and leaves it as it was.
    fn read_and_drop(&self, piece: &Piece, target: &mut [IoSliceMut<'_>]) -> Result<usize, Errno> {
        let (offset, len) = (piece.bytes.start, piece.len() as u64);
        let was_cached = cachestat::all_cached(&self.buffered, offset, len) == Some(true);
        let result = rustix::io::preadv(&self.buffered, target, offset);
        if !was_cached {
            // Advice: where it is ignored the pages stay until the kernel needs them.
            let _ = rustix::fs::fadvise(&self.buffered, offset, NonZeroU64::new(len), Advice::DontNeed);
        }
        result
    }

    /// What an attempt at `piece` gave, after the faults that a test has scripted.
    pub(crate) fn outcome(&self, piece: &Piece, result: Result<usize, Errno>) -> Result<usize, Errno> {
        #[cfg(test)]
        if let Some(faults) = &self.faults {
            return faults.apply(piece, result);
        }
        let _ = piece;
        result
    }

    #[cfg(test)]
    pub(crate) fn with_faults(file: File, faults: super::faults::Faults) -> Self {
        Self { faults: Some(faults), ..Self::new(file) }
    }
}

impl Direct {
    /// None where the file's direct reads cannot be aligned to.
    fn of(file: OwnedFd) -> Option<Self> {
        let align = direct_alignment(&file)?;
        let for_ring = rustix::fs::fstatfs(&file).is_ok_and(|statfs| FOR_RING.contains(&statfs.f_type));
        Some(Self { file: Arc::new(File::from(file)), for_ring, align })
    }
}

/// What direct reads must be aligned to: as the kernel says, else a block. None where it says that there are none, or
/// that a block is not enough for memory.
fn direct_alignment(direct: &OwnedFd) -> Option<u64> {
    match rustix::fs::statx(direct, "", AtFlags::EMPTY_PATH, DIOALIGN) {
        Ok(statx) if statx.stx_mask & DIOALIGN.bits() != 0 => {
            let usable = statx.stx_dio_offset_align > 0 && u64::from(statx.stx_dio_mem_align) <= BLOCK;
            usable.then(|| u64::from(statx.stx_dio_offset_align).max(BLOCK))
        }
        _ => Some(BLOCK),
    }
}
