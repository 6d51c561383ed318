//! One operation as data: what is done, and what it gives.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use rustix::fs::{CWD, FallocateFlags, RenameFlags, SeekFrom, fallocate, renameat_with, seek};
use rustix::io::Errno;
use weightfs_tests::compare::outcome;
use weightfs_tests::data::{self, EDGE_SIZES, Random};
use weightfs_tests::maps::{Map, MapKind};

/// The names that steps use: model files of each format, and something that is none.
pub const NAMES: [&str; 8] =
    ["a.safetensors", "b.safetensors", "c.gguf", "d.ckpt", "e.sft", "sub/f.safetensors", "sub/g.bin", "notes.json"];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    Read,
    ReadWrite,
    Append,
    Create,
    CreateNew,
}

/// What happens to one open file.
#[derive(Clone, Debug)]
pub enum OnFile {
    Read { offset: u64, len: usize },
    Write { offset: u64, len: usize, seed: u64 },
    Append { len: usize, seed: u64 },
    SetLen { len: u64 },
    Punch { offset: u64, len: u64 },
    Allocate { offset: u64, len: u64 },
    Data { offset: u64 },
    Map { kind: MapKind },
    Sync,
}

/// What happens to names.
#[derive(Clone, Debug)]
pub enum OnName {
    ReadWhole {
        name: &'static str,
    },
    MapWhole {
        name: &'static str,
        kind: MapKind,
    },
    /// Written to a temporary name and renamed over, as savers do.
    Replace {
        name: &'static str,
        size: u64,
        seed: u64,
    },
    /// The same with a proper safetensors file of about this size.
    Save {
        name: &'static str,
        megabytes: u64,
        seed: u64,
    },
    /// Opened with O_TRUNC and written, as downloaders do.
    Overwrite {
        name: &'static str,
        size: u64,
        seed: u64,
    },
    Truncate {
        name: &'static str,
        len: u64,
    },
    Rename {
        from: &'static str,
        to: &'static str,
        flags: RenameFlags,
    },
    Link {
        from: &'static str,
        to: &'static str,
    },
    Unlink {
        name: &'static str,
    },
    Copy {
        from: &'static str,
        to: &'static str,
    },
}

#[derive(Clone, Debug)]
pub enum Step {
    Open {
        name: &'static str,
        how: How,
    },
    Close {
        slot: usize,
    },
    OnFile {
        slot: usize,
        act: OnFile,
    },
    OnName(OnName),
    /// Done to the source and not through the mount. Only to names that are there.
    Behind(OnName),
    Stat {
        name: &'static str,
    },
    List,
    /// Time passes, and the daemon begins to keep what it reads.
    Settle,
}

/// What a step gave: a number and bytes where it has them.
pub type Given = Result<(u64, Vec<u8>), Errno>;

/// Files grow to about this many bytes.
const LARGE: u64 = 9 << 20;

fn size(random: &mut Random) -> u64 {
    if random.chance(2) { *random.pick(&EDGE_SIZES) } else { random.below(LARGE) }
}

fn offset(random: &mut Random) -> u64 {
    let near = *random.pick(&EDGE_SIZES);
    match random.below(3) {
        0 => near.saturating_sub(random.below(3)),
        1 => near * 2 + random.below(9000),
        _ => random.below(LARGE + (1 << 20)),
    }
}

fn length(random: &mut Random) -> usize {
    match random.below(4) {
        0 => random.below(16) as usize,
        1 => random.below(20_000) as usize,
        2 => size(random) as usize,
        _ => random.below(3 << 20) as usize,
    }
}

fn map_kind(random: &mut Random) -> MapKind {
    *random.pick(&[MapKind::Private, MapKind::Shared])
}

