//! Reading and writing open files.

use std::ops::Range;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rustix::fs::{FallocateFlags, OFlags, SeekFrom};
use rustix::io::Errno;
use weightfs::journal::Tally;
use weightfs::predict::Access;
use weightfs::store::{Held, ReadError, identity_of};

use super::Fs;
use crate::error::FsError;
use crate::handles::{Content, OpenFile};

/// How often an open file whose content has not settled is looked at again, in milliseconds.
const LOOK_AGAIN: u64 = 500;

/// Called once with the bytes of a read.
pub trait Reply: FnOnce(Result<&[u8], ReadError>) + Send + 'static {}
impl<F: FnOnce(Result<&[u8], ReadError>) + Send + 'static> Reply for F {}

impl Fs {
    pub fn read(&self, handle: u64, range: Range<u64>, access: Access, reply: impl Reply) {
        let file = match self.handles.file(handle) {
            Ok(file) => file,
            Err(_) => return reply(Err(ReadError::Source { offset: range.start, errno: Errno::BADF.raw_os_error() })),
        };
        match &file.content {
            Content::Stream(opened) => {
                if opened.get().is_none() {
                    self.look_again(&file);
                }
                match opened.get() {
                    Some(opened) => self.store.read(opened, range, access, reply),
                    None => self.store.read_source(&file.source, file.node.key.device, range, reply),
                }
            }
            // Reads of passthrough files do not come here, unless the kernel has its reasons.
            Content::Passthrough { held, .. } => {
                let bytes = held.bytes(range);
                self.ledger.legacy.add(Tally::ServedFromRam, bytes.len() as u64);
                reply(Ok(bytes));
            }
            Content::Source { .. } => self.store.read_source(&file.source, file.node.key.device, range, reply),
        }
    }

    /// Content that was still changing when it was opened may be kept once it has settled.
    fn look_again(&self, file: &OpenFile) {
        let now = self.started.elapsed().as_millis() as u64;
        let looked = file.looked.load(Ordering::Relaxed);
        if now.saturating_sub(looked) < LOOK_AGAIN || file.node.file.has_writers() {
            return;
        }
        if file.looked.compare_exchange(looked, now, Ordering::Relaxed, Ordering::Relaxed).is_ok()
            && let Content::Stream(opened) = &file.content
            && let Some(found) = self.store.open(&file.source)
        {
            // Another thread may have been as quick: then its find is as good.
            if opened.set(Arc::new(found)).is_ok() {
                opened.wait().begin();
            }
        }
    }

    /// Writes all of `data`. Unless the writer is `privileged` to keep them, the file loses its set-id bits.
    /// One that an earlier worker may have carried out (`resent`) is not appended twice.
    pub fn write(&self, handle: u64, offset: u64, data: &[u8], privileged: bool, resent: bool) -> Result<u32, FsError> {
        let file = self.writable(handle)?;
        if resent && appends(file.source.file()) && has(file.source.file(), offset, data) {
            return Ok(data.len() as u32);
        }
        if !privileged {
            drop_set_id(file.source.file())?;
        }
        let mut written = 0;
        while written < data.len() {
            match file.source.file().write_at(&data[written..], offset + written as u64) {
                Ok(0) => return Err(Errno::IO.into()),
                Ok(length) => written += length,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                // What was written counts; the next write meets the error.
                Err(_) if written > 0 => break,
                Err(error) => return Err(error.into()),
            }
        }
        self.written(&file.node);
        Ok(written as u32)
    }

    pub fn fsync(&self, handle: u64, data_only: bool) -> Result<(), FsError> {
        let file = self.handles.file(handle)?;
        let result =
            if data_only { rustix::fs::fdatasync(file.source.file()) } else { rustix::fs::fsync(file.source.file()) };
        Ok(result?)
    }

