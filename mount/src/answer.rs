//! Results of operations into FUSE replies.

use std::time::Duration;

use fuser::{Errno, Generation, ReplyAttr, ReplyEmpty, ReplyEntry, ReplyXattr};

use crate::error::FsError;
use crate::translate::attr;

/// The source's own generation numbers are not needed: a node number is not given to another file while the kernel
/// knows it.
pub const GENERATION: Generation = Generation(0);

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
        Ok(entry) => reply.entry_with_ttls(&entry.ttl.attr, &entry.ttl.entry, &attr(&entry.attr), GENERATION),
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
