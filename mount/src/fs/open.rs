//! Opening files: which way each open is served, and what the handle holds.

use std::os::fd::AsFd;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use rustix::fs::{FileType, OFlags};
use rustix::io::Errno;
use weightfs::fill::{Class, SourceFile};
use weightfs::journal::{HandleKind, Tally};
use weightfs::store::{ASSUMED_SPEED, Generation, Opened};

use super::{Caller, Fs};
use crate::attr::SourceKey;
use crate::bounce::Purpose;
use crate::error::FsError;
use crate::handles::{Content, OpenFile};
use crate::nodes::{Name, Node, RESIDENT_BIT};
use crate::open_mode::{Choice, Situation, decide};
use crate::residents::Resident;

/// What the kernel is to do with an open file.
#[derive(Clone, Debug)]
pub enum OpenMode {
    /// Ask the daemon for everything.
    Direct,
    /// Keep pages as usual, from this open on.
    Cached,
    /// Keep pages, and those from earlier opens too.
    Kept,
    /// Serve it out of this generation's arena file, under this resident number.
    Passthrough { resident: u64, generation: Arc<Generation> },
}

#[derive(Clone, Debug)]
pub struct OpenReply {
    pub handle: u64,
    pub mode: OpenMode,
}

/// What of an open's flags concerns the source. The rest is the kernel's business.
pub(super) const SOURCE_FLAGS: OFlags = OFlags::from_bits_retain(
    OFlags::RWMODE.bits() | OFlags::APPEND.bits() | OFlags::TRUNC.bits() | OFlags::SYNC.bits() | OFlags::DSYNC.bits(),
);

impl Fs {
    /// Opens a file; `reply` is called when it is open, which is later where the open waits for the file to become
    /// resident.
    pub fn open<R>(self: &Arc<Self>, id: u64, flags: OFlags, caller: &Caller, reply: R)
    where
        R: FnOnce(Result<OpenReply, FsError>) + Send + 'static,
    {
        if let Some(handle) = self.opened_before(caller) {
            return reply(self.answer_again(handle));
        }
        match self.try_open(id, flags, caller, true) {
            Ok(Begun::Ready(ready)) => reply(Ok(ready)),
            Ok(Begun::Wait(opened)) => {
                let (fs, caller) = (Arc::clone(self), *caller);
                let generation = Arc::clone(&opened.generation);
                let all = 0..weightfs::units::extent_count(generation.size);
                let waiting = Mutex::new(Some((reply, opened)));
                let then = Arc::new(move || {
                    // Called when the file is complete or when it has taken too long, whichever is first. Until then
                    // its content is kept in the store as that of an open file. It is opened from its source once more,
                    // for which neither the threads of timers nor those of fills must wait.
                    let waiting = waiting.lock().take();
                    if let Some((reply, opened)) = waiting {
                        fs.run_aside(id, move |fs| {
                            reply(fs.finish_open(id, flags, &caller));
                            drop(opened);
                        });
                    }
                });
                let late = Arc::clone(&then);
                self.store.after(self.options.open_wait, move || late());
                self.store.complete(&generation);
                self.store.when_settled(&generation, all, Class::OpenWait, move || then());
            }
            Err(error) => reply(Err(error)),
        }
    }

    fn finish_open(&self, id: u64, flags: OFlags, caller: &Caller) -> Result<OpenReply, FsError> {
        match self.try_open(id, flags, caller, false)? {
            Begun::Ready(ready) => Ok(ready),
            Begun::Wait(_) => unreachable!("an open waits once"),
        }
    }

    fn try_open(&self, id: u64, flags: OFlags, caller: &Caller, may_wait: bool) -> Result<Begun, FsError> {
        match self.open_now(id, flags, caller, may_wait) {
            Ok(Begun::Wait(opened)) => Ok(Begun::Wait(opened)),
            begun => self.last_of(id, caller, if writes(flags) { Purpose::Write } else { Purpose::Read }, begun),
        }
    }