impl Step {
    /// Any step; `slots` open files there are.
    pub fn any(random: &mut Random, slots: usize) -> Step {
        let name = *random.pick(&NAMES);
        match random.below(100) {
            0..15 => Step::Open {
                name,
                how: *random.pick(&[How::Read, How::Read, How::ReadWrite, How::Append, How::Create, How::CreateNew]),
            },
            15..55 if slots > 0 => {
                let slot = random.below(slots as u64) as usize;
                if random.chance(8) { Step::Close { slot } } else { Step::OnFile { slot, act: OnFile::any(random) } }
            }
            55..62 => Step::Behind(match random.below(3) {
                0 => OnName::Overwrite { name, size: size(random), seed: random.number() },
                1 => OnName::Replace { name, size: size(random), seed: random.number() },
                _ => OnName::Save { name, megabytes: 1 + random.below(5), seed: random.number() },
            }),
            62..66 => Step::Stat { name },
            66..68 => Step::List,
            _ => Step::OnName(OnName::any(random, name)),
        }
    }
}

impl OnFile {
    fn any(random: &mut Random) -> OnFile {
        match random.below(12) {
            0..4 => OnFile::Read { offset: offset(random), len: length(random) },
            4..6 => OnFile::Write { offset: offset(random), len: length(random), seed: random.number() },
            6 => OnFile::Append { len: length(random), seed: random.number() },
            7 => OnFile::SetLen { len: size(random) },
            8 => OnFile::Punch { offset: offset(random), len: 1 + random.below(3 << 20) },
            9 => OnFile::Allocate { offset: offset(random), len: 1 + random.below(1 << 20) },
            10 => OnFile::Map { kind: map_kind(random) },
            _ => {
                if random.chance(2) {
                    OnFile::Sync
                } else {
                    OnFile::Data { offset: offset(random) }
                }
            }
        }
    }

    /// Whether it may change what others see.
    pub fn changes(&self) -> bool {
        matches!(
            self,
            OnFile::Write { .. }
                | OnFile::Append { .. }
                | OnFile::SetLen { .. }
                | OnFile::Punch { .. }
                | OnFile::Allocate { .. }
        )
    }

    pub fn apply(&self, file: &File) -> Given {
        let nothing = |()| (0, Vec::new());
        match self {
            OnFile::Read { offset, len } => {
                let mut bytes = vec![0; *len];
                let n = read_full(file, &mut bytes, *offset)?;
                bytes.truncate(n);
                Ok((n as u64, bytes))
            }
            OnFile::Write { offset, len, seed } => {
                outcome(file.write_all_at(&data::bytes(*seed, 0, *len), *offset)).map(nothing)
            }
            OnFile::Append { len, seed } => {
                let mut end = file;
                seek(file, SeekFrom::End(0))?;
                outcome(end.write_all(&data::bytes(*seed, 0, *len))).map(nothing)
            }
            OnFile::SetLen { len } => outcome(file.set_len(*len)).map(nothing),
            OnFile::Punch { offset, len } => {
                fallocate(file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, *offset, *len).map(nothing)
            }
            OnFile::Allocate { offset, len } => fallocate(file, FallocateFlags::empty(), *offset, *len).map(nothing),
            OnFile::Data { offset } => {
                // Where allocated but unwritten space counts as data is the file system's affair, and depends on
                // what was cached. Nothing but zeros before it is not.
                let len = outcome(file.metadata())?.len();
                let end = match seek(file, SeekFrom::Data(*offset)) {
                    Ok(data) => data,
                    Err(Errno::NXIO) => len.max(*offset),
                    Err(error) => return Err(error),
                };
                let mut skipped = vec![0; end.min(len).saturating_sub(*offset) as usize];
                read_full(file, &mut skipped, *offset)?;
                assert!(skipped.iter().all(|byte| *byte == 0), "SEEK_DATA from {offset} skips data before {end}");
                Ok((0, Vec::new()))
            }
            OnFile::Map { kind } => map(file, *kind),
            OnFile::Sync => outcome(file.sync_all()).map(nothing),
        }
    }
}

