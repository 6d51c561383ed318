//! What a policy keeps, for the policies that go by last use: blocks in order of worth and of last use.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::blocks::Blocks;
use super::policy::Access;
use crate::ids::FileId;

/// A class of worth must lie this far under a newcomer's before it gives way to it while it is in use itself: sources
/// of about the same speed must not push each other out.
const CLEARLY_LESS: u8 = 2;

/// A block in order: by the pass that read it last, from the tail of its file.
type Place = (u64, u32, FileId);

#[derive(Default)]
pub(super) struct Shelf {
    capacity: u64,
    used: u64,
    files: HashMap<FileId, Blocks>,
    nodes: HashMap<(FileId, u32), Node>,
    order: BTreeMap<u8, BTreeSet<Place>>,
}

/// The last use of a kept block.
#[derive(Clone, Copy)]
struct Node {
    class: u8,
    pass: u64,
    traffic: u64,
    weight: u64,
}

impl Shelf {
    pub fn kept(&self, file: FileId) -> Blocks {
        self.files.get(&file).copied().unwrap_or_default()
    }

    pub fn free(&self) -> u64 {
        self.capacity.saturating_sub(self.used)
    }

    pub fn over(&self) -> u64 {
        self.used.saturating_sub(self.capacity)
    }

    pub fn capacity(&self) -> u64 {
        self.capacity
    }

    pub fn set_capacity(&mut self, extents: u64) {
        self.capacity = extents;
    }

    /// Records a use of those blocks that are kept.
    pub fn refresh(&mut self, access: &Access) {
        for block in self.kept(access.file).and(access.blocks).iter() {
            self.keep(access, block);
        }
    }

    pub fn keep(&mut self, access: &Access, block: u32) {
        self.drop((access.file, block));
        let weight = access.layout.weight(block);
        let node = Node { class: access.class, pass: access.pass, traffic: access.traffic, weight };
        self.insert((access.file, block), node);
    }

    fn insert(&mut self, (file, block): (FileId, u32), node: Node) {
        self.used += node.weight;
        self.nodes.insert((file, block), node);
        self.order.entry(node.class).or_default().insert((node.pass, !block, file));
        let kept = self.files.entry(file).or_default();
        *kept = kept.with(block);
    }

    pub fn drop(&mut self, (file, block): (FileId, u32)) {
        let Some(node) = self.nodes.remove(&(file, block)) else { return };
        self.used -= node.weight;
        if let Some(class) = self.order.get_mut(&node.class) {
            class.remove(&(node.pass, !block, file));
            if class.is_empty() {
                self.order.remove(&node.class);
            }
        }
        let kept = self.files.entry(file).or_default();
        *kept = kept.without(block);
    }

    pub fn reclass(&mut self, file: FileId, class: u8) {
        for block in self.kept(file).iter() {
            if let Some(node) = self.nodes.get(&(file, block)).copied() {
                self.drop((file, block));
                self.insert((file, block), Node { class, ..node });
            }
        }
    }

    pub fn forget(&mut self, file: FileId) {
        self.kept(file).iter().for_each(|block| self.drop((file, block)));
        self.files.remove(&file);
    }

    /// The tail of what was read last, in the lowest class.
    pub fn newest_of_least(&self) -> Option<(FileId, u32)> {
        self.order.values().next().and_then(newest)
    }

    /// The tail of what was read last in the lowest class, if that is clearly under `class`.
    pub fn clearly_less_than(&self, class: u8) -> Option<(FileId, u32)> {
        let (least, blocks) = self.order.first_key_value()?;
        (least.saturating_add(CLEARLY_LESS) <= class).then(|| newest(blocks)).flatten()
    }

    /// The tail of what was read longest ago, and the traffic before that, in each class from the lowest.
    pub fn oldest(&self) -> impl Iterator<Item = ((FileId, u32), u64)> + '_ {
        self.order.values().filter_map(|blocks| blocks.first()).map(|&(_, block, file)| {
            let block = (file, !block);
            (block, self.nodes[&block].traffic)
        })
    }
}

fn newest(blocks: &BTreeSet<Place>) -> Option<(FileId, u32)> {
    let (pass, ..) = blocks.last()?;
    blocks.range((*pass, 0, FileId(0))..).next().map(|&(_, block, file)| (file, !block))
}
