//! What a journal comes to: everything that it speaks of, as it was when its last whole record was written.

use std::collections::{BTreeMap, HashMap};

use super::record::{FileKey, HandleKind, Record, decode, encode};
use crate::ids::{ExtentIndex, FileId, GenerationId, SourceIdentity, Timestamp};
use crate::units::{LARGEST_MODEL, extent_count};

/// Changes of names that are remembered: the kernel asks again only for those that were not answered.
const MOST_STEPS: usize = 1024;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct State {
    pub mounts: BTreeMap<u8, MountState>,
    pub generations: BTreeMap<GenerationId, GenerationState>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MountState {
    /// Whether passthrough works, and what was answered to the kernel's introduction.
    pub mounted: Option<(bool, Vec<u8>)>,
    pub nodes: HashMap<u64, NodeState>,
    pub residents: BTreeMap<u64, ResidentState>,
    pub handles: BTreeMap<u64, HandleState>,
    /// By thread: the file, and whether it is to be written to.
    pub bounced: HashMap<u32, (FileKey, bool)>,
    /// By request.
    pub steps: BTreeMap<u64, StepState>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeState {
    pub key: FileKey,
    pub kind: u32,
    pub slot: u32,
    pub origin: Option<(Vec<u8>, Vec<u8>)>,
    /// The latest one at the end.
    pub names: Vec<(u64, Vec<u8>)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResidentState {
    pub node: u64,
    pub generation: GenerationId,
    pub slot: u32,
    /// The kernel's reference to its arena file.
    pub backing: Option<u32>,
    /// The kernel has forgotten the number, but not yet closed every file that it opened under it.
    pub gone: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HandleState {
    pub node: u64,
    pub unique: u64,
    pub kind: HandleKind,
    pub flags: u32,
    /// When its file was made, where that is known and needed to know it again.
    pub born: Option<Timestamp>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepState {
    pub before: [Option<FileKey>; 2],
    pub done: Option<i32>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GenerationState {
    pub file: FileId,
    pub identity: SourceIdentity,
    pub ended: bool,
    /// One for each extent.
    pub present: Vec<bool>,
}

impl State {
    /// Reads a journal. What is not whole at its end was never promised to anyone.
    pub fn replay(bytes: &[u8]) -> Self {
        let mut state = Self::default();
        decode(bytes).for_each(|record| state.apply(&record));
        state.mounts.retain(|_, mount| *mount != MountState::default());
        state
    }

    fn mount(&mut self, mount: u8) -> &mut MountState {
        self.mounts.entry(mount).or_default()
    }

    pub fn apply(&mut self, record: &Record<'_>) {
        match record {
            Record::Mounted { mount, passthrough, reply } => {
                self.mount(*mount).mounted = Some((*passthrough, reply.to_vec()));
            }
            Record::Node { mount, id, key, kind, slot, origin, name } => {
                let origin = origin.map(|(base, path)| (base.to_vec(), path.to_vec()));
                let names = name.iter().map(|(parent, name)| (*parent, name.to_vec())).collect();
                self.mount(*mount).nodes.insert(*id, NodeState { key: *key, kind: *kind, slot: *slot, origin, names });
            }
            Record::NodeGone { mount, id } => _ = self.mount(*mount).nodes.remove(id),
            Record::Name { mount, id, name: (parent, name) } => {
                if let Some(node) = self.mount(*mount).nodes.get_mut(id) {
                    node.names.retain(|known| (known.0, &known.1[..]) != (*parent, name));
                    node.names.push((*parent, name.to_vec()));
                }
            }
            Record::NameGone { mount, id, name: (parent, name) } => {
                if let Some(node) = self.mount(*mount).nodes.get_mut(id) {
                    node.names.retain(|known| (known.0, &known.1[..]) != (*parent, name));
                }
            }
            Record::Resident { mount, id, node, generation, slot } => {
                let resident =
                    ResidentState { node: *node, generation: *generation, slot: *slot, backing: None, gone: false };
                self.mount(*mount).residents.insert(*id, resident);
            }
            Record::ResidentGone { mount, id } => {
                if let Some(known) = self.mount(*mount).residents.get_mut(id) {
                    known.gone = true;
                }
                self.mount(*mount).let_go(*id);
            }
            Record::Backing { mount, resident, backing } => {
                if let Some(known) = self.mount(*mount).residents.get_mut(resident) {
                    known.backing = *backing;
                }
                self.mount(*mount).let_go(*resident);
            }
            Record::Opened { mount, handle, node, unique, kind, flags } => {
                let opened = HandleState { node: *node, unique: *unique, kind: *kind, flags: *flags, born: None };
                self.mount(*mount).handles.insert(*handle, opened);
            }
            Record::Born { mount, handle, at } => {
                if let Some(opened) = self.mount(*mount).handles.get_mut(handle) {
                    opened.born = Some(*at);
                }
            }
            Record::Closed { mount, handle } => _ = self.mount(*mount).handles.remove(handle),
            Record::Bounced { mount, thread, key, writes } => {
                self.mount(*mount).bounced.insert(*thread, (*key, *writes));
            }
            Record::Landed { mount, thread } => _ = self.mount(*mount).bounced.remove(thread),
            Record::Begun { mount, unique, before } => {
                let steps = &mut self.mount(*mount).steps;
                steps.insert(*unique, StepState { before: *before, done: None });
                if steps.len() > MOST_STEPS {
                    steps.pop_first();
                }
            }
            Record::Done { mount, unique, errno } => {
                if let Some(step) = self.mount(*mount).steps.get_mut(unique) {
                    step.done = Some(*errno);
                }
            }
            // No worker has noted a larger one.
            Record::Generation { id, file, identity } if identity.size < LARGEST_MODEL => {
                let present = vec![false; extent_count(identity.size) as usize];
                let generation = GenerationState { file: *file, identity: *identity, ended: false, present };
                self.generations.insert(*id, generation);
            }
            Record::Generation { .. } => {}
            Record::Rebound { id, identity } => {
                // The same content has the same size.
                let known = self.generations.get_mut(id).filter(|known| known.identity.size == identity.size);
                if let Some(generation) = known {
                    generation.identity = *identity;
                }
            }
            Record::Ended { id } => {
                if let Some(generation) = self.generations.get_mut(id) {
                    generation.ended = true;
                }
            }
            Record::GenerationGone { id } => _ = self.generations.remove(id),
            Record::Filled { id, extents } => self.mark(*id, extents, true),
            Record::Evicted { id, extents } => self.mark(*id, extents, false),
        }
    }

    fn mark(&mut self, id: GenerationId, extents: &std::ops::Range<ExtentIndex>, present: bool) {
        let Some(generation) = self.generations.get_mut(&id) else { return };
        let range = extents.start as usize..(extents.end as usize).min(generation.present.len());
        if let Some(flags) = generation.present.get_mut(range) {
            flags.fill(present);
        }
    }

    /// The shortest journal that comes to the same.
    pub fn journal(&self) -> Vec<u8> {
        let (mut bytes, mut one) = (Vec::new(), Vec::new());
        let mut put = |record: &Record<'_>| {
            encode(record, &mut one);
            bytes.extend_from_slice(&one);
        };
        for (id, generation) in &self.generations {
            put(&Record::Generation { id: *id, file: generation.file, identity: generation.identity });
            for extents in generation.runs() {
                put(&Record::Filled { id: *id, extents });
            }
            if generation.ended {
                put(&Record::Ended { id: *id });
            }
        }
        for (number, mount) in &self.mounts {
            mount.put(*number, &mut put);
        }
        bytes
    }
}

impl GenerationState {
    /// The runs of extents that are there.
    pub fn runs(&self) -> Vec<std::ops::Range<ExtentIndex>> {
        let mut runs: Vec<std::ops::Range<ExtentIndex>> = Vec::new();
        for (extent, _) in (0..).zip(&self.present).filter(|(_, present)| **present) {
            match runs.last_mut() {
                Some(run) if run.end == extent => run.end += 1,
                _ => runs.push(extent..extent + 1),
            }
        }
        runs
    }
}

impl MountState {
    /// A resident number goes when neither the kernel nor a reference of the kernel's needs it.
    fn let_go(&mut self, resident: u64) {
        if self.residents.get(&resident).is_some_and(|known| known.gone && known.backing.is_none()) {
            self.residents.remove(&resident);
        }
    }

    fn put(&self, mount: u8, put: &mut impl FnMut(&Record<'_>)) {
        if let Some((passthrough, reply)) = &self.mounted {
            put(&Record::Mounted { mount, passthrough: *passthrough, reply });
        }
        for (id, node) in &self.nodes {
            let id = *id;
            let origin = node.origin.as_ref().map(|(base, path)| (&base[..], &path[..]));
            put(&Record::Node { mount, id, key: node.key, kind: node.kind, slot: node.slot, origin, name: None });
            for (parent, name) in &node.names {
                put(&Record::Name { mount, id, name: (*parent, name) });
            }
        }
        for (id, resident) in &self.residents {
            let ResidentState { node, generation, slot, backing, gone } = *resident;
            put(&Record::Resident { mount, id: *id, node, generation, slot });
            if backing.is_some() {
                put(&Record::Backing { mount, resident: *id, backing });
            }
            if gone {
                put(&Record::ResidentGone { mount, id: *id });
            }
        }
        for (handle, opened) in &self.handles {
            let HandleState { node, unique, kind, flags, born } = *opened;
            put(&Record::Opened { mount, handle: *handle, node, unique, kind, flags });
            if let Some(at) = born {
                put(&Record::Born { mount, handle: *handle, at });
            }
        }
        for (thread, (key, writes)) in &self.bounced {
            put(&Record::Bounced { mount, thread: *thread, key: *key, writes: *writes });
        }
        for (unique, step) in &self.steps {
            put(&Record::Begun { mount, unique: *unique, before: step.before });
            if let Some(errno) = step.done {
                put(&Record::Done { mount, unique: *unique, errno });
            }
        }
    }
}