impl OnName {
    fn any(random: &mut Random, name: &'static str) -> OnName {
        let other = *random.pick(&NAMES);
        match random.below(16) {
            0..4 => OnName::ReadWhole { name },
            4..7 => OnName::MapWhole { name, kind: map_kind(random) },
            7 => OnName::Replace { name, size: size(random), seed: random.number() },
            8..10 => OnName::Save { name, megabytes: 1 + random.below(6), seed: random.number() },
            10 => OnName::Overwrite { name, size: size(random), seed: random.number() },
            11 => OnName::Truncate { name, len: size(random) },
            12 => {
                let flags = [RenameFlags::empty(), RenameFlags::NOREPLACE, RenameFlags::EXCHANGE];
                OnName::Rename { from: name, to: other, flags: *random.pick(&flags) }
            }
            13 => OnName::Link { from: name, to: other },
            14 => OnName::Copy { from: name, to: other },
            _ => OnName::Unlink { name },
        }
    }

    /// The name whose file this changes in place, so that others who have it open may notice.
    pub fn changes_in_place(&self) -> Option<&'static str> {
        match self {
            OnName::Overwrite { name, .. } | OnName::Truncate { name, .. } | OnName::Copy { to: name, .. } => {
                Some(name)
            }
            _ => None,
        }
    }

    pub fn name(&self) -> &'static str {
        match self {
            OnName::ReadWhole { name }
            | OnName::MapWhole { name, .. }
            | OnName::Replace { name, .. }
            | OnName::Save { name, .. }
            | OnName::Overwrite { name, .. }
            | OnName::Truncate { name, .. }
            | OnName::Unlink { name } => name,
            OnName::Rename { from, .. } | OnName::Link { from, .. } | OnName::Copy { from, .. } => from,
        }
    }

    pub fn apply(&self, root: &Path) -> Given {
        let nothing = |()| (0, Vec::new());
        let temporary = root.join(".saving");
        match self {
            OnName::ReadWhole { name } => outcome(fs::read(root.join(name))).map(|bytes| (bytes.len() as u64, bytes)),
            OnName::MapWhole { name, kind } => map(&outcome(File::open(root.join(name)))?, *kind),
            OnName::Replace { name, size, seed } => {
                data::write_file(&temporary, *seed, *size);
                outcome(fs::rename(&temporary, root.join(name))).map(nothing)
            }
            OnName::Save { name, megabytes, seed } => {
                data::write_safetensors(&temporary, *seed, *megabytes);
                outcome(fs::rename(&temporary, root.join(name))).map(nothing)
            }
            OnName::Overwrite { name, size, seed } => {
                outcome(fs::write(root.join(name), data::bytes(*seed, 0, *size as usize))).map(nothing)
            }
            OnName::Truncate { name, len } => {
                outcome(OpenOptions::new().write(true).open(root.join(name)).and_then(|file| file.set_len(*len)))
                    .map(nothing)
            }
            OnName::Rename { from, to, flags } => {
                renameat_with(CWD, root.join(from), CWD, root.join(to), *flags).map(nothing)
            }
            OnName::Link { from, to } => outcome(fs::hard_link(root.join(from), root.join(to))).map(nothing),
            OnName::Unlink { name } => outcome(fs::remove_file(root.join(name))).map(nothing),
            // A copy of a file onto itself would be cut to nothing before it is read.
            OnName::Copy { from, to } if same_file(root, from, to) => Ok((0, Vec::new())),
            OnName::Copy { from, to } => outcome(fs::copy(root.join(from), root.join(to))).map(|n| (n, Vec::new())),
        }
    }
}

fn same_file(root: &Path, a: &str, b: &str) -> bool {
    let inode = |name| fs::metadata(root.join(name)).map(|found| found.ino());
    a == b || inode(a).is_ok_and(|a| inode(b).is_ok_and(|b| a == b))
}

fn map(file: &File, kind: MapKind) -> Given {
    let len = outcome(file.metadata())?.len();
    if len == 0 {
        return Ok((0, Vec::new()));
    }
    outcome(Map::new(file, len as usize, kind)).map(|map| (len, map.to_vec()))
}

/// Reads until the buffer is full or the file ends.
pub fn read_full(file: &File, into: &mut [u8], offset: u64) -> Result<usize, Errno> {
    let mut done = 0;
    while done < into.len() {
        match outcome(file.read_at(&mut into[done..], offset + done as u64))? {
            0 => break,
            n => done += n,
        }
    }
    Ok(done)
}
