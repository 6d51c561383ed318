//! Pins: what people asked to stay in RAM, remembered by path, also over restarts.
//!
//! A pin names a file, or by wildcards any number of them, and of each the tensors that a pattern names. A thread looks
//! every few seconds at what the paths lead to now: files that have come, and new contents of files, are pinned and read
//! in; what is gone is let go.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use serde::{Deserialize, Serialize};
use weightfs::control::{ControlError, Outcome};
use weightfs::pattern::Pattern;
use weightfs::residency::PinError;
use weightfs::store::{Opened, SMALLEST_MODEL, Store};
use weightfs::units::ByteSize;

use super::places::Places;

/// How often paths are looked at.
const LOOK_EVERY: Duration = Duration::from_secs(2);

/// `path` is absolute, in a mount; its names may have wildcards.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
struct Pin {
    path: PathBuf,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    tensors: Option<Pattern>,
}

/// What is asked of one file: all of it, or tensors by their names.
type Scopes = BTreeSet<Option<Pattern>>;

#[derive(Serialize, Deserialize)]
struct Saved {
    version: u32,
    pins: BTreeSet<Pin>,
}

const VERSION: u32 = 1;

#[derive(Default)]
struct State {
    pins: BTreeSet<Pin>,
    held: BTreeMap<PathBuf, Held>,
    /// Files that the log has said cannot be pinned.
    refused: BTreeSet<PathBuf>,
}

struct Held {
    store: Arc<Store>,
    opened: Opened,
    scopes: Scopes,
}

struct Shared {
    store: Arc<Store>,
    places: Arc<Places>,
    file: PathBuf,
    state: Mutex<State>,
    stopping: Mutex<bool>,
    stopped: Condvar,
}

/// Dropping it lets every pinned file go; what is asked for stays on record.
pub struct Pins {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Pins {
    /// Reads what was pinned before from `file`, and begins to keep it.
    pub fn start(store: Arc<Store>, places: Arc<Places>, file: PathBuf) -> std::io::Result<Self> {
        let state = Mutex::new(State { pins: load(&file), ..State::default() });
        let (stopping, stopped) = (Mutex::new(false), Condvar::new());
        let shared = Arc::new(Shared { store, places, file, state, stopping, stopped });
        let looking = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("pins".to_owned()).spawn(move || looking.run())?;
        Ok(Self { shared, thread: Some(thread) })
    }

    pub fn pin(&self, path: &Path, tensors: Option<&Pattern>) -> Result<Outcome, ControlError> {
        let shared = &self.shared;
        let files = shared.places.matching(path)?;
        if files.is_empty() {
            return Err(no_file(path, "no file has such a name"));
        }
        let mut state = shared.state.lock();
        let pin = Pin { path: path.to_owned(), tensors: tensors.cloned() };
        let is_new = state.pins.insert(pin.clone());
        let pinned = files.iter().try_for_each(|file| {
            let mut scopes = state.held.get(file).map(|held| held.scopes.clone()).unwrap_or_default();
            scopes.insert(pin.tensors.clone());
            shared.hold(&mut state, file, scopes)
        });
        if let Err(error) = pinned {
            if is_new {
                state.pins.remove(&pin);
            }
            shared.look(&mut state);
            return Err(error);
        }
        shared.save(&state)?;
        let bytes = files.iter().filter_map(|file| Some(state.held.get(file)?.bytes())).sum();
        Ok(Outcome { files: files.len() as u64, bytes, left_bytes: 0 })
    }

    pub fn unpin(&self, path: &Path) -> Result<Outcome, ControlError> {
        let shared = &self.shared;
        let mut state = shared.state.lock();
        let pattern = path.to_str().map(Pattern::new);
        let covered = |pin: &Pin| {
            let text = pin.path.as_os_str().as_encoded_bytes();
            pin.path == path || pattern.as_ref().is_some_and(|pattern| pattern.matches(text))
        };
        let before: u64 = state.held.values().map(Held::bytes).sum();
        let files = state.held.len();
        let count = state.pins.len();
        state.pins.retain(|pin| !covered(pin));
        if state.pins.len() == count {
            let wider = state.pins.iter().find(|pin| {
                pin.path.to_str().is_some_and(|text| Pattern::new(text).matches(path.as_os_str().as_encoded_bytes()))
            });
            return Err(match wider {
                Some(pin) => no_file(path, &format!("it is pinned as '{}': unpin that", pin.path.display())),
                None => no_file(path, "it is not pinned"),
            });
        }
        shared.look(&mut state);
        shared.save(&state)?;
        let after: u64 = state.held.values().map(Held::bytes).sum();
        let files = files.saturating_sub(state.held.len()) as u64;
        Ok(Outcome { files, bytes: before.saturating_sub(after), left_bytes: 0 })
    }
}

impl Drop for Pins {
    fn drop(&mut self) {
        *self.shared.stopping.lock() = true;
        self.shared.stopped.notify_one();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread that looks after pins panicked");
        }
        self.shared.state.lock().held.clear();
    }
}

