//! What kind of storage a source lies on, and how much to ask of it at once.

use std::time::{Duration, Instant};

use rustix::fs::{FsWord, major, minor};

use super::BLOCK;
use super::source::SourceFile;

/// How a device likes to be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Storage {
    /// Flash, or anything else with short seeks: deep queues.
    Fast,
    /// Seeks cost milliseconds: in order, and little at once.
    Rotational,
    /// A server that has its own readahead, and other clients.
    Network,
}

/// How requests are cut and how many are in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limits {
    /// Bytes, a multiple of [`BLOCK`].
    pub request: u64,
    /// A class starts a request only while fewer than this are in flight, of all classes together.
    pub depth: [usize; 3],
}

/// From linux/magic.h: NFS, CIFS, SMB2, SMB, FUSE, 9p, Ceph, AFS.
const NETWORK: [FsWord; 8] =
    [0x6969, 0xFF53_4D42, 0xFE53_4D42, 0x517B, 0x6573_5546, 0x0102_1997, 0x00C3_6400, 0x5346_414F];

/// Hardly any seek of a disk that turns takes less, and flash takes a small part of it unless it is busy.
const SEEK: Duration = Duration::from_millis(1);

impl Limits {
    /// How many requests one source file may have in flight when it wants another for a demand. The rest is for others:
    /// a file that does not answer keeps what it has.
    pub fn share(&self) -> usize {
        let all = self.depth[0];
        all - (all / 4).max(1)
    }
}

impl Storage {
    pub(crate) fn limits(self) -> Limits {
        match self {
            // Eight megabytes in flight keep a device of 10 GB/s busy for a millisecond, which is longer than it takes
            // to answer: prefetch gains nothing from more, and demand would wait behind it.
            Storage::Fast => Limits { request: 2 << 20, depth: [10, 8, 6] },
            Storage::Rotational => Limits { request: 4 << 20, depth: [4, 2, 2] },
            Storage::Network => Limits { request: 1 << 20, depth: [8, 4, 4] },
        }
    }

    /// Finds out by the filesystem's type and, unless the kernel says that the device does not turn, by trying: virtual
    /// disks say that they do whatever they are, and some filesystems hide their devices. Then it reads a few
    /// scattered blocks, which takes some tenths of a second on a real disk, and needs a file of 64 MiB or more.
    pub fn of(source: &SourceFile) -> Storage {
        if rustix::fs::fstatfs(source.file()).is_ok_and(|statfs| NETWORK.contains(&statfs.f_type)) {
            return Storage::Network;
        }
        let Ok(stat) = rustix::fs::fstat(source.file()) else { return Storage::Fast };
        let said = says_rotational(stat.st_dev);
        let seek = if said == Some(false) { None } else { seek_time(source, stat.st_size as u64) };
        Self::local(said, seek)
    }

    /// What was measured counts for more than what the kernel says, and that for more than nothing.
    fn local(says_rotational: Option<bool>, seek: Option<Duration>) -> Storage {
        let turns = seek.map(|seek| seek >= SEEK).or(says_rotational);
        if turns == Some(true) { Storage::Rotational } else { Storage::Fast }
    }
}

/// None where the filesystem is not on one block device. Partitions have no queue of their own: it is their disk's.
fn says_rotational(device: u64) -> Option<bool> {
    let device = format!("/sys/dev/block/{}:{}", major(device), minor(device));
    ["queue/rotational", "../queue/rotational"]
        .iter()
        .find_map(|name| std::fs::read_to_string(format!("{device}/{name}")).ok())
        .map(|text| text.trim() == "1")
}

/// What a direct read of one block somewhere else in the file takes at least in three of four cases: the slower ones
/// may have met other readers. None where there are no direct reads or the file is too small to seek in.
fn seek_time(source: &SourceFile, size: u64) -> Option<Duration> {
    const READS: u64 = 16;
    let step = size / READS / BLOCK * BLOCK;
    if step < 4 << 20 {
        return None;
    }
    let mut block = Block([0; BLOCK as usize]);
    let direct = source.direct_file()?;
    let mut times = Vec::new();
    // Backwards, which no readahead of the device foresees.
    for i in (0..READS).rev() {
        let start = Instant::now();
        rustix::io::pread(direct, &mut block.0[..], i * step).ok()?;
        times.push(start.elapsed());
    }
    times.sort();
    Some(times[times.len() / 4])
}

#[repr(align(4096))]
struct Block([u8; BLOCK as usize]);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_measured_overrules_what_the_kernel_says() {
        let (short, long) = (Some(Duration::from_micros(200)), Some(Duration::from_millis(9)));
        assert_eq!(Storage::local(Some(true), short), Storage::Fast);
        assert_eq!(Storage::local(Some(true), long), Storage::Rotational);
        assert_eq!(Storage::local(Some(true), None), Storage::Rotational);
        assert_eq!(Storage::local(None, long), Storage::Rotational);
        assert_eq!(Storage::local(None, None), Storage::Fast);
        assert_eq!(Storage::local(Some(false), None), Storage::Fast);
    }

    #[test]
    fn bulk_never_fills_the_queue_of_any_storage() {
        for storage in [Storage::Fast, Storage::Rotational, Storage::Network] {
            let Limits { request, depth } = storage.limits();
            assert!(request.is_multiple_of(BLOCK) && request > 0);
            assert!(depth[0] > depth[1] && depth[1] >= depth[2] && depth[2] > 0, "{storage:?}");
            assert!((depth[1]..depth[0]).contains(&storage.limits().share()), "{storage:?}");
        }
    }
}