    pub fn fallocate(&self, handle: u64, range: Range<u64>, mode: u32) -> Result<(), FsError> {
        let file = self.writable(handle)?;
        let mode = FallocateFlags::from_bits(mode).ok_or(Errno::OPNOTSUPP)?;
        let result = rustix::fs::fallocate(file.source.file(), mode, range.start, range.end - range.start);
        self.written(&file.node);
        Ok(result?)
    }

    /// Where data or a hole begins at or after `offset`.
    pub fn seek(&self, handle: u64, offset: u64, hole: bool) -> Result<u64, FsError> {
        let file = self.handles.file(handle)?;
        if let Content::Passthrough { held, .. } = &file.content
            && !shows_source(&file, held)
        {
            // Nobody knows any more where it had holes.
            let size = held.generation().size;
            return if offset >= size { Err(Errno::NXIO.into()) } else { Ok(if hole { size } else { offset }) };
        }
        let from = if hole { SeekFrom::Hole(offset) } else { SeekFrom::Data(offset) };
        Ok(rustix::fs::seek(file.source.file(), from)?)
    }

    pub fn copy_file_range(
        &self,
        from: u64,
        from_offset: u64,
        to: u64,
        to_offset: u64,
        length: u64,
    ) -> Result<u64, FsError> {
        let source = self.handles.file(from)?;
        let target = self.writable(to)?;
        let (mut from_offset, mut to_offset) = (from_offset, to_offset);
        // The reply has room for a number of 32 bits.
        let length = length.min(1 << 30) as usize;
        let is_right = || match &source.content {
            Content::Passthrough { held, .. } => shows_source(&source, held),
            Content::Stream(_) | Content::Source { .. } => true,
        };
        // The kernel then copies what it reads from the snapshot itself, over what was copied here in vain.
        if !is_right() {
            return Err(Errno::XDEV.into());
        }
        let copied = rustix::fs::copy_file_range(
            source.source.file(),
            Some(&mut from_offset),
            target.source.file(),
            Some(&mut to_offset),
            length,
        );
        self.written(&target.node);
        let copied = copied?;
        if is_right() { Ok(copied as u64) } else { Err(Errno::XDEV.into()) }
    }

    /// A file whose content is about to change: nothing that was kept of it is given to anyone from here on.
    fn writable(&self, handle: u64) -> Result<Arc<OpenFile>, FsError> {
        let file = self.handles.file(handle)?;
        if !file.writable {
            return Err(FsError::BadHandle);
        }
        // While it is open for writing nothing new is kept of it, so once is enough.
        if !file.changed.swap(true, Ordering::AcqRel) {
            self.store.invalidate(file.node.key.device, file.node.key.inode);
        }
        Ok(file)
    }
}

/// Whether the source has the content that a client has open in passthrough.
fn shows_source(file: &OpenFile, held: &Held) -> bool {
    identity_of(file.source.file()).is_ok_and(|now| now == held.generation().identity())
}

fn appends(file: &std::fs::File) -> bool {
    rustix::fs::fcntl_getfl(file).is_ok_and(|flags| flags.contains(OFlags::APPEND))
}

/// Whether `data` is at `offset` of a file, which may be open for writing only.
fn has(file: &std::fs::File, offset: u64, data: &[u8]) -> bool {
    let mut found = vec![0; data.len()];
    crate::source::reopen(file.as_fd(), OFlags::RDONLY)
        .is_ok_and(|file| file.read_exact_at(&mut found, offset).is_ok() && found == data)
}

/// The source would do so itself if the daemon were not root.
fn drop_set_id(file: &std::fs::File) -> Result<(), FsError> {
    let mode = rustix::fs::fstat(file)?.st_mode;
    // A group bit without the right to execute has another meaning: mandatory locks.
    let group = if mode & 0o010 != 0 { 0o2000 } else { 0 };
    let kept = mode & !(0o4000 | group) & 0o7777;
    if kept != mode & 0o7777 {
        rustix::fs::fchmod(file, rustix::fs::Mode::from_raw_mode(kept))?;
    }
    Ok(())
}
