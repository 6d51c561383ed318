//! Headers: where the tensors of a generation lie.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::{Generation, Store};
use crate::format::{self, Bytes, TensorMap};
use crate::units::EXTENT_SIZE;

impl Store {
    /// Whether a read at `offset` looks at the header only. Before the header is known, its length is not: the first
    /// extent counts as header until then.
    pub(super) fn is_header(self: &Arc<Self>, generation: &Arc<Generation>, offset: u64) -> bool {
        match self.tensors(generation) {
            Some(map) if map.header().is_empty() => false,
            Some(map) => offset < map.header().end,
            None => offset < EXTENT_SIZE,
        }
    }

    /// Where the tensors of a generation lie, if that is known; else somebody is sent to look.
    pub fn tensors<'a>(self: &Arc<Self>, generation: &'a Arc<Generation>) -> Option<&'a Arc<TensorMap>> {
        if let Some(map) = generation.tensors.get() {
            return Some(map);
        }
        if !generation.parsing.swap(true, Ordering::Relaxed) {
            let (store, generation) = (Arc::clone(self), Arc::clone(generation));
            self.background.spawn(generation.device(), move |runs| {
                if !runs {
                    return;
                }
                let map = store.headers.get_with(generation.identity(), || Arc::new(read_header(&generation)));
                // Nobody else sets it: `parsing` let only this one through.
                let _ = generation.tensors.set(map);
                store.fill_anticipated(&generation);
            });
        }
        None
    }
}

struct Source<'a>(&'a Generation);

impl Bytes for Source<'_> {
    fn size(&self) -> u64 {
        self.0.size
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> std::io::Result<()> {
        std::os::unix::fs::FileExt::read_exact_at(self.0.source.file(), buf, offset)
    }
}

pub(super) fn read_header(generation: &Generation) -> TensorMap {
    format::read(&Source(generation)).unwrap_or_else(|error| {
        // Its readers get its bytes all the same; only what belongs together is not known.
        tracing::warn!(inode = generation.identity().inode, %error, "a model file is not what it claims to be");
        TensorMap::opaque(generation.size)
    })
}
