//! The filesystem, without FUSE: what every operation does to the source, the store and the tables of nodes and
//! handles. The adapter (`fuse`) only translates.

mod attrs;
mod create;
mod data;
mod dirs;
mod lookup;
mod model;
mod namespace;
mod open;
mod restore;
mod stale;
mod steps;

use std::collections::HashMap;
use std::ffi::OsStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant, SystemTime};

use parking_lot::Mutex;
use rustix::fs::{AtFlags, FileType, Gid, Mode, OFlags, Stat, StatxFlags, Uid};
use rustix::io::Errno;
use weightfs::journal::StepState;
use weightfs::store::{Generation, Store};

use crate::aside::Aside;
use crate::attr::{SourceKey, Ttl, identity};
use crate::bounce::Bounced;
use crate::error::FsError;
use crate::follow::Follow;
use crate::handles::Handles;
use crate::invalidate::Expiry;
use crate::ledger::Ledger;
use crate::nodes::{Name, Node, Nodes, RESIDENT_BIT};
use crate::residents::Residents;
use crate::source::SourceRoot;
use crate::walk_ahead::WalkAhead;
use crate::watch::{self, Watcher};

pub use attrs::Change;
pub use dirs::DirectoryEntry;
pub use model::ModelFile;
pub use open::{OpenMode, OpenReply};

/// How long the kernel believes a name or attributes that nobody watches.
const UNWATCHED: Duration = Duration::from_millis(900);
/// And where the watcher would tell it of a change.
const WATCHED: Duration = Duration::from_secs(3600);

/// Who asks.
#[derive(Clone, Copy, Debug)]
pub struct Caller {
    pub uid: u32,
    pub gid: u32,
    /// The thread.
    pub thread: u32,
    /// The number of the request.
    pub unique: u64,
    /// An earlier worker had it already, and may have carried it out.
    pub resent: bool,
}

#[derive(Clone, Debug)]
pub struct FsOptions {
    pub open_wait: Duration,
    /// What `user.weightfs.control` answers.
    pub control_socket: PathBuf,
}

/// One mount.
pub struct Fs {
    root: Arc<SourceRoot>,
    nodes: Nodes,
    residents: Residents,
    bounced: Bounced,
    handles: Handles,
    store: Arc<Store>,
    options: FsOptions,
    follow: Option<Follow>,
    watcher: Option<Watcher>,
    aside: Aside,
    walk_ahead: WalkAhead,
    ledger: Ledger,
    /// Changes of names and opens that an earlier worker began, by the number of the request.
    steps: Mutex<HashMap<u64, StepState>>,
    opens: Mutex<HashMap<u64, u64>>,
    /// The kernel lets us open arena files in passthrough.
    passthrough: AtomicBool,
    started: Instant,
    watching_opens: OnceLock<OpenWatcher>,
    watching_writes: OnceLock<WriteWatcher>,
}

/// Told of every open of a model file, and how it is served. It must not wait.
pub type OpenWatcher = Box<dyn Fn(&Generation, &str) + Send + Sync>;

/// Told of every write to a file of which the kernel may keep pages under other numbers. It must not wait.
pub type WriteWatcher = Box<dyn Fn(u64) + Send + Sync>;

impl Fs {
    pub fn new(
        root: Arc<SourceRoot>,
        store: Arc<Store>,
        options: FsOptions,
        follow: Option<Follow>,
        watcher: Option<Watcher>,
        ledger: Ledger,
    ) -> std::io::Result<Self> {
        Ok(Self {
            aside: Aside::start()?,
            nodes: Nodes::new(Arc::clone(&root), ledger.clone()),
            root,
            residents: Residents::new(ledger.clone()),
            bounced: Bounced::new(ledger.clone()),
            handles: Handles::new(ledger.legacy.first_number()),
            ledger,
            steps: Mutex::default(),
            opens: Mutex::default(),
            store,
            options,
            follow,
            watcher,
            walk_ahead: WalkAhead::default(),
            passthrough: false.into(),
            started: Instant::now(),
            watching_opens: OnceLock::new(),
            watching_writes: OnceLock::new(),
        })
    }

