//! What is remembered of opens: how each of them goes, what that says about it, and the history that outlives a mount.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime};

use parking_lot::Mutex;

use super::Generation;
use crate::ids::SourceIdentity;
use crate::predict::{Access, Expectation, Facts, FileKey, History, LiveOpen, OpenKind, OpenWatch};

/// One open of a generation as it goes.
#[derive(Debug)]
pub struct Course {
    /// Since the epoch.
    opened: Duration,
    watch: OnceLock<OpenWatch>,
}

/// The history, and where it is kept.
#[derive(Debug)]
pub struct Memory {
    history: Mutex<History>,
    file: Option<PathBuf>,
    changed: AtomicBool,
}

impl Course {
    pub fn new() -> Arc<Self> {
        Arc::new(Self { opened: now(), watch: OnceLock::new() })
    }

    /// Takes in one read. What comes before the header of the file is known says nothing yet.
    pub fn touch(&self, generation: &Generation, bytes: Range<u64>, access: Access) {
        if let Some(map) = generation.tensors.get() {
            self.watch.get_or_init(|| OpenWatch::new(map)).touch(map, bytes, access);
        }
    }

    /// What is known of the open so far.
    pub fn facts(&self, size: u64) -> Facts {
        self.watch.get().map_or_else(|| nothing(size), OpenWatch::facts)
    }
}

impl Memory {
    /// Reads what was kept, or begins anew where that cannot be read.
    pub fn open(file: Option<PathBuf>) -> Self {
        let history = file.as_deref().and_then(load).unwrap_or_default();
        Self { history: Mutex::new(history), file, changed: AtomicBool::new(false) }
    }

    /// What to expect of an open, given how it and the other opens of the same content have gone so far.
    pub fn expect(&self, generation: &Generation, course: &Arc<Course>) -> Expectation {
        let others: Vec<LiveOpen> = generation
            .courses()
            .iter()
            .filter(|other| !Arc::ptr_eq(other, course))
            .map(|other| LiveOpen { opened: other.opened, facts: other.facts(generation.size) })
            .collect();
        self.history.lock().expect(&key(generation), &course.facts(generation.size), &others, now())
    }

    /// The order in which the tensors were read last time, as far as that is known.
    pub fn order(&self, generation: &Generation) -> Vec<u32> {
        self.history.lock().order(&key(generation)).map(|order| order.to_vec()).unwrap_or_default()
    }

    /// What the last open of this content came to that did more than look at its header.
    pub fn last_kind(&self, identity: &SourceIdentity) -> Option<OpenKind> {
        self.history.lock().last_kind(&FileKey::new(*identity, b""))
    }

    /// An open has ended: what it was, and whether that counts as a use.
    pub fn ended(&self, generation: &Generation, course: &Course) -> (OpenKind, bool) {
        let kind = course.facts(generation.size).kind();
        let order = course.watch.get().filter(|_| kind.is_load()).map(OpenWatch::order);
        self.changed.store(true, Ordering::Relaxed);
        (kind, self.history.lock().record(key(generation), kind, order, now()))
    }

    /// What a device delivers, in bytes per second.
    pub fn note_speed(&self, device: u64, speed: u64) {
        if self.history.lock().record_speed(device, speed) {
            self.changed.store(true, Ordering::Relaxed);
        }
    }

    /// Bytes per second that a device has delivered, as far as is known.
    pub fn speed(&self, device: u64) -> Option<u64> {
        self.history.lock().speed(device)
    }

    /// Writes the history down if it has changed: the whole of it, beside the old one, which it then replaces.
    pub fn save(&self) {
        let Some(file) = &self.file else { return };
        if !self.changed.swap(false, Ordering::Relaxed) {
            return;
        }
        if let Err(error) = self.write(file) {
            tracing::warn!(%error, file = %file.display(), "what was learned of opens cannot be kept");
        }
    }

    fn write(&self, file: &Path) -> std::io::Result<()> {
        let text = serde_json::to_vec(&*self.history.lock())?;
        crate::private_file::replace(file, &text)
    }
}

fn load(file: &Path) -> Option<History> {
    let text = match std::fs::read(file) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return None,
        Err(error) => {
            tracing::warn!(%error, file = %file.display(), "what was learned of opens cannot be read");
            return None;
        }
    };
    serde_json::from_slice(&text)
        .inspect_err(|error| tracing::warn!(%error, file = %file.display(), "what was learned of opens is not legible"))
        .ok()
}

fn key(generation: &Generation) -> FileKey {
    FileKey::new(generation.identity(), b"")
}

fn now() -> Duration {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()
}

fn nothing(size: u64) -> Facts {
    Facts { data_bytes: size, data_read: 0, data_touched: 0, front_to_back: true, ignores_tensors: true, mapped: None }
}
