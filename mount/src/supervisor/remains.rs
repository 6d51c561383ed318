//! What a supervisor that died has left with the service manager, from which the next one goes on with its mounts.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::MemfdFlags;
use rustix::process::{Signal, pidfd_send_signal};
use serde::{Deserialize, Serialize};
use weightfs::arena::Pages;
use weightfs::ids::GenerationId;
use weightfs::journal::{JournalFiles, Parked};

use super::depot::Depot;
use super::worker::are_stuck;
use crate::link::{Link, Report, form};
use crate::settings::Settings;
use crate::source::Facts;

/// Names of what is kept.
const STATE: &str = "weightfs-state";
const ARENA: &str = "arena";
const LISTENER: &str = "listener";
const LINK: &str = "link";
const WORKER: &str = "worker";
const HINTS: &str = "hints";
const JOURNAL: [&str; 3] = ["journal-0", "journal-1", "journal-counters"];

/// Bytes before the lore: its form, and the process and the number of the latest worker.
const HEADER: usize = 16;
/// How long a worker that was killed may take to end, unless threads of it are stuck in the kernel.
const DYING: Duration = Duration::from_secs(10);
const LOOK: Timespec = Timespec { tv_sec: 0, tv_nsec: 25_000_000 };

fn device(index: usize) -> String {
    format!("device-{index}")
}

fn source(index: usize) -> String {
    format!("source-{index}")
}

/// What is known beside the descriptors.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Lore {
    pub settings: Settings,
    /// The kernel's own numbers of the mounts.
    pub numbers: Vec<Option<String>>,
    pub introductions: Vec<Vec<u8>>,
    pub facts: Vec<Facts>,
    pub pages: Pages,
    pub notes: Vec<String>,
}

/// The descriptors that do not change while the mounts live.
pub struct Basis {
    pub devices: Vec<OwnedFd>,
    pub sources: Vec<OwnedFd>,
    pub arena: OwnedFd,
    pub listener: OwnedFd,
    pub journal: JournalFiles,
}

/// Where a supervisor puts what is to outlive it.
pub struct Shelter {
    depot: Depot,
    state: File,
}

impl Shelter {
    /// Puts everything there.
    pub fn new(mut depot: Depot, lore: &Lore, basis: &Basis) -> io::Result<Self> {
        let state = File::from(rustix::fs::memfd_create(STATE, MemfdFlags::CLOEXEC)?);
        let mut bytes = vec![0; HEADER];
        bytes[..4].copy_from_slice(&form().to_le_bytes());
        bytes.extend(postcard::to_stdvec(lore).map_err(io::Error::other)?);
        state.write_all_at(&bytes, 0)?;
        for (index, (one, other)) in basis.devices.iter().zip(&basis.sources).enumerate() {
            depot.keep(&device(index), one.as_fd());
            depot.keep(&source(index), other.as_fd());
        }
        depot.keep(ARENA, basis.arena.as_fd());
        depot.keep(LISTENER, basis.listener.as_fd());
        let [first, second] = &basis.journal.halves;
        for (name, descriptor) in JOURNAL.iter().zip([first, second, &basis.journal.counters]) {
            depot.keep(name, descriptor.as_fd());
        }
        // Last: without it, nobody goes on.
        depot.keep(STATE, state.as_fd());
        Ok(Self { depot, state })
    }

    /// A worker is about to begin. Its messages outlive us as well.
    pub fn worker(&mut self, process: u32, restarts: u64, link: &Link, worker: Option<&OwnedFd>) -> io::Result<()> {
        let mut header = [0; 12];
        header[..4].copy_from_slice(&process.to_le_bytes());
        header[4..].copy_from_slice(&restarts.to_le_bytes());
        self.state.write_all_at(&header, 4)?;
        self.depot.replace(LINK, link.as_socket().as_fd());
        if let Some(worker) = worker {
            self.depot.replace(WORKER, worker.as_fd());
        }
        Ok(())
    }

    /// Descriptors of open files are too many, and found again otherwise.
    pub fn park(&mut self, what: Parked, descriptor: &OwnedFd) {
        if let Some(name) = name_of(what) {
            self.depot.keep(&name, descriptor.as_fd());
        }
    }

    pub fn unpark(&mut self, what: Parked) {
        if let Some(name) = name_of(what) {
            self.depot.remove(&name);
        }
    }

    /// The mounts have ended.
    pub fn clear(&mut self) {
        self.depot.clear();
    }
}

fn name_of(what: Parked) -> Option<String> {
    match what {
        Parked::ArenaFile(GenerationId(id)) => Some(format!("arena-file-{id}")),
        Parked::Source(GenerationId(id)) => Some(format!("source-file-{id}")),
        Parked::Hints => Some(HINTS.to_owned()),
        Parked::Handle { .. } => None,
    }
}

fn parked_as(name: &str) -> Option<Parked> {
    let number = |text: &str| text.parse().ok().map(GenerationId);
    if name == HINTS {
        return Some(Parked::Hints);
    }
    match name.strip_prefix("arena-file-") {
        Some(id) => number(id).map(Parked::ArenaFile),
        None => name.strip_prefix("source-file-").and_then(number).map(Parked::Source),
    }
}

/// What is taken out of what was left.
struct Parts {
    lore: Lore,
    basis: Basis,
    parked: HashMap<Parked, OwnedFd>,
    workers: u64,
    worker: u32,
}