    /// Who is told of opens; the first call counts.
    pub fn watch_opens(&self, watcher: OpenWatcher) {
        // There is one control interface for a mount.
        let _ = self.watching_opens.set(watcher);
    }

    /// As [`Fs::watch_opens`], of writes.
    pub fn watch_writes(&self, watcher: WriteWatcher) {
        let _ = self.watching_writes.set(watcher);
    }

    fn tell_open(&self, generation: &Generation, how: &str) {
        if let Some(watcher) = self.watching_opens.get() {
            watcher(generation, how);
        }
    }

    /// The folder behind the mount.
    pub fn source(&self) -> &SourceRoot {
        &self.root
    }

    /// Whether links that lead out are presented as what they point to.
    pub fn follows_links(&self) -> bool {
        self.follow.is_some()
    }

    /// Runs an operation on `node` that may wait for the source: here if that keeps nobody from being heard, else on
    /// another thread.
    pub fn run(self: &Arc<Self>, node: u64, operation: impl FnOnce(&Arc<Self>) + Send + 'static) {
        match self.aside.inline() {
            Some(_inline) => operation(self),
            None => self.run_aside(node, operation),
        }
    }

    /// As [`Fs::run`], for what is likely to wait.
    pub fn run_aside(self: &Arc<Self>, node: u64, operation: impl FnOnce(&Arc<Self>) + Send + 'static) {
        let device = self.device_of(node);
        let fs = Arc::clone(self);
        self.aside.run(device, move || operation(&fs));
    }

    /// The device of the source that `node` lies on.
    pub fn device_of(&self, node: u64) -> u64 {
        self.node(node).map_or(self.root.key().device, |node| node.key.device)
    }

    /// Returns when everything that may wait is done. What comes later is done by whoever asks.
    pub fn finish_writes(&self) {
        self.aside.finish();
    }

    /// The kernel agreed to passthrough, or it turned out that it does not work.
    pub fn set_passthrough(&self, works: bool) {
        self.passthrough.store(works, Ordering::Release);
    }

    pub fn has_passthrough(&self) -> bool {
        self.passthrough.load(Ordering::Acquire)
    }

    /// Whether a generation is opened under a number of its own: one that is whole. In passthrough it must be. Where the
    /// daemon serves it, the kernel drops all pages of a file at each mapping, unless it may keep them: that pays for what is
    /// mapped, while system calls are answered best without.
    fn is_numbered(&self, generation: &Generation) -> bool {
        generation.is_complete() && (self.has_passthrough() || self.store.expects_maps(generation))
    }

    /// Files and directories that clients have open.
    pub fn open_handles(&self) -> usize {
        self.handles.count()
    }

    /// Takes a generation that is no longer whole or current out of the lookups of its file, and returns what the kernel
    /// should look up again.
    pub fn residency_changed(&self, generation: &Arc<Generation>) -> Vec<Expiry> {
        let identity = generation.identity();
        let key = SourceKey { device: identity.device, inode: identity.inode };
        let Ok(node) = self.nodes.get(self.nodes.id_of(key)) else { return Vec::new() };
        if node.key != key {
            return Vec::new();
        }
        if !generation.is_complete() {
            self.residents.retire(&node.file, generation);
        }
        let entry = |name: Name| Expiry::Entry { directory: name.parent, name: name.name, gone: false };
        let mut expiries: Vec<_> = node.names().into_iter().map(entry).collect();
        if generation.is_dead() && !node.file.has_writers() {
            // Pages of a stream that is mapped, where nobody else has told of the change.
            expiries.push(Expiry::Node { id: node.id, pages: true });
        }
        if generation.is_dead() {
            expiries.extend(self.expire_kept(&node));
        }
        expiries
    }

    /// What the kernel keeps of the file `id` under resident numbers, which nothing tells it of when the file is written to
    /// by another.
    pub fn pages_of(&self, id: u64) -> Vec<Expiry> {
        self.node(id).map_or_else(|_| Vec::new(), |node| self.expire_kept(&node).collect())
    }

    fn expire_kept(&self, node: &Node) -> impl Iterator<Item = Expiry> + use<> {
        let numbers = self.residents.with_pages(&node.file, node.id);
        numbers.into_iter().map(|id| Expiry::Node { id, pages: true })
    }

