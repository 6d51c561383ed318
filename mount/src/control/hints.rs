//! What programs say of what comes: from the paths that they name to the files that the store knows.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use weightfs::control::{
    ControlError, HintStatus, Hinted, InUse, InUseHint, PriorityHint, QueueHint, QueueItem, VramHint,
};
use weightfs::ids::SourceIdentity;
use weightfs::residency::Priority;
use weightfs::store::{HintKind, Opened, Part, QueueEntry};

use super::Control;
use super::rights::{Peer, Reader};
use super::standing::Hint;

/// How long a hint is believed where it was not said.
const BELIEVED: Duration = Duration::from_secs(600);
const LONGEST: Duration = Duration::from_secs(24 * 3600);
/// For what holds until it is said otherwise. Times on the store's clock stay far from overflow.
const FOR_GOOD: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// Whose priorities those are that no owner was named for.
const NOBODY: &str = "";

/// Owners that may have a say at a time, and the longest name of one.
const MOST_OWNERS: usize = 256;
const LONGEST_OWNER: usize = 200;
/// As the name of a device.
const LONGEST_DEVICE: usize = 40;

/// Paths in one hint.
const MOST_PATHS: usize = 1000;
/// And in one entry of a queue.
const MOST_OF_ENTRY: usize = 100;

/// Who of the users has which owner's name, and until when: others cannot speak for it.
#[derive(Debug, Default)]
pub struct Owners(Mutex<HashMap<String, (Option<u32>, Instant)>>);

impl Control {
    pub fn hint_in_use(&self, peer: &Peer, hint: &InUseHint) -> Result<InUse, ControlError> {
        let time = time(Some(hint.seconds))?;
        self.speak_for(peer, &hint.owner, time)?;
        let (files, unknown) = self.named(peer, &hint.paths)?;
        let count = files.len() as u64;
        self.store.mark_in_use(&hint.owner, files, time);
        self.standing.keep(Some(peer), Hint::InUse(hint.clone()), time);
        Ok(InUse { id: hint.owner.clone(), expires_seconds: time.as_secs_f64(), files: count, unknown })
    }

    pub fn end_in_use(&self, peer: &Peer, owner: &str) -> Result<(), ControlError> {
        if self.owners.0.lock().get(owner).is_none_or(|(_, until)| *until < Instant::now()) {
            return Err(ControlError::NotFound(format!("there is no mark of '{owner}'")));
        }
        self.speak_for(peer, owner, Duration::ZERO)?;
        self.store.mark_in_use(owner, Vec::new(), Duration::ZERO);
        let ended = InUseHint { paths: Vec::new(), seconds: 0.0, owner: owner.to_owned() };
        self.standing.keep(Some(peer), Hint::InUse(ended), Duration::ZERO);
        Ok(())
    }

    pub fn hint_queue(&self, peer: &Peer, hint: &QueueHint) -> Result<Hinted, ControlError> {
        let time = time(hint.seconds)?;
        self.speak_for(peer, &hint.owner, time)?;
        if hint.entries.len() > MOST_PATHS || hint.entries.iter().any(|entry| is_long(&entry.id, entry.paths.len())) {
            return Err(ControlError::BadRequest(format!(
                "a queue has at most {MOST_PATHS} entries, each with a name of {LONGEST_OWNER} characters and \
                 {MOST_OF_ENTRY} paths"
            )));
        }
        let items: Vec<&QueueItem> = hint.entries.iter().flat_map(|entry| &entry.paths).collect();
        let paths: Vec<PathBuf> = items.iter().map(|item| item.path.clone()).collect();
        bounded(&paths)?;
        let mut done = Hinted { expires_seconds: Some(time.as_secs_f64()), ..Hinted::default() };
        let mut entries = Vec::new();
        let mut seen: HashMap<&Path, Option<Arc<Opened>>> = HashMap::new();
        let reads = self.rights.reader(peer);
        for item in items {
            let opened = seen.entry(&item.path).or_insert_with(|| self.open_for(reads.as_ref(), &item.path));
            let Some(file) = opened.clone() else {
                done.unknown.push(item.path.to_string_lossy().into_owned());
                continue;
            };
            let part = match (&item.tensors, item.component) {
                (None, None) => Part::Whole,
                (Some(tensors), None) => Part::Tensors(tensors.clone()),
                (None, Some(part)) => {
                    Part::Bytes(Self::component_ranges(&self.store.tensor_map(&file.generation), part))
                }
                (Some(_), Some(_)) => {
                    return Err(ControlError::BadRequest("name tensors or a component, not both".to_owned()));
                }
            };
            entries.push(QueueEntry { file, part });
        }
        done.files = entries.len() as u64;
        self.store.hint_queue(&hint.owner, entries, time);
        self.standing.keep(Some(peer), Hint::Queue(hint.clone()), time);
        Ok(done)
    }

    pub fn hint_vram(&self, peer: &Peer, hint: &VramHint) -> Result<Hinted, ControlError> {
        let time = time(hint.seconds)?;
        if hint.device.is_empty() || hint.device.chars().count() > LONGEST_DEVICE {
            return Err(ControlError::BadRequest("name the device, such as cuda:0".to_owned()));
        }
        self.speak_for(peer, &hint.owner, time)?;
        let (files, unknown) = self.named(peer, &hint.paths)?;
        let count = files.len() as u64;
        self.store.hint_vram(&hint.owner, &hint.device, files, time);
        self.standing.keep(Some(peer), Hint::Vram(hint.clone()), time);
        Ok(Hinted { files: count, unknown, expires_seconds: Some(time.as_secs_f64()) })
    }

