//! What a policy is: a model of the cache that says which blocks of which files it would keep.
//!
//! A policy owns no memory and evicts nothing. It is told of every use and answers with the set of blocks that a
//! cache of its capacity would hold under its rule; the engine lets the arena follow that set as misses come. So every
//! policy can run beside the one that rules, at the cost of a few integers a file, and one can take over from another
//! at any time without moving a byte.

use super::blocks::{Blocks, Layout};
use crate::ids::FileId;

/// One use of some blocks of a file. A block is reported once each time the file is read, however many reads touch it.
#[derive(Clone, Copy, Debug)]
pub struct Access {
    pub file: FileId,
    pub layout: Layout,
    pub blocks: Blocks,
    /// Tells the readings of files apart: later ones have higher numbers, and all reads of one reading the same.
    pub pass: u64,
    /// Extents that were used by anybody before this: the clock that ageing goes by.
    pub traffic: u64,
    /// Worth of an extent of this file against those of others, were both used equally often, from refetch cost and
    /// priority: one class up is worth twice as much.
    pub class: u8,
}

/// A rule for what to keep.
pub trait Policy: Send {
    /// As the user names it.
    fn name(&self) -> String;

    /// Records a use and returns which of its blocks were kept before it. Adds to `changed` each file of which another
    /// set of blocks is kept now.
    fn touch(&mut self, access: &Access, changed: &mut Vec<FileId>) -> Blocks;

    /// The blocks of `file` that a cache under this policy holds.
    fn kept(&self, file: FileId) -> Blocks;

    /// How many extents it may keep from now on.
    fn set_capacity(&mut self, extents: u64, changed: &mut Vec<FileId>);

    /// The blocks of `file` are worth as much as `class` says from now on. What is kept changes with the next uses.
    fn reclass(&mut self, file: FileId, class: u8);

    /// The file is gone: deleted, replaced, or no longer the policy's to decide about.
    fn forget(&mut self, file: FileId);
}
