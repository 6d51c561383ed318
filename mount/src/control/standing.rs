//! Hints that hold, for the worker that may come after this one: it says them again.
//!
//! They are written down in a piece of memory that outlives the process, whole each time; what is torn is not believed.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rustix::fs::MemfdFlags;
use serde::{Deserialize, Serialize};
use weightfs::control::{ControlError, InUseHint, PriorityHint, QueueHint, VramHint};
use weightfs::journal::{Legacy, Parked};

use super::Control;
use super::hub::unix_time;
use super::rights::Peer;

/// Bytes of all hints together. Programs that say more say it again soon.
const MOST: usize = 4 << 20;
/// Bytes before them: how many they are, and their checksum.
const HEADER: usize = 8;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Hint {
    InUse(InUseHint),
    Queue(QueueHint),
    Vram(VramHint),
    Priority(PriorityHint),
    Limit(Option<u64>),
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Said {
    /// None for what everybody who may steer says alike.
    peer: Option<Peer>,
    /// Seconds since 1970.
    until: f64,
    hint: Hint,
}

/// What a later hint takes the place of.
type Key = (u8, String, String);

#[derive(Debug)]
pub struct Standing {
    file: File,
    said: Mutex<BTreeMap<Key, Said>>,
}

impl Standing {
    /// `left` is what an earlier worker has parked.
    pub fn new(left: Option<OwnedFd>, legacy: &Legacy) -> io::Result<Self> {
        let file = match left {
            Some(left) => left,
            None => {
                let file = rustix::fs::memfd_create("weightfs-hints", MemfdFlags::CLOEXEC)?;
                legacy.park(Parked::Hints, file.as_fd())?;
                file
            }
        };
        let file = File::from(file);
        let said = read(&file).unwrap_or_default().into_iter().map(|said| (said.hint.key(), said)).collect();
        Ok(Self { file, said: Mutex::new(said) })
    }

    /// A hint that was taken, and holds for `time`.
    pub fn keep(&self, peer: Option<&Peer>, hint: Hint, time: Duration) {
        let (mut said, now) = (self.said.lock(), unix_time());
        let key = hint.key();
        said.insert(key, Said { peer: peer.copied(), until: now + time.as_secs_f64(), hint });
        said.retain(|_, said| said.until > now);
        if let Err(error) = self.write(&said) {
            tracing::warn!(%error, "what was hinted is forgotten when the worker is replaced");
        }
    }

    fn write(&self, said: &BTreeMap<Key, Said>) -> io::Result<()> {
        let text = serde_json::to_vec(&said.values().collect::<Vec<_>>())?;
        if text.len() > MOST {
            return Err(io::Error::other("there are too many hints"));
        }
        let mut bytes = (text.len() as u32).to_le_bytes().to_vec();
        bytes.extend_from_slice(&crc32fast::hash(&text).to_le_bytes());
        bytes.extend_from_slice(&text);
        self.file.write_all_at(&bytes, 0)
    }

    /// What still holds, with the seconds that are left.
    fn left(&self) -> Vec<(Said, f64)> {
        let now = unix_time();
        let left = |said: &Said| (said.clone(), said.until - now);
        self.said.lock().values().map(left).filter(|(_, seconds)| *seconds > 0.0).collect()
    }

    /// Whether nobody has said otherwise since.
    fn holds(&self, said: &Said) -> bool {
        self.said.lock().get(&said.hint.key()) == Some(said)
    }
}

impl Hint {
    fn key(&self) -> Key {
        match self {
            Hint::InUse(hint) => (0, hint.owner.clone(), String::new()),
            Hint::Queue(hint) => (1, hint.owner.clone(), String::new()),
            Hint::Vram(hint) => (2, hint.owner.clone(), hint.device.clone()),
            Hint::Priority(hint) => {
                (3, hint.owner.clone().unwrap_or_default(), hint.path.to_string_lossy().into_owned())
            }
            Hint::Limit(_) => (4, String::new(), String::new()),
        }
    }
}

fn read(file: &File) -> io::Result<Vec<Said>> {
    let mut bytes = vec![0; file.metadata()?.len() as usize];
    file.read_exact_at(&mut bytes, 0)?;
    let word = |at: usize| bytes.get(at..at + 4).map(|word| u32::from_le_bytes(word.try_into().expect("four bytes")));
    let (Some(length), Some(sum)) = (word(0), word(4)) else { return Ok(Vec::new()) };
    let text = bytes.get(HEADER..HEADER + length as usize).ok_or(io::ErrorKind::UnexpectedEof)?;
    if crc32fast::hash(text) != sum {
        return Err(io::ErrorKind::InvalidData.into());
    }
    Ok(serde_json::from_slice(text)?)
}

impl Control {
    /// Says again what was said to an earlier worker, on a thread of its own: sources may not answer.
    pub(super) fn say_again(self: &Arc<Self>) -> io::Result<()> {
        let left = self.standing.left();
        if left.is_empty() {
            return Ok(());
        }
        let control = Arc::downgrade(self);
        let saying = move || {
            for (said, seconds) in left {
                let Some(control) = control.upgrade().filter(|control| control.standing.holds(&said)) else { continue };
                if let Err(error) = control.say(&said, seconds) {
                    tracing::debug!(%error, hint = ?said.hint, "an earlier hint has no meaning any more");
                }
            }
        };
        std::thread::Builder::new().name("hints".to_owned()).spawn(saying).map(drop)
    }

    fn say(&self, Said { peer, hint, .. }: &Said, seconds: f64) -> Result<(), ControlError> {
        let anybody = Peer::Local { uid: 0, gid: 0 };
        let peer = peer.as_ref().unwrap_or(&anybody);
        match hint.clone() {
            Hint::InUse(hint) => self.hint_in_use(peer, &InUseHint { seconds, ..hint }).map(drop),
            Hint::Queue(hint) => self.hint_queue(peer, &QueueHint { seconds: Some(seconds), ..hint }).map(drop),
            Hint::Vram(hint) => self.hint_vram(peer, &VramHint { seconds: Some(seconds), ..hint }).map(drop),
            Hint::Priority(hint) => {
                let seconds = hint.seconds.map(|_| seconds);
                self.hint_priority(&PriorityHint { seconds, ..hint }).map(drop)
            }
            Hint::Limit(bytes) => self.limit_for(bytes, Duration::try_from_secs_f64(seconds).unwrap_or_default()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn in_use(owner: &str) -> Hint {
        Hint::InUse(InUseHint { paths: vec!["/m/a".into()], seconds: 60.0, owner: owner.to_owned() })
    }

    fn again(standing: &Standing) -> Standing {
        Standing::new(Some(standing.file.try_clone().unwrap().into()), &Legacy::of_nobody().unwrap()).unwrap()
    }

    #[test]
    fn what_holds_is_there_for_the_next() {
        let peer = Peer::Local { uid: 1, gid: 2 };
        let standing = Standing::new(None, &Legacy::of_nobody().unwrap()).unwrap();
        assert!(standing.left().is_empty() && again(&standing).left().is_empty());
        standing.keep(Some(&peer), in_use("a"), Duration::from_secs(60));
        standing.keep(Some(&peer), in_use("b"), Duration::from_secs(60));
        standing.keep(None, Hint::Limit(Some(5)), Duration::from_secs(60));
        standing.keep(Some(&peer), in_use("a"), Duration::ZERO);
        let found: Vec<_> = again(&standing).left().into_iter().map(|(said, _)| (said.peer, said.hint)).collect();
        assert_eq!(found, [(Some(peer), in_use("b")), (None, Hint::Limit(Some(5)))]);
    }

    #[test]
    fn what_is_torn_is_not_believed() {
        let standing = Standing::new(None, &Legacy::of_nobody().unwrap()).unwrap();
        standing.keep(None, in_use("a"), Duration::from_secs(60));
        standing.file.write_all_at(b"X", HEADER as u64 + 3).unwrap();
        assert!(again(&standing).left().is_empty());
    }
}
