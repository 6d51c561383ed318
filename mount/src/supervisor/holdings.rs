//! What outlives workers: devices, sources, the arena's directory, the listener, the journal, and what workers parked.

use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixListener;

use weightfs::arena::{self, Pages};
use weightfs::journal::{JournalFiles, Parked};
use weightfs::store::Store;

use super::SupervisorError;
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
    pub settings: Settings,
    devices: Vec<OwnedFd>,
    /// The kernel's own numbers of the mounts, by which they are told from others at the same place.
    numbers: Vec<Option<String>>,
    introductions: Vec<Vec<u8>>,
    sources: Vec<OwnedFd>,
    arena: OwnedFd,
    pages: Pages,
    listener: UnixListener,
    journal: JournalFiles,
    parked: HashMap<Parked, OwnedFd>,
    notes: Vec<String>,
}

impl Holdings {
    /// Opens and mounts everything, or leaves nothing behind.
    pub fn acquire(settings: Settings) -> Result<Self, SupervisorError> {
        if settings.mounts.len() > MOST_MOUNTS {
            return Err(SupervisorError::TooMany(settings.mounts.len()));
        }
        let notes = tuning::before_mounting().into_iter().collect();
        // Opened before anything is mounted over them.
        let open = |spec: &MountSpec| {
            SourceRoot::open(&spec.source)
                .map(OwnedFd::from)
                .map_err(|error| SupervisorError::Source { path: spec.source.clone(), error: error.into() })
        };
        let sources = settings.mounts.iter().map(open).collect::<Result<Vec<_>, _>>()?;
        let (arena, pages) = arena::directory(Store::arena_size(settings.ram))?;
        let journal = JournalFiles::create().map_err(SupervisorError::Journal)?;
        let listener = runtime_dir::listen(&settings.control_socket)?;
        let (devices, numbers, introductions, parked) = Default::default();
        let mut holdings =
            Self { settings, devices, numbers, introductions, sources, arena, pages, listener, journal, parked, notes };
        if let Err(error) = holdings.mount_all() {
            holdings.unmount_all();
            let _ = std::fs::remove_file(&holdings.settings.control_socket);
            return Err(error);
        }
        Ok(holdings)
    }

    fn mount_all(&mut self) -> Result<(), SupervisorError> {
        let wanted = MountFlagsWanted { read_only: self.settings.read_only, allow_other: self.settings.allow_other };
        for spec in &self.settings.mounts {
            let device = device::mount(&spec.source, &spec.mountpoint, wanted)?;
            self.numbers.push(tuning::device_number(&spec.mountpoint).ok());
            self.devices.push(device);
            let device = self.devices.last().expect("pushed just now");
            let mut introduction = vec![0; INTRODUCTION];
            let length =
                rustix::io::retry_on_intr(|| rustix::io::read(device, &mut introduction[..])).map_err(|error| {
                    SupervisorError::Introduction { mountpoint: spec.mountpoint.clone(), error: error.into() }
                })?;
            introduction.truncate(length);
            self.introductions.push(introduction);
        }
        Ok(())
    }

    /// Whether another worker can go on where one has died.
    pub fn can_be_taken_over(&self) -> bool {
        self.introductions.iter().all(|introduction| session::can_be_taken_over(introduction))
    }

    /// Keeps a descriptor of the worker's for the next one.
    pub fn park(&mut self, what: Parked, descriptors: Vec<OwnedFd>) {
        self.parked.extend(descriptors.into_iter().map(|descriptor| (what, descriptor)));
    }

    pub fn unpark(&mut self, what: Parked) {
        self.parked.remove(&what);
    }

    /// Hands everything to a worker.
    pub fn hand_over(&self, link: &Link, restarts: u64) -> std::io::Result<()> {
        let setup = Setup {
            settings: self.settings.clone(),
            pages: self.pages,
            introductions: self.introductions.clone(),
            restarts,
            notes: self.notes.clone(),
        };
        let mut descriptors: Vec<BorrowedFd<'_>> = Vec::new();
        descriptors.extend(self.devices.iter().chain(&self.sources).map(AsFd::as_fd));
        let [first, second] = &self.journal.halves;
        descriptors.extend([self.arena.as_fd(), self.listener.as_fd()]);
        descriptors.extend([first, second, &self.journal.counters].map(AsFd::as_fd));
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
        for (spec, number) in self.settings.mounts.iter().zip(&self.numbers) {
            if number.is_none() || tuning::device_number(&spec.mountpoint).ok() != *number {
                continue;
            }
            if let Err(error) = device::abandon(&spec.mountpoint) {
                tracing::error!(%error, mountpoint = %spec.mountpoint.display(), "cannot unmount");
            }
        }
    }
}
