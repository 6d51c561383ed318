//! Takes over what an earlier worker has told the kernel of.

use std::collections::{BTreeSet, HashMap};
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use rustix::fs::{AtFlags, OFlags, StatxFlags};
use weightfs::failpoint;
use weightfs::fill::SourceFile;
use weightfs::journal::{HandleKind, HandleState, MountState};

use super::Fs;
use crate::attr::SourceKey;
use crate::backing::Backings;
use crate::error::FsError;
use crate::handles::{Content, OpenDirectory, OpenFile};
use crate::source::birth;

impl Fs {
    /// Restores nodes, handles and what was under way. `parked` has the descriptor of every handle. What cannot be
    /// restored is spoken of in the log, and gives an error to whoever uses it.
    pub fn restore(self: &Arc<Self>, state: MountState, mut parked: HashMap<u64, OwnedFd>, backings: &Backings) {
        for (id, node) in state.nodes {
            self.nodes.restore(id, node);
        }
        let mut users: HashMap<u64, BTreeSet<u64>> = HashMap::new();
        for (handle, opened) in &state.handles {
            if let HandleKind::Passthrough { resident, .. } = opened.kind {
                users.entry(resident).or_default().insert(*handle);
            }
        }
        for (id, resident) in state.residents {
            // Without its generation nobody has it open, and the kernel looks the name up again.
            if !resident.gone
                && let Ok(node) = self.nodes.get(resident.node)
                && let Some(generation) = self.store.by_id(resident.generation)
            {
                self.residents.restore(
                    id,
                    &node.file,
                    resident.node,
                    resident.slot,
                    &generation,
                    users.contains_key(&id),
                );
            }
            if let Some(number) = resident.backing {
                backings.restore(id, number, users.remove(&id).unwrap_or_default());
            }
        }
        for (thread, ((device, inode), writes)) in state.bounced {
            self.bounced.restore(thread, SourceKey { device, inode }, writes);
        }
        *self.steps.lock() = state.steps.into_iter().collect();
        for (handle, opened) in state.handles {
            let descriptor = parked.remove(&handle).map_or_else(|| self.find_again(handle, &opened), Ok);
            let restored = descriptor.and_then(|descriptor| self.restore_handle(handle, &opened, descriptor));
            if let Err(error) = restored {
                tracing::error!(%error, handle, ?opened, "an open file cannot be taken over");
                if let HandleKind::Passthrough { resident, .. } = opened.kind {
                    backings.release(resident, handle);
                }
                // From now on, and also from later workers, its client gets an error.
                self.note_close(handle);
            }
            failpoint::pass("takeover.handle");
        }
        // What was parked and not noted was never told to anyone.
        parked.keys().for_each(|handle| self.ledger.unpark(*handle));
    }

    /// Opens the file of a handle anew. Its descriptor was with the supervisor, which has died as well.
    fn find_again(&self, handle: u64, opened: &HandleState) -> Result<OwnedFd, FsError> {
        let flags = OFlags::from_bits_retain(opened.flags) & !OFlags::TRUNC;
        let generation = match opened.kind {
            HandleKind::Passthrough { generation, .. } => Some(generation),
            HandleKind::Stream(generation) => generation,
            HandleKind::Directory | HandleKind::Source { .. } => None,
        };
        let descriptor = match generation.and_then(|generation| self.store.by_id(generation)) {
            // The very file, whatever has become of its name.
            Some(generation) => generation.source.file().try_clone()?.into(),
            None => {
                let is_directory = opened.kind == HandleKind::Directory;
                let flags = if is_directory { OFlags::DIRECTORY } else { flags };
                let found = OwnedFd::from(self.open_source(&*self.node(opened.node)?, flags)?);
                // Meanwhile nobody had it open: its number may be that of another file by now.
                if !is_directory && (opened.born.is_none() || birth(found.as_fd()) != opened.born) {
                    return Err(FsError::BadHandle);
                }
                found
            }
        };
        self.ledger.park(handle, descriptor.as_fd())?;
        Ok(descriptor)
    }

    fn restore_handle(self: &Arc<Self>, handle: u64, opened: &HandleState, descriptor: OwnedFd) -> Result<(), FsError> {
        let node = self.nodes.get(opened.node)?;
        let keep = |descriptor: OwnedFd| {
            let file = node.opened(|| Ok(descriptor))?;
            self.opens.lock().insert(opened.unique, handle);
            Ok::<_, FsError>(file)
        };
        if opened.kind == HandleKind::Directory {
            let file = keep(descriptor)?;
            self.handles.add_directory(handle, OpenDirectory { node, file, entries: Mutex::default() });
            return Ok(());
        }
        if unasked_key(descriptor.as_fd()).is_some_and(|key| key != node.key) {
            node.lend();
        }
        let flags = OFlags::from_bits_retain(opened.flags);
        let writable = flags.intersects(OFlags::WRONLY | OFlags::RDWR | OFlags::TRUNC);
        let content = match opened.kind {
            HandleKind::Passthrough { resident, generation } => match self.store.hold_again(generation) {
                Some(held) => Content::Passthrough { held, resident },
                None => return Err(FsError::BadHandle),
            },
            HandleKind::Stream(generation) => {
                let opened = generation.and_then(|generation| self.store.open_again(generation));
                Content::Stream(opened.map_or_else(OnceLock::new, |opened| {
                    opened.begin();
                    OnceLock::from(Arc::new(opened))
                }))
            }
            HandleKind::Source { cached } => Content::Source { cached },
            HandleKind::Directory => unreachable!("handled above"),
        };
        keep(descriptor.try_clone().map_err(|_| rustix::io::Errno::MFILE)?)?;
        // The source may not answer.
        let source = Arc::new(SourceFile::unasked(File::from(descriptor)));
        let unasked = Arc::clone(&source);
        self.run_aside(node.id, move |_| unasked.open_directly());
        if writable {
            node.file.writer_came();
        }
        let (changed, looked) = (false.into(), AtomicU64::new(0));
        self.handles.add_file(handle, OpenFile { node, source, content, writable, changed, looked });
        Ok(())
    }
}

/// Which file a descriptor has open, as far as is known here: its source may not answer.
fn unasked_key(descriptor: BorrowedFd<'_>) -> Option<SourceKey> {
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let stat = rustix::fs::statx(descriptor, "", flags, StatxFlags::INO).ok()?;
    let device = rustix::fs::makedev(stat.stx_dev_major, stat.stx_dev_minor);
    Some(SourceKey { device, inode: stat.stx_ino })
}
