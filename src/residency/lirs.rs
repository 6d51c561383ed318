//! LIRS by block: what is reused at short distances stays, seen once or seen rarely passes through.
//!
//! Jiang and Zhang, "LIRS: An Efficient Low Inter-reference Recency Set Replacement Policy to Improve Buffer Cache
//! Performance", SIGMETRICS 2002. Almost all of the capacity belongs to the blocks of low inter-reference recency
//! (LIR); the others (HIR) pass through a short queue, and one that comes back while it is in the recency stack is
//! reused sooner than the oldest LIR block and takes its place.
//!
//! Knows no costs: it is left to `auto` to prefer another rule where they matter.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::blocks::Blocks;
use super::policy::{Access, Policy};
use crate::ids::FileId;

/// The part of the capacity that HIR blocks pass through, as the paper has it.
const HIR_PART: u64 = 100;

/// The stack forgets what lies deeper than this many capacities of use: nothing that far apart is kept anyway.
const STACK_DEPTH: u64 = 16;

type Block = (FileId, u32);

#[derive(Clone, Copy)]
struct Node {
    weight: u64,
    lir: bool,
    /// Place in the recency stack, if it is in it.
    stacked: Option<u64>,
    /// Place in the queue of resident HIR blocks, if it is in it.
    queued: Option<u64>,
}

#[derive(Default)]
pub struct Lirs {
    capacity: u64,
    lir_used: u64,
    hir_used: u64,
    /// Of all blocks in the stack.
    stack_weight: u64,
    nodes: HashMap<Block, Node>,
    kept: HashMap<FileId, Blocks>,
    known: HashMap<FileId, BTreeSet<u32>>,
    stack: BTreeMap<u64, Block>,
    queue: BTreeMap<u64, Block>,
    stamp: u64,
}

impl Lirs {
    pub fn new() -> Lirs {
        Lirs::default()
    }

    fn lir_capacity(&self) -> u64 {
        self.capacity - self.capacity.div_ceil(HIR_PART).min(self.capacity)
    }

    fn touch_block(&mut self, block: Block, weight: u64, changed: &mut Vec<FileId>) {
        let found = self.nodes.get(&block).copied();
        let mut node = found.unwrap_or(Node { weight, lir: false, stacked: None, queued: None });
        let was_stacked = node.stacked.is_some();
        self.unstack(&mut node);
        self.dequeue(&mut node);
        if node.lir {
            self.lir_used -= node.weight;
        }
        // Seen twice within the stack, or there is room: low inter-reference recency.
        node.lir |= was_stacked || self.lir_used + weight <= self.lir_capacity();
        if node.lir {
            self.lir_used += weight;
        } else {
            self.enqueue(&mut node, block);
        }
        self.stamp += 1;
        node.stacked = Some(self.stamp);
        self.stack.insert(self.stamp, block);
        self.stack_weight += weight;
        self.nodes.insert(block, node);
        self.known.entry(block.0).or_default().insert(block.1);
        self.set_kept(block, true, changed);
        self.settle(changed);
    }

    /// Brings LIR and HIR sets within their parts and the stack to a LIR bottom.
    fn settle(&mut self, changed: &mut Vec<FileId>) {
        self.prune();
        while self.lir_used > self.lir_capacity()
            && let Some((_, &bottom)) = self.stack.first_key_value()
        {
            let mut node = self.nodes[&bottom];
            self.unstack(&mut node);
            node.lir = false;
            self.lir_used -= node.weight;
            self.enqueue(&mut node, bottom);
            self.nodes.insert(bottom, node);
            self.prune();
        }
        while self.lir_used + self.hir_used > self.capacity
            && let Some((_, &first)) = self.queue.first_key_value()
        {
            let mut node = self.nodes[&first];
            self.dequeue(&mut node);
            self.set_kept(first, false, changed);
            self.put_back(first, node);
        }
        while self.stack_weight > STACK_DEPTH * self.capacity {
            let Some(deepest) = self.stack.iter().find(|(_, block)| !self.nodes[*block].lir).map(|(_, block)| *block)
            else {
                break;
            };
            let mut node = self.nodes[&deepest];
            self.unstack(&mut node);
            self.put_back(deepest, node);
        }
    }

    fn prune(&mut self) {
        while let Some((_, &bottom)) = self.stack.first_key_value()
            && !self.nodes[&bottom].lir
        {
            let mut node = self.nodes[&bottom];
            self.unstack(&mut node);
            self.put_back(bottom, node);
        }
    }

