//! Open files and directories by the number that the kernel gives back with every operation on them.
//!
//! Numbers are never used twice, not by later workers either: what the kernel asks again about a number that was closed
//! must not meet another file.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::{Mutex, RwLock};
use weightfs::fill::SourceFile;
use weightfs::store::{Held, Opened};

use crate::error::FsError;
use crate::fs::DirectoryEntry;
use crate::nodes::Node;

/// Tables, by the low bits of the number: threads that look up different handles do not meet.
const SHARDS: usize = 64;

/// How the bytes of an open file come to its readers.
#[derive(Debug)]
pub enum Content {
    /// By the daemon: out of the arena as far as they are there. None while the content has not settled.
    Stream(OnceLock<Arc<Opened>>),
    /// By the daemon, always from the source; `cached` where the kernel keeps pages.
    Source { cached: bool },
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
    /// All handles of a directory share one.
    pub file: Arc<OwnedFd>,
    /// Its entries as they were when it was last read from the start.
    pub entries: Mutex<Option<Arc<Vec<DirectoryEntry>>>>,
}

#[derive(Clone, Debug)]
enum Handle {
    File(Arc<OpenFile>),
    Directory(Arc<OpenDirectory>),
}

#[derive(Debug)]
pub struct Handles {
    shards: [RwLock<HashMap<u64, Handle>>; SHARDS],
    count: AtomicUsize,
    next: AtomicU64,
}

impl Handles {
    /// `first` is the first number that is given out.
    pub fn new(first: u64) -> Self {
        let shards = std::array::from_fn(|_| RwLock::default());
        Self { shards, count: AtomicUsize::new(0), next: AtomicU64::new(first) }
    }

    /// A number for a handle to come.
    pub fn number(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    pub fn add_file(&self, number: u64, file: OpenFile) {
        self.add(number, Handle::File(Arc::new(file)));
    }

    pub fn add_directory(&self, number: u64, directory: OpenDirectory) {
        self.add(number, Handle::Directory(Arc::new(directory)));
    }

    fn add(&self, number: u64, handle: Handle) {
        self.shard(number).write().insert(number, handle);
        self.count.fetch_add(1, Ordering::Relaxed);
    }

    pub fn count(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    pub fn file(&self, number: u64) -> Result<Arc<OpenFile>, FsError> {
        match self.shard(number).read().get(&number) {
            Some(Handle::File(file)) => Ok(Arc::clone(file)),
            _ => Err(FsError::BadHandle),
        }
    }

    pub fn directory(&self, number: u64) -> Result<Arc<OpenDirectory>, FsError> {
        match self.shard(number).read().get(&number) {
            Some(Handle::Directory(directory)) => Ok(Arc::clone(directory)),
            _ => Err(FsError::BadHandle),
        }
    }

    /// Takes a handle out of the table. Operations that are under way finish with it.
    pub fn remove(&self, number: u64) {
        if self.shard(number).write().remove(&number).is_some() {
            self.count.fetch_sub(1, Ordering::Relaxed);
        }
    }

    fn shard(&self, number: u64) -> &RwLock<HashMap<u64, Handle>> {
        &self.shards[number as usize % SHARDS]
    }
}
