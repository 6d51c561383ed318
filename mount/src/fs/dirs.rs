//! Directories: a snapshot of the entries, taken when a directory is read from its start.

use std::ffi::{OsStr, OsString};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

use parking_lot::Mutex;
use rustix::fs::{FileType, OFlags};
use weightfs::journal::HandleKind;

use super::{Caller, Fs};
use crate::attr::{Attr, Entry, SourceKey, Ttl};
use crate::error::FsError;
use crate::handles::OpenDirectory;
use crate::nodes::{Name, Node, ROOT};
use crate::walk_ahead::look_ahead;

/// One entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirectoryEntry {
    pub name: OsString,
    pub kind: FileType,
    /// The number that clients see.
    pub inode: u64,
}

impl DirectoryEntry {
    /// `.` and `..`: never looked up.
    pub fn is_dots(&self) -> bool {
        self.name == "." || self.name == ".."
    }
}

impl Fs {
    /// Opens a directory. Whether the kernel may keep its entries until it is told of a change.
    pub fn opendir(&self, id: u64, caller: &Caller) -> Result<(u64, bool), FsError> {
        let node = self.node(id)?;
        if let Some(handle) = self.opened_before(caller) {
            return Ok((handle, false));
        }
        let (located, _) = self.locate(&node)?;
        if let Some(watcher) = &self.watcher {
            watcher.watch(node.id, located.as_fd());
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        let file = node.opened(|| Ok(crate::source::reopen(located.as_fd(), flags)?.into()))?;
        let watched = self.watcher.as_ref().is_some_and(|watcher| watcher.watches(node.id));
        let closed = Arc::clone(&node);
        let handle = self.handles.number();
        let kind = HandleKind::Directory;
        self.note_open(handle, node.id, caller, kind, 0, file.as_fd()).inspect_err(|_| closed.closed())?;
        self.handles.add_directory(handle, OpenDirectory { node, file, entries: Mutex::default() });
        Ok((handle, watched))
    }

    pub fn releasedir(&self, handle: u64) {
        if let Ok(directory) = self.handles.directory(handle) {
            directory.node.closed();
            self.handles.remove(handle);
            self.note_close(handle);
        }
    }

    /// The entries, as they are when asked for from the start, and the same ones later.
    pub fn entries(self: &Arc<Self>, handle: u64, from_start: bool) -> Result<Arc<Vec<DirectoryEntry>>, FsError> {
        let directory = self.handles.directory(handle)?;
        let mut known = directory.entries.lock();
        if let Some(known) = known.as_ref().filter(|_| !from_start) {
            return Ok(Arc::clone(known));
        }
        let read = Arc::new(self.read_entries(&directory)?);
        *known = Some(Arc::clone(&read));
        self.walk_on(&directory.node, &read);
        Ok(read)
    }

    /// A directory was listed: those that are likely to be next are read ahead.
    fn walk_on(self: &Arc<Self>, directory: &Node, entries: &[DirectoryEntry]) {
        let names = entries.iter().filter(|entry| entry.kind == FileType::Directory && !entry.is_dots());
        self.walk_ahead.listed(directory.id, names.map(|entry| entry.name.clone()).collect());
        let Some(Name { parent, name }) = directory.names().pop() else { return };
        for next in self.walk_ahead.read(parent, &name) {
            self.run_aside(parent, move |fs| {
                let Some(_place) = fs.walk_ahead.begin() else { return };
                let result = fs.directory(parent).map(|parent| look_ahead(parent.as_fd(), &next));
                tracing::trace!(parent, name = ?next, ?result, "read ahead of a walk");
            });
        }
    }

    fn read_entries(&self, directory: &OpenDirectory) -> Result<Vec<DirectoryEntry>, FsError> {
        let mut stream = rustix::fs::Dir::read_from(&directory.file)?;
        stream.rewind();
        let device = directory.node.key.device;
        let mut entries = Vec::new();
        for entry in stream {
            let entry = entry?;
            let name = OsStr::from_bytes(entry.file_name().to_bytes());
            let inode = match name.as_bytes() {
                b"." => directory.node.id,
                // The number matters to nobody; what lies above the root is nobody's business.
                b".." => ROOT,
                _ => self.nodes.id_of(SourceKey { device, inode: entry.ino() }),
            };
            entries.push(DirectoryEntry { name: name.to_owned(), kind: entry.file_type(), inode });
        }
        Ok(entries)
    }

    /// What is known of an entry of an open directory, counted as a lookup unless it is `.` or `..`; None where it has
    /// gone meanwhile. Never under a resident number: the reply that carries it has one number for entry and node.
    pub fn entry_in(&self, handle: u64, entry: &DirectoryEntry) -> Result<Option<Entry>, FsError> {
        let directory = self.handles.directory(handle)?;
        if entry.is_dots() {
            let stat = rustix::fs::fstat(&directory.file)?;
            let attr = Attr::of(&stat, entry.inode);
            return Ok(Some(Entry { node: entry.inode, generation: 0, attr, ttl: Ttl::NONE }));
        }
        match self.plain_entry(&directory.node, directory.file.as_fd(), &entry.name) {
            Ok(entry) => Ok(Some(entry)),
            Err(FsError::Source(rustix::io::Errno::NOENT)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    pub fn fsyncdir(&self, handle: u64) -> Result<(), FsError> {
        Ok(rustix::fs::fsync(&self.handles.directory(handle)?.file)?)
    }
}
