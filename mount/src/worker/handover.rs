//! What a worker is given when it begins.

use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::sync::Arc;

use weightfs::ids::GenerationId;
use weightfs::journal::{GenerationState, JournalFiles, Legacy, Parked, Record};
use weightfs::store::Kept;

use crate::link::{Link, Order, Setup};

pub struct Handover {
    pub setup: Setup,
    /// One for each mount, as the sources.
    pub devices: Vec<OwnedFd>,
    pub sources: Vec<OwnedFd>,
    pub arena: OwnedFd,
    pub listener: UnixListener,
    pub journal: JournalFiles,
    pub parked: HashMap<Parked, OwnedFd>,
    pub link: Arc<Link>,
}

impl Handover {
    pub fn receive(link: Link) -> io::Result<Self> {
        let gone = || io::Error::from(io::ErrorKind::UnexpectedEof);
        let odd = || io::Error::other("a supervisor of another version");
        let (order, descriptors) = link.receive::<Order>()?.ok_or_else(gone)?;
        let Order::Setup(setup) = order else { return Err(odd()) };
        let mut descriptors = descriptors.into_iter();
        let mounts = setup.settings.mounts.len();
        let devices: Vec<OwnedFd> = descriptors.by_ref().take(mounts).collect();
        let sources: Vec<OwnedFd> = descriptors.by_ref().take(mounts).collect();
        let rest = <[OwnedFd; 5]>::try_from(descriptors.collect::<Vec<_>>());
        let [arena, listener, first, second, counters] = rest.map_err(|_| odd())?;
        let mut parked = HashMap::new();
        loop {
            match link.receive::<Order>()?.ok_or_else(gone)? {
                (Order::Parked(names), descriptors) => parked.extend(names.into_iter().zip(descriptors)),
                (Order::Begin, _) => break,
                _ => return Err(odd()),
            }
        }
        let journal = JournalFiles { halves: [first, second], counters };
        let (listener, link) = (listener.into(), Arc::new(link));
        Ok(Self { setup: *setup, devices, sources, arena, listener, journal, parked, link })
    }
}

/// Sorts out the descriptors of generations. A generation without its descriptors was about to be noted, or to go.
pub fn kept_generations(
    generations: impl IntoIterator<Item = (GenerationId, GenerationState)>,
    parked: &mut HashMap<Parked, OwnedFd>,
    legacy: &Legacy,
) -> Vec<Kept> {
    let mut kept = Vec::new();
    for (id, state) in generations {
        match (parked.remove(&Parked::ArenaFile(id)), parked.remove(&Parked::Source(id))) {
            (Some(arena), Some(source)) => kept.push(Kept { id, state, arena, source }),
            _ => legacy.note(&Record::GenerationGone { id }),
        }
    }
    parked.retain(|what, _| {
        let of_handle = matches!(what, Parked::Handle { .. });
        if !of_handle {
            legacy.unpark(*what);
        }
        of_handle
    });
    kept
}
