//! Results of operations into FUSE replies.

use std::time::Duration;

use fuser::{
    Errno, FileHandle, FopenFlags, Generation, INodeNo, ReplyAttr, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry,
    ReplyOpen, ReplyXattr,
};

use crate::backing::Backings;
use crate::error::FsError;
use crate::fs::{DirectoryEntry, Fs, OpenMode, OpenReply};
use crate::notice::expire_attributes;
use crate::translate::attr;

/// The table's answer, spoken of in the log where somebody should know.
pub fn errno(error: &FsError) -> Errno {
    if error.is_noteworthy() {
        tracing::warn!(%error, "an operation failed");
    }
    Errno::from_i32(error.errno())
}

pub fn reply_empty(reply: ReplyEmpty, result: Result<(), FsError>) {
    match result {
        Ok(()) => reply.ok(),
        Err(error) => reply.error(errno(&error)),
    }
}

pub fn reply_entry(reply: ReplyEntry, result: Result<crate::attr::Entry, FsError>) {
    match result {
        Ok(entry) => {
            let generation = Generation(entry.generation.into());
            reply.entry_with_ttls(&entry.ttl.attr, &entry.ttl.entry, &attr(&entry.attr), generation);
        }
        Err(error) => reply.error(errno(&error)),
    }
}

pub fn reply_attr(reply: ReplyAttr, result: Result<(crate::attr::Attr, Duration), FsError>) {
    match result {
        Ok((found, ttl)) => reply.attr(&ttl, &attr(&found)),
        Err(error) => reply.error(errno(&error)),
    }
}

pub fn reply_xattr(reply: ReplyXattr, size: u32, result: Result<Vec<u8>, FsError>) {
    match result {
        Ok(value) if size == 0 => reply.size(value.len() as u32),
        Ok(value) if value.len() > size as usize => reply.error(Errno::ERANGE),
        Ok(value) => reply.data(&value),
        Err(error) => reply.error(errno(&error)),
    }
}

/// `unique` is the number of the request that `reply` answers, and `node` what it opens. `direct_maps`: files that are
/// answered by the daemon alone can be mapped shared.
pub fn reply_open(
    reply: ReplyOpen,
    unique: u64,
    node: u64,
    result: Result<OpenReply, FsError>,
    fs: &Fs,
    backings: &Backings,
    direct_maps: bool,
) {
    // Those of resident numbers are never kept.
    if matches!(&result, Ok(OpenReply { mode: OpenMode::Direct | OpenMode::Cached, .. })) {
        expire_attributes(backings.device(), node);
    }
    match result {
        Ok(OpenReply { handle, mode: OpenMode::Passthrough { resident, generation } }) => {
            let arena = generation.arena().expect("a held generation has an arena file");
            match backings.of(resident, handle, arena.as_file()) {
                Ok(backing) => {
                    backings.answer(unique, handle, backing);
                    // It was answered. Dropped, it would be answered again, with an error.
                    std::mem::forget(reply);
                }
                Err(error) => {
                    // The bytes are in RAM all the same: the daemon hands them out.
                    tracing::warn!(%error, "passthrough does not work here; files are streamed instead");
                    fs.set_passthrough(false);
                    reply.opened(FileHandle(handle), FopenFlags::FOPEN_DIRECT_IO);
                }
            }
        }
        Ok(OpenReply { handle, mode: OpenMode::Kept }) => {
            reply.opened(FileHandle(handle), FopenFlags::FOPEN_KEEP_CACHE);
        }
        Ok(OpenReply { handle, mode: OpenMode::Direct }) if direct_maps => {
            reply.opened(FileHandle(handle), FopenFlags::FOPEN_DIRECT_IO);
        }
        Ok(OpenReply { handle, .. }) => reply.opened(FileHandle(handle), FopenFlags::empty()),
        Err(error) => reply.error(errno(&error)),
    }
}

/// Adds what follows the first `offset` of the `entries` of an open directory, each looked up, as far as it fits.
pub fn add_full_entries(reply: &mut ReplyDirectoryPlus, fs: &Fs, handle: u64, offset: u64, entries: &[DirectoryEntry]) {
    for (next, entry) in (offset + 1..).zip(entries.iter().skip(offset as usize)) {
        let full = match fs.entry_in(handle, entry) {
            Ok(Some(found)) => {
                let ttl = found.ttl.attr.min(found.ttl.entry);
                let generation = Generation(found.generation.into());
                let full = reply.add(INodeNo(found.node), next, &entry.name, &ttl, &attr(&found.attr), generation);
                if full && !entry.is_dots() {
                    fs.forget(found.node, 1);
                }
                full
            }
            Ok(None) => false,
            Err(error) => {
                tracing::debug!(%error, name = ?entry.name, "an entry cannot be looked up");
                false
            }
        };
        if full {
            return;
        }
    }
}