    /// `node` was written to, through whatever number.
    fn written(&self, node: &Node) {
        if node.file.has_pages()
            && let Some(watcher) = self.watching_writes.get()
        {
            watcher(node.id);
        }
    }

    /// What the kernel believes and should not any more after a change.
    pub fn expiries(&self, change: watch::Change) -> Vec<Expiry> {
        match change {
            watch::Change::Entry { directory, name } => {
                let found = self.directory(directory).and_then(|parent| Ok(crate::source::stat_at(&parent, &name)?));
                let gone = is_gone(&found);
                let mut expiries = vec![Expiry::Entry { directory, name, gone }];
                // Whoever has it open asks by its number, not by its name.
                if let Ok(stat) = found
                    && let Ok(node) = self.nodes.get(self.nodes.id_of(SourceKey::of(&stat)))
                {
                    self.store.doubt(node.key.device, node.key.inode);
                    let pages = node.kind.is_file() && !node.file.has_writers();
                    expiries.push(Expiry::Node { id: node.id, pages });
                    expiries.extend(self.expire_kept(&node));
                }
                expiries
            }
            watch::Change::Directory(id) => vec![Expiry::Node { id, pages: true }],
            watch::Change::Everything => self.nodes.everything(),
        }
    }

    /// Whether nothing has this name any more.
    pub fn is_gone(&self, directory: u64, name: &OsStr) -> bool {
        is_gone(&self.directory(directory).and_then(|parent| Ok(crate::source::stat_at(&parent, name)?)))
    }

    /// The file's own node, whichever of its numbers is given.
    fn node(&self, id: u64) -> Result<Arc<Node>, FsError> {
        if id & RESIDENT_BIT == 0 {
            return self.nodes.get(id);
        }
        self.nodes.get(self.residents.get(id).ok_or(FsError::Stale)?.node)
    }

    /// A descriptor that names a node's file in the source, and its attributes.
    fn locate(&self, node: &Node) -> Result<(Located, Stat), FsError> {
        if let Some(fd) = node.kept() {
            let stat = rustix::fs::fstat(&*fd)?;
            return Ok((Located::Kept(fd), stat));
        }
        for (base, path) in self.nodes.paths(node) {
            let fd = match base.locate(&path) {
                Ok(fd) => fd,
                Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => continue,
                Err(error) => return Err(error.into()),
            };
            let stat = rustix::fs::fstat(&fd)?;
            if SourceKey::of(&stat) == node.key && FileType::from_raw_mode(stat.st_mode) == node.kind {
                return Ok((Located::Found(fd), stat));
            }
        }
        Err(FsError::Stale)
    }

    /// A directory, for operations on names in it.
    fn directory(&self, id: u64) -> Result<Located, FsError> {
        Ok(self.locate(&*self.node(id)?)?.0)
    }

    /// Opens a node's file with `flags` (an access mode and O_APPEND, O_TRUNC, O_DIRECTORY).
    fn open_source(&self, node: &Node, flags: OFlags) -> Result<std::fs::File, FsError> {
        let (located, _) = self.locate(node)?;
        Ok(crate::source::reopen(located.as_fd(), flags | OFlags::NOCTTY)?)
    }