    fn open_now(&self, id: u64, flags: OFlags, caller: &Caller, may_wait: bool) -> Result<Begun, FsError> {
        let node = self.node(id)?;
        if !node.kind.is_file() {
            return Err(Errno::IO.into());
        }
        let writes = writes(flags);
        let second_try = self.second_try(id, caller, writes);
        let resident = if id & RESIDENT_BIT != 0 { Some(self.residents.get(id).ok_or(FsError::Stale)?) } else { None };
        let mut names = node.names();
        let hold = self.names_hold(&node, &names);
        // Also those whose name led elsewhere when somebody else came by it: the kernel may not have heard yet. Whoever
        // comes by a descriptor comes again.
        let renamed = !hold || node.is_astray(&names, caller.thread != 0);
        let found = self.open_source(&node, flags & SOURCE_FLAGS & !OFlags::TRUNC).and_then(|file| {
            // What is open under the number may be another file, to which it was lent.
            let is_its_own = SourceKey::of(&rustix::fs::fstat(&file)?) == node.key;
            if is_its_own { Ok(file) } else { Err(FsError::Stale) }
        });
        let source = match found {
            // Replaced again since it was looked up for this very open. What its name leads to now is as right.
            Err(FsError::Stale) if second_try.is_some() => {
                // Who cannot be told from others may mean any of several names.
                if caller.thread == 0 && names.len() != 1 {
                    return Err(FsError::Stale);
                }
                if let Some(name) = self.bounced.name(caller.thread, id) {
                    names = vec![name];
                }
                node.lend();
                self.open_by_name(&names, flags)?
            }
            // Who cannot be bounced may have come by an old name, and is sent back all the same: what that leads to now must
            // not be opened under the number of a file that others may have open. Names that lead elsewhere are forgotten
            // by now, so that it is not sent back again.
            Ok(_) if renamed && caller.thread == 0 => return Err(FsError::Stale),
            file => file?,
        };
        let source = Arc::new(SourceFile::new(source));
        let opened = if writes || node.file.has_writers() { None } else { self.store.open(&source) };
        let situation = Situation {
            writes,
            renamed,
            bounced: second_try,
            ..self.situation(&node, resident.as_deref(), opened.as_ref(), may_wait)
        };
        let (choice, reason) = decide(&situation);
        tracing::debug!(node = id, ?choice, %reason, "open");
        let open = Open { node: &node, source, flags, caller };
        let ready = match choice {
            Choice::Bounce => return Err(FsError::Stale),
            Choice::Wait => {
                return Ok(Begun::Wait(opened.expect("only content that is kept is waited for")));
            }
            Choice::Stream => {
                // Who wants no open to wait wants nothing to be read for an open.
                let loads = situation.expected && situation.room && !self.options.open_wait.is_zero();
                self.open_stream(open, opened, loads)?
            }
            Choice::Keep => {
                let resident = resident.expect("only resident numbers are kept");
                self.open_kept(open, &resident, opened.expect("what is current is kept in the store"))?
            }
            Choice::Passthrough | Choice::Source => match resident {
                Some(resident) => self.open_resident(open, &resident, choice == Choice::Passthrough)?,
                None => self.open_from_source(open)?,
            },
        };
        Ok(Begun::Ready(ready))
    }

    /// What this caller was sent back for, if this is its second try. Threads that the kernel cannot name are not sent
    /// back, except from where there is no other way.
    fn second_try(&self, id: u64, caller: &Caller, writes: bool) -> Option<Purpose> {
        match caller.thread {
            0 if writes && id & RESIDENT_BIT != 0 => None,
            0 => Some(Purpose::Unknown),
            thread => self.bounced.second_try(thread, id),
        }
    }

    fn open_by_name(&self, names: &[Name], flags: OFlags) -> Result<std::fs::File, FsError> {
        for name in names.iter().rev() {
            let Ok(directory) = self.directory(name.parent) else { continue };
            let Ok(located) = crate::source::open_at(directory.as_fd(), &name.name) else { continue };
            if FileType::from_raw_mode(rustix::fs::fstat(&located)?.st_mode).is_file() {
                return Ok(crate::source::reopen(located.as_fd(), flags & SOURCE_FLAGS & !OFlags::TRUNC)?);
            }
        }
        Err(FsError::Stale)
    }

    /// Whether every name of a file leads to it still. Names that do not are forgotten.
    fn names_hold(&self, node: &Node, names: &[Name]) -> bool {
        let mut hold = true;
        for name in names {
            let leads_here = self
                .directory(name.parent)
                .ok()
                .and_then(|directory| self.look_at(directory.as_fd(), &name.name).ok())
                .is_some_and(|stat| SourceKey::of(&stat) == node.key);
            if !leads_here {
                node.goes_astray();
                node.remove_name(name.parent, &name.name);
                hold = false;
            }
        }
        hold
    }