    /// Remembers a block as long as it is in the stack or resident.
    fn put_back(&mut self, block: Block, node: Node) {
        if node.stacked.is_some() || node.queued.is_some() {
            self.nodes.insert(block, node);
        } else {
            self.nodes.remove(&block);
            if let Some(known) = self.known.get_mut(&block.0) {
                known.remove(&block.1);
            }
        }
    }

    fn unstack(&mut self, node: &mut Node) {
        if let Some(stamp) = node.stacked.take() {
            self.stack.remove(&stamp);
            self.stack_weight -= node.weight;
        }
    }

    fn enqueue(&mut self, node: &mut Node, block: Block) {
        self.stamp += 1;
        node.queued = Some(self.stamp);
        self.queue.insert(self.stamp, block);
        self.hir_used += node.weight;
    }

    fn dequeue(&mut self, node: &mut Node) {
        if let Some(stamp) = node.queued.take() {
            self.queue.remove(&stamp);
            self.hir_used -= node.weight;
        }
    }

    fn set_kept(&mut self, (file, block): Block, keep: bool, changed: &mut Vec<FileId>) {
        let kept = self.kept.entry(file).or_default();
        let now = if keep { kept.with(block) } else { kept.without(block) };
        if now != *kept {
            *kept = now;
            changed.push(file);
        }
    }
}

impl Policy for Lirs {
    fn name(&self) -> String {
        "lirs".to_owned()
    }

    fn touch(&mut self, access: &Access, changed: &mut Vec<FileId>) -> Blocks {
        let before = self.kept(access.file);
        for block in access.blocks.iter() {
            self.touch_block((access.file, block), access.layout.weight(block), changed);
        }
        access.blocks.and(before)
    }

    fn kept(&self, file: FileId) -> Blocks {
        self.kept.get(&file).copied().unwrap_or_default()
    }

    fn set_capacity(&mut self, extents: u64, changed: &mut Vec<FileId>) {
        self.capacity = extents;
        self.settle(changed);
    }

    fn reclass(&mut self, _file: FileId, _class: u8) {}

    fn forget(&mut self, file: FileId) {
        for block in self.known.remove(&file).unwrap_or_default() {
            let mut node = self.nodes.remove(&(file, block)).expect("known blocks have nodes");
            self.unstack(&mut node);
            self.dequeue(&mut node);
            if node.lir {
                self.lir_used -= node.weight;
            }
        }
        self.kept.remove(&file);
        self.prune();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::residency::testing::access;

    fn turn(lirs: &mut Lirs, files: &[u64]) -> u64 {
        let touch = |file: &u64| {
            let access = access(*file, 96, 0);
            access.layout.weights(lirs.touch(&access, &mut Vec::new()))
        };
        files.iter().map(touch).sum()
    }

    #[test]
    fn a_loop_hits_what_fits_and_a_new_loop_takes_over() {
        let mut lirs = Lirs::new();
        lirs.set_capacity(220, &mut Vec::new());
        turn(&mut lirs, &[0, 1, 2]);
        for _ in 0..5 {
            // 217 extents for LIR blocks, of 8 each.
            assert_eq!(turn(&mut lirs, &[0, 1, 2]), 216);
        }
        turn(&mut lirs, &[3, 4, 5]);
        turn(&mut lirs, &[3, 4, 5]);
        assert!(turn(&mut lirs, &[3, 4, 5]) >= 200);
    }

    #[test]
    fn one_pass_over_something_large_displaces_little() {
        let mut lirs = Lirs::new();
        lirs.set_capacity(200, &mut Vec::new());
        turn(&mut lirs, &[0, 1, 0, 1]);
        turn(&mut lirs, &(10..30).collect::<Vec<_>>());
        assert!(turn(&mut lirs, &[0, 1]) >= 184);
    }

    #[test]
    fn it_forgets_without_a_trace() {
        let mut lirs = Lirs::new();
        lirs.set_capacity(200, &mut Vec::new());
        turn(&mut lirs, &[0, 1, 2, 0, 1, 2]);
        (0..3).for_each(|file| lirs.forget(FileId(file)));
        assert_eq!((lirs.lir_used, lirs.hir_used, lirs.stack_weight), (0, 0, 0));
        assert!(lirs.nodes.is_empty() && lirs.stack.is_empty() && lirs.queue.is_empty());
    }
}
