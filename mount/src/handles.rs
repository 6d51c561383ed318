//! Open files and directories by the number that the kernel gives back with every operation on them.

use std::fs::File;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use sharded_slab::Slab;
use weightfs::fill::SourceFile;
use weightfs::store::{Held, Opened};

use crate::error::FsError;
use crate::fs::DirectoryEntry;
use crate::nodes::Node;

/// How the bytes of an open file come to its readers.
#[derive(Debug)]
pub enum Content {
    /// By the daemon: out of the arena as far as they are there. None while the content has not settled.
    Stream(OnceLock<Arc<Opened>>),
    /// By the daemon, always from the source.
    Source,
    /// By the kernel, out of the arena, under a resident number. Held so that nothing of it changes.
    Passthrough { held: Held, resident: u64 },
}

#[derive(Debug)]
pub struct OpenFile {
    pub node: Arc<Node>,
    pub source: Arc<SourceFile>,
    pub content: Content,
    pub writable: bool,
    /// Something was written through it.
    pub changed: AtomicBool,
    /// Milliseconds, when it was last looked whether the content has settled.
    pub looked: AtomicU64,
}

#[derive(Debug)]
pub struct OpenDirectory {
    pub node: Arc<Node>,
    pub file: File,
    /// Its entries as they were when it was last read from the start.
    pub entries: Mutex<Arc<Vec<DirectoryEntry>>>,
}

#[derive(Debug)]
enum Handle {
    File(Arc<OpenFile>),
    Directory(Arc<OpenDirectory>),
}

/// Looking a handle up takes no lock.
#[derive(Debug, Default)]
pub struct Handles {
    slab: Slab<Handle>,
    count: AtomicUsize,
}

impl Handles {
    pub fn add_file(&self, file: OpenFile) -> Result<u64, FsError> {
        self.add(Handle::File(Arc::new(file)))
    }

    pub fn add_directory(&self, directory: OpenDirectory) -> Result<u64, FsError> {
        self.add(Handle::Directory(Arc::new(directory)))
    }

    fn add(&self, handle: Handle) -> Result<u64, FsError> {
        let number = self.slab.insert(handle).ok_or(rustix::io::Errno::NFILE)?;
        self.count.fetch_add(1, Ordering::Relaxed);
        Ok(number as u64)
    }

    pub fn count(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    pub fn file(&self, number: u64) -> Result<Arc<OpenFile>, FsError> {
        match self.slab.get(number as usize).as_deref() {
            Some(Handle::File(file)) => Ok(Arc::clone(file)),
            _ => Err(FsError::BadHandle),
        }
    }

    pub fn directory(&self, number: u64) -> Result<Arc<OpenDirectory>, FsError> {
        match self.slab.get(number as usize).as_deref() {
            Some(Handle::Directory(directory)) => Ok(Arc::clone(directory)),
            _ => Err(FsError::BadHandle),
        }
    }

    /// Takes a handle out of the table. Operations that are under way finish with it.
    pub fn remove(&self, number: u64) {
        if self.slab.remove(number as usize) {
            self.count.fetch_sub(1, Ordering::Relaxed);
        }
    }
}