    fn situation(
        &self,
        node: &Node,
        resident: Option<&Resident>,
        opened: Option<&Opened>,
        may_wait: bool,
    ) -> Situation {
        let generation = resident.map(|resident| &resident.generation).or(opened.map(|opened| &opened.generation));
        let missing = generation.map_or(0, |generation| generation.missing_bytes());
        let expected = may_wait && missing > 0 && opened.is_some_and(|opened| self.store.expects_load(opened));
        Situation {
            writes: false,
            passthrough: self.has_passthrough(),
            keeps: !self.has_passthrough() && resident.is_some_and(|resident| resident.is_usable(true)),
            renamed: false,
            resident_node: resident.is_some(),
            current: match (resident, opened) {
                (Some(resident), Some(opened)) => {
                    let kept = !self.has_passthrough();
                    Arc::ptr_eq(&resident.generation, &opened.generation) && resident.is_usable(kept)
                }
                _ => false,
            },
            complete: generation.is_some_and(|generation| generation.is_whole()),
            held: resident.is_some_and(|resident| resident.generation.is_held()),
            kept: opened.is_some(),
            written: node.file.has_writers(),
            bounced: None,
            expected,
            missing,
            room: expected && generation.is_some_and(|generation| self.store.fits(generation)),
            speed: generation.and_then(|generation| self.store.speed(generation)).unwrap_or(ASSUMED_SPEED),
            open_wait: self.options.open_wait,
        }
    }

    /// Opens a resident number: in passthrough if that is what was decided, or if others have it open so; the kernel
    /// allows no other way then.
    fn open_resident(&self, open: Open<'_>, resident: &Resident, decided: bool) -> Result<OpenReply, FsError> {
        let mut may_enter = decided;
        loop {
            if may_enter && let Some(held) = resident.enter(|| self.store.hold(&resident.generation)) {
                self.ledger.legacy.add(Tally::PassthroughOpens, 1);
                self.ledger.legacy.add(Tally::PassthroughBytes, resident.generation.size);
                self.tell_open(&resident.generation, "passthrough");
                let generation = Arc::clone(&resident.generation);
                let mode = OpenMode::Passthrough { resident: resident.id, generation };
                return Ok(OpenReply {
                    handle: self.add_file(open, Content::Passthrough { held, resident: resident.id })?,
                    mode,
                });
            }
            if resident.withdraw() {
                open.node.file.keeps_pages();
                self.residents.retire_number(&open.node.file, resident.id);
                return self.open_from_source(open);
            }
            if open.writes() {
                // Reopened by a descriptor of a snapshot, which is not to change.
                return Err(Errno::TXTBSY.into());
            }
            may_enter = true;
        }
    }

    /// Opens a resident number as a stream of which the kernel keeps pages.
    fn open_kept(&self, open: Open<'_>, resident: &Resident, opened: Opened) -> Result<OpenReply, FsError> {
        if !resident.keep() {
            // Somebody has opened it otherwise just now.
            return self.open_resident(open, resident, false);
        }
        open.node.file.keeps_pages();
        self.ledger.legacy.add(Tally::StreamOpens, 1);
        opened.begin_unseen();
        self.tell_open(&opened.generation, "stream");
        let content = Content::Stream(OnceLock::from(Arc::new(opened)));
        Ok(OpenReply { handle: self.add_file(open, content)?, mode: OpenMode::Kept })
    }

    /// `loads`: the whole file is expected to be loaded and there is room for it, but an open does not wait so long.
    fn open_stream(&self, open: Open<'_>, opened: Option<Opened>, loads: bool) -> Result<OpenReply, FsError> {
        self.ledger.legacy.add(Tally::StreamOpens, 1);
        let content = opened.map_or_else(OnceLock::new, |opened| {
            opened.begin();
            if loads {
                opened.anticipate();
            }
            self.tell_open(&opened.generation, "stream");
            OnceLock::from(Arc::new(opened))
        });
        Ok(OpenReply { handle: self.add_file(open, Content::Stream(content))?, mode: OpenMode::Direct })
    }

