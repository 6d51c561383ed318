//! What outlives workers: devices, sources, the arena's directory, the listener, the journal, and what workers parked.

use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use weightfs::arena;
use weightfs::journal::{JournalFiles, Parked};
use weightfs::store::Store;

use super::SupervisorError;
use super::depot::Depot;
use super::remains::{Basis, Lore, Remains, Shelter};
use crate::device::{self, MountFlagsWanted};
use crate::link::{Link, MOST_DESCRIPTORS, Order, Setup};
use crate::runtime_dir;
use crate::settings::{MountSpec, Settings};
use crate::source::SourceRoot;
use crate::tuning;
use crate::worker::session;

/// All descriptors of a setup fit into one message.
pub const MOST_MOUNTS: usize = (MOST_DESCRIPTORS - 5) / 2;

/// The kernel refuses smaller reads.
const INTRODUCTION: usize = 64 << 10;

pub struct Holdings {
    lore: Lore,
    basis: Basis,
    parked: HashMap<Parked, OwnedFd>,
    shelter: Shelter,
}

impl Holdings {
    /// Opens and mounts everything, or leaves nothing behind.
    pub fn acquire(settings: Settings, depot: Depot) -> Result<Self, SupervisorError> {
        if settings.mounts.len() > MOST_MOUNTS {
            return Err(SupervisorError::TooMany(settings.mounts.len()));
        }
        let notes = tuning::before_mounting().into_iter().collect();
        // Opened before anything is mounted over them.
        let open = |spec: &MountSpec| {
            SourceRoot::open(&spec.source)
                .map_err(|error| SupervisorError::Source { path: spec.source.clone(), error: error.into() })
        };
        let roots = settings.mounts.iter().map(open).collect::<Result<Vec<_>, _>>()?;
        let facts = roots.iter().map(SourceRoot::facts).collect();
        let (arena, pages) = arena::directory(Store::arena_size(settings.ram))?;
        let journal = JournalFiles::create().map_err(SupervisorError::Journal)?;
        let listener = runtime_dir::listen(&settings.control_socket)?;
        let (devices, numbers, introductions, parked) = Default::default();
        let mut lore = Lore { settings, numbers, introductions, facts, pages, notes };
        let sources = roots.into_iter().map(OwnedFd::from).collect();
        let mut basis = Basis { devices, sources, arena, listener: listener.into(), journal };
        let mounted = mount_all(&mut lore, &mut basis).and_then(|()| {
            // Where nobody can go on, clients are to get an error and not to wait.
            let depot = if can_be_taken_over(&lore) { depot } else { Depot::none() };
            Shelter::new(depot, &lore, &basis).map_err(SupervisorError::Journal)
        });
        match mounted {
            Ok(shelter) => Ok(Self { lore, basis, parked, shelter }),
            Err(error) => {
                unmount_all(&lore);
                let _ = std::fs::remove_file(&lore.settings.control_socket);
                Err(error)
            }
        }
    }

    /// Those of a supervisor that died.
    pub fn inherit(remains: Remains) -> Self {
        let Remains { shelter, lore, basis, parked, .. } = remains;
        Self { lore, basis, parked, shelter }
    }

    /// Whether another worker can go on where one has died.
    pub fn can_be_taken_over(&self) -> bool {
        can_be_taken_over(&self.lore)
    }

    /// Keeps a descriptor of the worker's for the next one.
    pub fn park(&mut self, what: Parked, descriptors: Vec<OwnedFd>) {
        for descriptor in descriptors {
            self.shelter.park(what, &descriptor);
            self.parked.insert(what, descriptor);
        }
    }

    pub fn unpark(&mut self, what: Parked) {
        self.parked.remove(&what);
        self.shelter.unpark(what);
    }

    /// A worker was started, which has got nothing yet.
    pub fn note_worker(
        &mut self,
        process: u32,
        restarts: u64,
        link: &Link,
        worker: Option<&OwnedFd>,
    ) -> std::io::Result<()> {
        self.shelter.worker(process, restarts, link, worker)
    }

    /// Hands everything to a worker.
    pub fn hand_over(&self, link: &Link, restarts: u64, lingering: Vec<u32>) -> std::io::Result<()> {
        let setup = Setup {
            settings: self.lore.settings.clone(),
            pages: self.lore.pages,
            introductions: self.lore.introductions.clone(),
            facts: self.lore.facts.clone(),
            restarts,
            lingering,
            notes: self.lore.notes.clone(),
        };
        let Basis { devices, sources, arena, listener, journal } = &self.basis;
        let mut descriptors: Vec<BorrowedFd<'_>> = Vec::new();
        descriptors.extend(devices.iter().chain(sources).map(AsFd::as_fd));
        let [first, second] = &journal.halves;
        descriptors.extend([arena, listener, first, second, &journal.counters].map(AsFd::as_fd));
        link.send(&Order::Setup(Box::new(setup)), &descriptors)?;
        let parked: Vec<_> = self.parked.iter().collect();
        for some in parked.chunks(MOST_DESCRIPTORS) {
            let names = some.iter().map(|(what, _)| **what).collect();
            let descriptors: Vec<_> = some.iter().map(|(_, descriptor)| descriptor.as_fd()).collect();
            link.send(&Order::Parked(names), &descriptors)?;
        }
        link.send(&Order::Begin, &[])
    }

    /// Ends every mount that is still there. Clients inside get errors.
    pub fn unmount_all(&self) {
        unmount_all(&self.lore);
    }

    /// The mounts have ended: what is kept elsewhere is given up, too.
    pub fn give_up(&mut self) {
        self.shelter.clear();
        // It is ours, and nobody answers there any more.
        let _ = std::fs::remove_file(&self.lore.settings.control_socket);
    }
}

fn can_be_taken_over(lore: &Lore) -> bool {
    lore.introductions.iter().all(|introduction| session::can_be_taken_over(introduction))
}

fn mount_all(lore: &mut Lore, basis: &mut Basis) -> Result<(), SupervisorError> {
    let wanted = MountFlagsWanted { read_only: lore.settings.read_only, allow_other: lore.settings.allow_other };
    for spec in &lore.settings.mounts {
        let device = device::mount(&spec.source, &spec.mountpoint, wanted)?;
        lore.numbers.push(tuning::device_number(&spec.mountpoint).ok());
        basis.devices.push(device);
        let device = basis.devices.last().expect("pushed just now");
        let mut introduction = vec![0; INTRODUCTION];
        let length =
            rustix::io::retry_on_intr(|| rustix::io::read(device, &mut introduction[..])).map_err(|error| {
                SupervisorError::Introduction { mountpoint: spec.mountpoint.clone(), error: error.into() }
            })?;
        introduction.truncate(length);
        lore.introductions.push(introduction);
    }
    Ok(())
}

fn unmount_all(lore: &Lore) {
    for (spec, number) in lore.settings.mounts.iter().zip(&lore.numbers) {
        if number.is_none() || tuning::device_number(&spec.mountpoint).ok() != *number {
            continue;
        }
        if let Err(error) = device::abandon(&spec.mountpoint) {
            tracing::error!(%error, mountpoint = %spec.mountpoint.display(), "cannot unmount");
        }
    }
}