/// Everything that a supervisor has left.
pub struct Remains {
    pub(super) shelter: Shelter,
    pub(super) lore: Lore,
    pub(super) basis: Basis,
    pub(super) parked: HashMap<Parked, OwnedFd>,
    /// Workers so far, and the process of the last.
    pub(super) workers: u64,
    pub(super) worker: u32,
}

impl Remains {
    /// None where there is nothing.
    ///
    /// # Errors
    /// Where this program cannot go on with what there is. It is not kept any longer.
    pub fn find() -> io::Result<Option<Self>> {
        let mut depot = Depot::of_service();
        let mut left = depot.inherit()?;
        let Some(state) = left.remove(STATE) else {
            // Not complete: what is there would only keep mounts waiting that nobody serves.
            depot.clear();
            return Ok(None);
        };
        let state = File::from(state);
        match Self::of(&state, &mut left) {
            Ok(Parts { lore, basis, mut parked, workers, worker }) => {
                let mut shelter = Shelter { depot, state };
                if let Some(link) = left.remove(LINK) {
                    hear_out(&Link::of(link), &mut parked, &mut shelter);
                }
                Ok(Some(Self { shelter, lore, basis, parked, workers, worker }))
            }
            Err(error) => {
                depot.clear();
                Err(error)
            }
        }
    }

    /// What the daemon was told to do.
    pub fn settings(&self) -> &Settings {
        &self.lore.settings
    }

    fn of(state: &File, left: &mut HashMap<String, OwnedFd>) -> io::Result<Parts> {
        let mut bytes = vec![0; state.metadata()?.len() as usize];
        state.read_exact_at(&mut bytes, 0)?;
        let (header, rest) = bytes.split_at_checked(HEADER).ok_or(io::ErrorKind::UnexpectedEof)?;
        let word = |at: usize| u32::from_le_bytes(header[at..at + 4].try_into().expect("four bytes"));
        if word(0) != form() {
            return Err(io::Error::other(format!(
                "they were left in form {}, and this program knows form {}",
                word(0),
                form()
            )));
        }
        let workers = u64::from_le_bytes(header[8..].try_into().expect("eight bytes")) + 1;
        let lore: Lore = postcard::from_bytes(rest).map_err(io::Error::other)?;
        end_worker(left.remove(WORKER), word(4))?;
        let parked = left
            .extract_if(|name, _| parked_as(name).is_some())
            .filter_map(|(name, descriptor)| Some((parked_as(&name)?, descriptor)))
            .collect();
        let mut take = |name: &str| left.remove(name).ok_or_else(|| io::Error::other(format!("there is no '{name}'")));
        let mounts = 0..lore.settings.mounts.len();
        let basis = Basis {
            devices: mounts.clone().map(|index| take(&device(index))).collect::<io::Result<_>>()?,
            sources: mounts.map(|index| take(&source(index))).collect::<io::Result<_>>()?,
            arena: take(ARENA)?,
            listener: take(LISTENER)?,
            journal: JournalFiles { halves: [take(JOURNAL[0])?, take(JOURNAL[1])?], counters: take(JOURNAL[2])? },
        };
        Ok(Parts { lore, basis, parked, workers, worker: word(4) })
    }
}

/// The last worker may still be there. Two of them would take each other's requests.
fn end_worker(worker: Option<OwnedFd>, process: u32) -> io::Result<()> {
    let Some(worker) = worker else { return Ok(()) };
    // It may have ended.
    let _ = pidfd_send_signal(&worker, Signal::KILL);
    let until = Instant::now() + DYING;
    while Instant::now() < until {
        let mut wanted = [PollFd::new(&worker, PollFlags::IN)];
        match poll(&mut wanted, Some(&LOOK)) {
            Ok(0) | Err(rustix::io::Errno::INTR) if !are_stuck(process) => {}
            Ok(_) | Err(rustix::io::Errno::INTR) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
    }
    Err(io::Error::other("the last worker does not end"))
}

/// What the last worker has said and nobody has heard.
fn hear_out(link: &Link, parked: &mut HashMap<Parked, OwnedFd>, shelter: &mut Shelter) {
    while let Ok(Some((report, descriptors))) = link.receive_now::<Report>() {
        match report {
            Report::Park(what) => {
                for descriptor in descriptors {
                    shelter.park(what, &descriptor);
                    parked.insert(what, descriptor);
                }
            }
            Report::Unpark(what) => {
                parked.remove(&what);
                shelter.unpark(what);
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_belongs_to_generations_is_known_by_its_name() {
        for what in [Parked::ArenaFile(GenerationId(7)), Parked::Source(GenerationId(8)), Parked::Hints] {
            assert_eq!(parked_as(&name_of(what).unwrap()), Some(what));
        }
        assert_eq!(name_of(Parked::Handle { mount: 0, handle: 1 }), None);
        assert_eq!([parked_as("source-0"), parked_as("arena"), parked_as("arena-file-x")], [None; 3]);
    }

    #[test]
    fn what_was_said_last_is_heard() {
        use weightfs::journal::Parking;
        let (ours, theirs) = Link::pair().unwrap();
        let worker = Link::of(theirs);
        let file = tempfile::tempfile().unwrap();
        let [gone, kept] = [1, 2].map(|id| Parked::Source(GenerationId(id)));
        for what in [gone, kept] {
            worker.park(what, file.as_fd()).unwrap();
        }
        worker.unpark(gone);
        drop(worker);
        let mut parked = HashMap::new();
        let mut shelter = Shelter { depot: Depot::none(), state: tempfile::tempfile().unwrap() };
        hear_out(&ours, &mut parked, &mut shelter);
        assert_eq!(parked.keys().collect::<Vec<_>>(), [&kept]);
    }
}