    pub(super) fn open_from_source(&self, open: Open<'_>) -> Result<OpenReply, FsError> {
        if open.writes() {
            if open.flags.contains(OFlags::TRUNC) {
                let only_reads = open.flags & OFlags::RWMODE == OFlags::RDONLY;
                // The kernel finds out that a program runs only after it has asked us, if nothing is to be written. What
                // may be one is left as it is.
                if only_reads && rustix::fs::fstat(open.source.file())?.st_mode & 0o111 != 0 {
                    return Err(Errno::TXTBSY.into());
                }
                self.store.invalidate(open.node.key.device, open.node.key.inode);
                if only_reads {
                    // Linux truncates for who only reads, too.
                    rustix::fs::ftruncate(crate::source::reopen(open.source.file().as_fd(), OFlags::WRONLY)?, 0)?;
                } else {
                    rustix::fs::ftruncate(open.source.file(), 0)?;
                }
                self.written(open.node);
            }
            return Ok(OpenReply {
                handle: self.add_file(open, Content::Source { cached: false })?,
                mode: OpenMode::Direct,
            });
        }
        let size = rustix::fs::fstat(open.source.file())?.st_size as u64;
        if size < weightfs::store::SMALLEST_MODEL && !open.node.file.has_writers() {
            return Ok(OpenReply {
                handle: self.add_file(open, Content::Source { cached: true })?,
                mode: OpenMode::Cached,
            });
        }
        // Large, but not settled yet: it may still become something to keep while it is open.
        self.open_stream(open, None, false)
    }

    fn add_file(&self, open: Open<'_>, content: Content) -> Result<u64, FsError> {
        let writable = open.writes();
        let Open { node, source, flags, caller } = open;
        let fd = source.file().as_fd();
        let handle = self.handles.number();
        let kind = kind_of(&content);
        node.opened(|| fd.try_clone_to_owned().map_err(|_| Errno::MFILE))?;
        self.note_open(handle, node.id, caller, kind, (flags & SOURCE_FLAGS).bits(), fd)
            .inspect_err(|_| node.closed())?;
        if writable {
            node.file.writer_came();
        }
        let (changed, looked) = (false.into(), AtomicU64::new(0));
        self.handles.add_file(handle, OpenFile { node: Arc::clone(node), source, content, writable, changed, looked });
        Ok(handle)
    }

    /// The answer to an open that an earlier worker has carried out.
    pub(super) fn answer_again(&self, handle: u64) -> Result<OpenReply, FsError> {
        let file = self.handles.file(handle)?;
        let mode = match &file.content {
            Content::Stream(_) | Content::Source { cached: false } => OpenMode::Direct,
            Content::Source { cached: true } => OpenMode::Cached,
            Content::Passthrough { held, resident } => {
                OpenMode::Passthrough { resident: *resident, generation: Arc::clone(held.generation()) }
            }
        };
        Ok(OpenReply { handle, mode })
    }

    /// Closes a file. Returns the resident number under which it was open in passthrough.
    pub fn release(&self, handle: u64) -> Option<u64> {
        let file = self.handles.file(handle).ok()?;
        if file.writable {
            file.node.file.writer_went();
            // Also those numbers that it might have written by.
            self.written(&file.node);
        }
        file.node.closed();
        self.handles.remove(handle);
        self.note_close(handle);
        match file.content {
            Content::Passthrough { resident, .. } => Some(resident),
            Content::Stream(_) | Content::Source { .. } => None,
        }
    }
}

enum Begun {
    Ready(OpenReply),
    Wait(Opened),
}

pub(super) struct Open<'a> {
    pub node: &'a Arc<Node>,
    pub source: Arc<SourceFile>,
    pub flags: OFlags,
    pub caller: &'a Caller,
}

impl Open<'_> {
    fn writes(&self) -> bool {
        writes(self.flags)
    }
}

fn writes(flags: OFlags) -> bool {
    flags.intersects(OFlags::WRONLY | OFlags::RDWR | OFlags::TRUNC)
}

fn kind_of(content: &Content) -> HandleKind {
    match content {
        Content::Stream(opened) => HandleKind::Stream(opened.get().map(|opened| opened.generation.id)),
        Content::Source { cached } => HandleKind::Source { cached: *cached },
        Content::Passthrough { held, resident } => {
            HandleKind::Passthrough { resident: *resident, generation: held.generation().id }
        }
    }
}
