//! What an earlier process has left in the arena: taken over as it is, nothing of it is read again.

use std::collections::HashMap;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::{Generation, Held, Opened, SourceFileKey, Store};
use crate::arena::ArenaFile;
use crate::failpoint;
use crate::fill::SourceFile;
use crate::ids::{ExtentIndex, GenerationId};
use crate::journal::GenerationState;
use crate::residency::UseKind;
use crate::sys::lease;
use crate::units::extent_count;

/// A generation of an earlier process, with its descriptors.
#[derive(Debug)]
pub struct Kept {
    pub id: GenerationId,
    pub state: GenerationState,
    pub arena: OwnedFd,
    pub source: OwnedFd,
}

impl Store {
    pub(super) fn restore(self: &Arc<Self>, kept: Vec<Kept>) {
        let mut unasked: HashMap<u64, Vec<Arc<SourceFile>>> = HashMap::new();
        for one in kept {
            let (id, device) = (one.id, one.state.identity.device);
            match self.restore_one(one) {
                Ok(source) => unasked.entry(device).or_default().push(source),
                Err(error) => {
                    tracing::error!(%error, generation = %id, "what is in RAM of a file cannot be taken over; it is read again");
                }
            }
            failpoint::pass("takeover.generation");
        }
        // A device may not answer. Until it does, its files are not read directly.
        for (device, files) in unasked {
            let opening = move || files.iter().for_each(|file| file.open_directly());
            if let Err(error) = std::thread::Builder::new().name("opening".to_owned()).spawn(opening) {
                tracing::warn!(%error, device, "files are not read directly any more");
            }
        }
    }

    fn restore_one(self: &Arc<Self>, kept: Kept) -> std::io::Result<Arc<SourceFile>> {
        let Kept { id, state, arena, source } = kept;
        let identity = state.identity;
        let arena = self.arena.adopt(arena, identity.size)?;
        let present = state.runs();
        free_all_but(&arena, &present, extent_count(identity.size))?;
        let source = Arc::new(SourceFile::unasked(source.into()));
        // The process that shared it may have ended within.
        lease::give_back(source.file());
        let unasked = Arc::clone(&source);
        let (occupied, legacy) = (Arc::clone(&self.occupied), Arc::clone(&self.legacy));
        let generation = Generation::new(id, state.file, source, identity, occupied, None, legacy);
        generation.adopt(arena, &present);
        let generation = Arc::new(generation);
        if state.ended {
            generation.kill();
            self.ended.lock().push(generation);
            return Ok(unasked);
        }
        let key: SourceFileKey = (identity.device, identity.inode);
        self.generations.lock().insert(key, Arc::clone(&generation));
        self.register(&generation);
        let mut residency = self.residency.lock();
        for run in &present {
            residency.filled(state.file, run.clone(), self.now());
        }
        // How it was used is not known any more; that it was, is.
        residency.opened(state.file, UseKind::Load);
        residency.touched(state.file, &present, UseKind::Load, self.now());
        Ok(unasked)
    }

    /// An open file of an earlier process, on the generation that it was opened on, if that is still there.
    pub fn open_again(self: &Arc<Self>, id: GenerationId) -> Option<Opened> {
        let generation = self.by_id(id)?;
        generation.handles.fetch_add(1, Ordering::AcqRel);
        Some(Opened::new(Arc::clone(self), generation))
    }

    /// As [`Store::hold`], for a client that an earlier process has served.
    pub fn hold_again(&self, id: GenerationId) -> Option<Held> {
        Held::new(&self.by_id(id)?)
    }

    /// A generation of an earlier process.
    pub fn by_id(&self, id: GenerationId) -> Option<Arc<Generation>> {
        let alive = self.generations.lock().values().find(|generation| generation.id == id).cloned();
        alive.or_else(|| self.ended.lock().iter().find(|generation| generation.id == id).cloned())
    }
}

/// What is not known to be complete is freed: the device may still be writing to pages for the process that is gone, and
/// after this, these are no longer pages of the file.
fn free_all_but(arena: &ArenaFile, present: &[Range<ExtentIndex>], count: ExtentIndex) -> std::io::Result<()> {
    let mut next = 0;
    for run in present.iter().cloned().chain(std::iter::once(count..count)) {
        if next < run.start {
            arena.punch(&(next..run.start))?;
        }
        next = run.end;
    }
    Ok(())
}
