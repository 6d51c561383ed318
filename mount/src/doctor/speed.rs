//! How fast a file comes from its device: measured by reading a part of it as the fill engine would.

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{Advice, MemfdFlags, Mode, OFlags};
use rustix::io::Errno;
use weightfs::fill::Storage;
use weightfs::sys::cachestat;
use weightfs::sys::mapping::Mapping;
use weightfs::units::EXTENT_SIZE;

/// Less than this says nothing about a device.
const ENOUGH: u64 = 16 << 20;

/// Alignment and size of a direct read that any device takes.
const BLOCK: usize = 4096;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Speed {
    pub bytes_per_second: u64,
    pub bytes: u64,
}

#[derive(Debug, thiserror::Error)]
pub enum SpeedError {
    #[error("the page cache has the file, and direct reads are not possible")]
    Cached,
    #[error("it cannot be read: {0}")]
    Read(#[from] Errno),
}

/// The same file, opened for direct reads, if they work.
pub fn direct(file: &File) -> Result<File, Errno> {
    let again = format!("/proc/self/fd/{}", file.as_raw_fd());
    let direct = rustix::fs::open(again, OFlags::RDONLY | OFlags::DIRECT | OFlags::CLOEXEC, Mode::empty())?;
    let block = buffer(BLOCK)?;
    rustix::io::pread(&direct, block.target(0..BLOCK), 0)?;
    Ok(direct.into())
}

/// Reads at a time, each of an extent: about as many as the fill engine has on the way.
pub fn readers(storage: Storage) -> usize {
    match storage {
        Storage::Fast => 8,
        Storage::Network => 4,
        Storage::Rotational => 1,
    }
}

/// Reads `file` from its beginning for at most `time` with so many readers, directly where `direct` is given. What the
/// page cache has is left out otherwise, and nothing is left behind in it.
pub fn measure(
    file: &File,
    direct: Option<&File>,
    size: u64,
    readers: usize,
    time: Duration,
) -> Result<Speed, SpeedError> {
    let next = AtomicU64::new(0);
    let start = Instant::now();
    let read: Result<u64, Errno> = thread::scope(|scope| {
        let readers = (0..readers).map(|_| scope.spawn(|| read_some(file, direct, size, &next, start + time)));
        let readers: Vec<_> = readers.collect();
        readers.into_iter().try_fold(0, |sum, reader| Ok(sum + reader.join().map_err(|_| Errno::IO)??))
    });
    let bytes = read?;
    if bytes < ENOUGH {
        return Err(SpeedError::Cached);
    }
    Ok(Speed { bytes_per_second: (bytes as f64 / start.elapsed().as_secs_f64()) as u64, bytes })
}

/// Whether a file of this size says anything.
pub fn is_enough(size: u64) -> bool {
    size >= 2 * ENOUGH
}

/// Bytes that came from the device.
fn read_some(file: &File, direct: Option<&File>, size: u64, next: &AtomicU64, end: Instant) -> Result<u64, Errno> {
    let memory = buffer(EXTENT_SIZE as usize)?;
    let mut read = 0;
    while Instant::now() < end {
        let offset = next.fetch_add(EXTENT_SIZE, Ordering::Relaxed);
        // Whole extents: the tail of a file is no measure.
        if offset + EXTENT_SIZE > size {
            break;
        }
        let target = memory.target(0..EXTENT_SIZE as usize);
        let count = match direct {
            Some(direct) => rustix::io::pread(direct, target, offset)?,
            None if cachestat::all_cached(file, offset, EXTENT_SIZE) == Some(true) => 0,
            None => {
                let count = rustix::io::pread(file, target, offset)?;
                let _ = rustix::fs::fadvise(file, offset, std::num::NonZeroU64::new(EXTENT_SIZE), Advice::DontNeed);
                count
            }
        };
        read += count as u64;
    }
    Ok(read)
}

fn buffer(len: usize) -> Result<Mapping, Errno> {
    let memory = File::from(rustix::fs::memfd_create("weightfs-doctor", MemfdFlags::CLOEXEC)?);
    rustix::fs::ftruncate(memory.as_fd(), len as u64)?;
    Mapping::shared(&memory, len).map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::NOMEM))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_read_is_counted() {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(32 << 20).unwrap();
        std::os::unix::fs::FileExt::write_all_at(file.as_file(), &[1; 4096], 5 << 20).unwrap();
        file.as_file().sync_all().unwrap();
        assert!(is_enough(32 << 20) && !is_enough(31 << 20));
        let opened = File::open(file.path()).unwrap();
        let direct = direct(&opened).ok();
        if direct.is_none() {
            eprintln!("SKIPPED: no direct reads in {}", std::env::temp_dir().display());
            return;
        }
        let speed =
            measure(&opened, direct.as_ref(), 32 << 20, readers(Storage::Fast), Duration::from_secs(60)).unwrap();
        assert_eq!(speed.bytes, 32 << 20);
        assert!(speed.bytes_per_second > 0);
        let nothing = measure(&opened, direct.as_ref(), 32 << 20, 1, Duration::ZERO);
        assert!(matches!(nothing, Err(SpeedError::Cached)));
    }
}