    pub fn hint_priority(&self, hint: &PriorityHint) -> Result<Hinted, ControlError> {
        let time = hint.seconds.map(|seconds| time(Some(seconds))).transpose()?;
        let owner = hint.owner.as_deref().unwrap_or(NOBODY);
        if owner.chars().count() > LONGEST_OWNER {
            return Err(ControlError::BadRequest("this name of an owner is too long".to_owned()));
        }
        let files = self.prioritise(owner, &hint.path, hint.priority, time.unwrap_or(FOR_GOOD))?;
        self.standing.keep(None, Hint::Priority(hint.clone()), time.unwrap_or(FOR_GOOD));
        Ok(Hinted { files, unknown: Vec::new(), expires_seconds: time.map(|time| time.as_secs_f64()) })
    }

    pub(super) fn set_priority(&self, path: &Path, priority: Priority) -> Result<(), ControlError> {
        let hint = PriorityHint { owner: None, seconds: None, path: path.to_owned(), priority };
        self.hint_priority(&hint).map(drop)
    }

    fn prioritise(&self, owner: &str, path: &Path, priority: Priority, time: Duration) -> Result<u64, ControlError> {
        let files = self.places.files(path)?;
        for file in &files {
            let opened = Arc::new(self.places.open_to_keep(file)?);
            self.store.set_priority(owner, opened, priority, time);
        }
        Ok(files.len() as u64)
    }

    pub(super) fn set_limit(&self, bytes: Option<u64>, seconds: Option<f64>) -> Result<(), ControlError> {
        self.limit_for(bytes, seconds.map_or(Ok(FOR_GOOD), |seconds| time(Some(seconds)))?)
    }

    pub(super) fn limit_for(&self, bytes: Option<u64>, time: Duration) -> Result<(), ControlError> {
        self.store.set_limit(bytes, time).map_err(|error| ControlError::NoRoom(error.to_string()))?;
        self.standing.keep(None, Hint::Limit(bytes), time);
        Ok(())
    }

    /// GPUs that hold all of a file, as programs say.
    pub(super) fn in_vram(&self, identity: &SourceIdentity) -> Vec<String> {
        let hints = self.store.find(identity).map(|generation| self.store.hints_on(&generation)).unwrap_or_default();
        let device = |kind| match kind {
            HintKind::InVram { device } => Some(device),
            _ => None,
        };
        let mut devices: Vec<String> = hints.into_iter().filter_map(|hint| device(hint.what)).collect();
        devices.sort();
        devices.dedup();
        devices
    }

    pub(super) fn hint_status(&self) -> HintStatus {
        let (in_use, queued, in_vram) = self.store.hint_counts();
        HintStatus { in_use: in_use as u64, queued: queued as u64, in_vram: in_vram as u64 }
    }

    /// Whether somebody may speak for an owner: the first one that does has the name, for as long as what he says holds.
    fn speak_for(&self, peer: &Peer, owner: &str, time: Duration) -> Result<(), ControlError> {
        if owner.is_empty() || owner.chars().count() > LONGEST_OWNER {
            return Err(ControlError::BadRequest(format!("an owner's name has 1 to {LONGEST_OWNER} characters")));
        }
        let uid = match peer {
            Peer::Local { uid, .. } => Some(*uid),
            Peer::Web { .. } => {
                self.rights.may_steer(peer, None)?;
                None
            }
        };
        let (mut owners, now) = (self.owners.0.lock(), Instant::now());
        owners.retain(|_, (_, until)| *until >= now);
        let full = owners.len() >= MOST_OWNERS;
        match owners.get_mut(owner) {
            Some((known, until)) if *known == uid || uid.is_some_and(|uid| self.rights.is_master(uid)) => {
                *until = (now + time).max(*until);
                Ok(())
            }
            Some(_) => Err(ControlError::NotPermitted(format!("'{owner}' is the name of another user's program"))),
            None if full => {
                Err(ControlError::Failed(format!("{MOST_OWNERS} programs have given hints: too many for one more")))
            }
            None => {
                owners.insert(owner.to_owned(), (uid, now + time));
                Ok(())
            }
        }
    }

    /// The files at these paths, and the paths that lead to none.
    fn named(&self, peer: &Peer, paths: &[PathBuf]) -> Result<(Vec<Arc<Opened>>, Vec<String>), ControlError> {
        bounded(paths)?;
        let reads = self.rights.reader(peer);
        let (mut files, mut unknown) = (Vec::new(), Vec::new());
        for path in paths {
            match self.open_for(reads.as_ref(), path) {
                Some(opened) => files.push(opened),
                None => unknown.push(path.to_string_lossy().into_owned()),
            }
        }
        Ok((files, unknown))
    }

    fn open_for(&self, reader: Option<&Reader>, path: &Path) -> Option<Arc<Opened>> {
        if reader.is_some_and(|reader| !self.places.may_read(path, reader).unwrap_or(false)) {
            return None;
        }
        self.places.open(path).ok().flatten().map(Arc::new)
    }
}

fn is_long(id: &str, paths: usize) -> bool {
    id.chars().count() > LONGEST_OWNER || paths > MOST_OF_ENTRY
}

fn bounded(paths: &[PathBuf]) -> Result<(), ControlError> {
    match paths.len() <= MOST_PATHS {
        true => Ok(()),
        false => Err(ControlError::BadRequest(format!("name at most {MOST_PATHS} paths at a time"))),
    }
}

fn time(seconds: Option<f64>) -> Result<Duration, ControlError> {
    let time = seconds.map_or(Ok(BELIEVED), Duration::try_from_secs_f64).ok().filter(|time| *time <= LONGEST);
    time.ok_or_else(|| ControlError::BadRequest(format!("seconds are from 0 to {}", LONGEST.as_secs())))
}