    /// How long the kernel may believe what it is told of an entry of `parent`, which `stat` describes.
    fn ttl(&self, parent: &Node, stat: &Stat) -> Ttl {
        let watches = |id| self.watcher.as_ref().is_some_and(|watcher| watcher.watches(id));
        let entry = watches(parent.id);
        // A directory tells of its own changes itself. A file with other names may be changed by way of those.
        let attr = match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => watches(self.nodes.id_of(SourceKey::of(stat))),
            _ => entry && stat.st_nlink == 1,
        };
        let time = |watched| if watched { WATCHED } else { UNWATCHED };
        Ttl { entry: time(entry), attr: time(attr) }
    }

    /// Runs something that moves the change time of a file but leaves its bytes alone, and keeps what is resident of it.
    /// `sets_modified`: it also moves the time of modification, which shows else whether somebody has written meanwhile.
    /// Then nobody must be able to.
    fn keeping<R>(
        &self,
        fd: BorrowedFd<'_>,
        sets_modified: bool,
        operation: impl FnOnce() -> Result<R, FsError>,
    ) -> Result<R, FsError> {
        let now = || rustix::fs::fstat(fd).map(|stat| identity(&stat)).ok();
        let Some(generation) = now().and_then(|identity| self.store.find(&identity)) else { return operation() };
        generation.without_writers(|is_still| {
            let before = now();
            let result = operation()?;
            if let (Some(before), Some(after)) = (before, now())
                && (is_still || !sets_modified && after.modified == before.modified)
            {
                self.store.rebind(&before, after);
            }
            Ok(result)
        })
    }

    /// Gives something that was just made in `directory` to who made it.
    fn give(&self, directory: BorrowedFd<'_>, made: BorrowedFd<'_>, caller: &Caller) -> Result<(), FsError> {
        let stat = rustix::fs::fstat(made)?;
        let group_given = rustix::fs::fstat(directory)?.st_mode & 0o2000 != 0;
        let group = (!group_given && stat.st_gid != caller.gid).then(|| Gid::from_raw(caller.gid));
        let owner = (stat.st_uid != caller.uid).then(|| Uid::from_raw(caller.uid));
        if owner.is_none() && group.is_none() {
            return Ok(());
        }
        rustix::fs::chownat(made, "", owner, group, AtFlags::EMPTY_PATH)?;
        // A change of owner takes the set-id bits away that the maker asked for.
        if stat.st_mode & 0o6000 != 0 && !FileType::from_raw_mode(stat.st_mode).is_symlink() {
            let mode = Mode::from_raw_mode(stat.st_mode & 0o7777);
            rustix::fs::chmod(crate::source::proc_path(made), mode)?;
        }
        Ok(())
    }

    /// As [`Fs::give`], for what has no descriptor yet: by its name, which somebody may have given to something else in
    /// the meantime. Only what is ours and newer than `since` can be what was made.
    fn give_by_name(
        &self,
        directory: BorrowedFd<'_>,
        name: &OsStr,
        caller: &Caller,
        since: SystemTime,
    ) -> Result<(), FsError> {
        let made = crate::source::open_at(directory, name)?;
        let stat = rustix::fs::statx(&made, "", AtFlags::EMPTY_PATH, StatxFlags::BASIC_STATS | StatxFlags::BTIME)?;
        if caller.resent && stat.stx_uid == caller.uid {
            return Ok(());
        }
        let since = since.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs() as i64 - 1;
        let born =
            if stat.stx_mask & StatxFlags::BTIME.bits() != 0 { stat.stx_btime.tv_sec } else { stat.stx_ctime.tv_sec };
        if stat.stx_uid != rustix::process::geteuid().as_raw() || born < since {
            return Err(FsError::Stale);
        }
        self.give(directory, made.as_fd(), caller)
    }
}

/// Whether a name leads to nothing. That it cannot be looked at says nothing of that.
fn is_gone(found: &Result<Stat, FsError>) -> bool {
    matches!(found, Err(FsError::Source(Errno::NOENT | Errno::NOTDIR)))
}

/// The mode of something new, and what of it the caller's mask takes away.
#[derive(Clone, Copy, Debug)]
pub struct NewMode {
    pub mode: u32,
    pub mask: u32,
}

impl NewMode {
    /// In a directory with default access rights of its own, these stand in for the mask.
    fn within(self, directory: BorrowedFd<'_>) -> Mode {
        let path = crate::source::proc_path(directory);
        let has_default = rustix::fs::getxattr_query(&path, DEFAULT_ACL).is_ok_and(|length| length > 0);
        Mode::from_raw_mode(if has_default { self.mode } else { self.mode & !self.mask } & 0o7777)
    }
}

/// Where the access rights are kept that a directory gives to what is made in it.
const DEFAULT_ACL: &str = "system.posix_acl_default";

/// A descriptor of a file in the source.
enum Located {
    Kept(Arc<OwnedFd>),
    Found(OwnedFd),
}

impl AsFd for Located {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Located::Kept(fd) => fd.as_fd(),
            Located::Found(fd) => fd.as_fd(),
        }
    }
}