impl Shared {
    fn run(&self) {
        loop {
            self.look(&mut self.state.lock());
            let mut stopping = self.stopping.lock();
            if !*stopping {
                self.stopped.wait_for(&mut stopping, LOOK_EVERY);
            }
            if *stopping {
                return;
            }
        }
    }

    /// Holds what the paths lead to now, and nothing else.
    fn look(&self, state: &mut State) {
        let mut wanted: BTreeMap<PathBuf, Scopes> = BTreeMap::new();
        for pin in &state.pins {
            // A mount that is not there now may come back.
            for file in self.places.matching(&pin.path).unwrap_or_default() {
                wanted.entry(file).or_default().insert(pin.tensors.clone());
            }
        }
        state.held.retain(|file, held| wanted.get(file) == Some(&held.scopes) && held.is_current(&self.places, file));
        state.refused.retain(|file| wanted.contains_key(file));
        for (file, scopes) in wanted {
            match self.hold(state, &file, scopes) {
                Ok(()) => _ = state.refused.remove(&file),
                Err(error) => {
                    if state.refused.insert(file) {
                        tracing::warn!(%error, "a pin cannot be kept");
                    }
                }
            }
        }
    }

    /// Pins `scopes` of a file and begins to read what is missing. A file that is just being written waits.
    fn hold(&self, state: &mut State, file: &Path, scopes: Scopes) -> Result<(), ControlError> {
        if let Some(held) = state.held.get(file)
            && held.scopes == scopes
        {
            self.store.fill_pinned(&held.opened.generation);
            return Ok(());
        }
        let Some(opened) = self.places.open(file)? else {
            let size = self.places.identity(file)?.size;
            let small = "it is smaller than 1 MiB, which is left to the kernel";
            return if size < SMALLEST_MODEL { Err(no_file(file, small)) } else { Ok(()) };
        };
        // The one before may hold the same content: what it has pinned goes with it, so that it goes first.
        state.held.remove(file);
        let held = Held { store: Arc::clone(&self.store), opened, scopes };
        for scope in &held.scopes {
            self.store.pin(&held.opened, scope.as_ref()).map_err(|error| self.refusal(state, file, error))?;
        }
        self.store.fill_pinned(&held.opened.generation);
        state.held.insert(file.to_owned(), held);
        Ok(())
    }

    fn refusal(&self, state: &State, file: &Path, error: PinError) -> ControlError {
        let PinError::OverBudget { more, budget, pinned, by_file } = error else {
            return no_file(file, &error.to_string());
        };
        let name = |id| state.held.iter().find(|(_, held)| held.opened.generation.file_id() == id);
        let list: String = by_file
            .iter()
            .filter_map(|(id, bytes)| Some(format!("\n  {}  {}", ByteSize(*bytes), name(*id)?.0.display())))
            .collect();
        let what = if list.is_empty() { " nothing" } else { &list };
        ControlError::NoRoom(format!(
            "{} cannot be pinned: it takes {} more, and of the {} that may be kept {} are pinned already; unpin \
             something or raise --ram. Pinned are:{what}",
            file.display(),
            ByteSize(more),
            ByteSize(budget),
            ByteSize(pinned),
        ))
    }

    fn save(&self, state: &State) -> Result<(), ControlError> {
        let saved = Saved { version: VERSION, pins: state.pins.clone() };
        let write = || -> std::io::Result<()> {
            let text = serde_json::to_vec_pretty(&saved)?;
            weightfs::private_file::replace(&self.file, &text)
        };
        write().map_err(|error| {
            ControlError::Failed(format!(
                "done, but not for longer than this daemon lives: {} cannot be written: {error}",
                self.file.display()
            ))
        })
    }
}

impl Held {
    fn bytes(&self) -> u64 {
        self.store.pinned_bytes(&self.opened.generation)
    }

    fn is_current(&self, places: &Places, file: &Path) -> bool {
        let generation = &self.opened.generation;
        !generation.is_dead() && places.identity(file).is_ok_and(|identity| identity == generation.identity())
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.store.unpin(&self.opened.generation);
    }
}

fn load(file: &Path) -> BTreeSet<Pin> {
    let text = match std::fs::read(file) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return BTreeSet::new(),
        Err(error) => {
            tracing::warn!(%error, file = %file.display(), "what was pinned cannot be read");
            return BTreeSet::new();
        }
    };
    match serde_json::from_slice(&text) {
        Ok(Saved { version: VERSION, pins }) => pins,
        Ok(Saved { version, .. }) => {
            tracing::warn!(version, file = %file.display(), "what was pinned is in a form of another version");
            BTreeSet::new()
        }
        Err(error) => {
            tracing::warn!(%error, file = %file.display(), "what was pinned is not legible");
            BTreeSet::new()
        }
    }
}

fn no_file(path: &Path, reason: &str) -> ControlError {
    ControlError::NoFile { path: path.to_owned(), reason: reason.to_owned() }
}
