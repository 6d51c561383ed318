//! Results of operations into FUSE replies.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use fuser::{
    BackingId, Errno, FileHandle, FopenFlags, Generation, INodeNo, ReplyAttr, ReplyDirectoryPlus, ReplyEmpty,
    ReplyEntry, ReplyOpen, ReplyXattr,
};
use parking_lot::Mutex;

use crate::error::FsError;
use crate::fs::{DirectoryEntry, Fs, OpenMode, OpenReply};
use crate::translate::attr;

/// The kernel's reference to the arena file behind each resident number, and how many handles use it.
pub type Backing = HashMap<u64, (Arc<BackingId>, u32)>;

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

/// `direct_maps`: files that are answered by the daemon alone can be mapped shared.
pub fn reply_open(
    reply: ReplyOpen,
    result: Result<OpenReply, FsError>,
    fs: &Fs,
    backing: &Mutex<Backing>,
    direct_maps: bool,
) {
    match result {
        Ok(OpenReply { handle, mode: OpenMode::Passthrough { resident, generation } }) => {
            let mut backing = backing.lock();
            let known = backing.get(&resident).map(|(id, _)| Ok(Arc::clone(id)));
            let arena = generation.arena().expect("a held generation has an arena file");
            match known.unwrap_or_else(|| reply.open_backing(arena.as_file()).map(Arc::new)) {
                Ok(id) => {
                    backing.entry(resident).or_insert_with(|| (Arc::clone(&id), 0)).1 += 1;
                    drop(backing);
                    reply.opened_passthrough(FileHandle(handle), FopenFlags::empty(), &id);
                }
                Err(error) => {
                    // The bytes are in RAM all the same: the daemon hands them out.
                    tracing::warn!(%error, "passthrough does not work here; files are streamed instead");
                    fs.set_passthrough(false);
                    reply.opened(FileHandle(handle), FopenFlags::FOPEN_DIRECT_IO);
                }
            }
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
