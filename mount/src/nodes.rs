//! The files that the kernel knows: node numbers, and how to find each of them in the source again.
//!
//! A node's number is the inode number of its source wherever that fits, so that it stays the same across mounts and
//! workers without being written down. Numbers with the top bit set belong to resident generations (see `residents`).

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::ffi::{OsStr, OsString};
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, RwLock};
use rustix::fs::FileType;
use rustix::io::Errno;
use weightfs::failpoint;
use weightfs::journal::{NodeState, Record};

use crate::attr::SourceKey;
use crate::error::FsError;
use crate::invalidate::Expiry;
use crate::ledger::{Ledger, Lookups};
use crate::residents::FileState;
use crate::source::SourceRoot;

pub const ROOT: u64 = 1;
/// Set in the numbers of resident generations.
pub const RESIDENT_BIT: u64 = 1 << 63;
/// Source inode numbers below this are node numbers as they are.
const PLAIN_LIMIT: u64 = 1 << 48;

/// Longer than the kernel believes a name that has changed behind the mount: it is told, or asks again within a second.
const BELIEVED: Duration = Duration::from_secs(10);

/// A directory entry under which a node was seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Name {
    pub parent: u64,
    pub name: OsString,
}

/// Where a chain of names ends: the root of the mount, or what a followed link points to.
#[derive(Clone, Debug)]
pub struct Origin {
    pub base: Base,
    pub path: PathBuf,
}

/// A directory, which is opened when it is needed: an earlier worker knew it, and it may not answer.
#[derive(Clone, Debug)]
pub enum Base {
    Open(Arc<SourceRoot>),
    Named(Arc<(PathBuf, OnceLock<Arc<SourceRoot>>)>),
}

impl Base {
    fn named(path: PathBuf) -> Self {
        Base::Named(Arc::new((path, OnceLock::new())))
    }

    /// None where it has gone meanwhile.
    pub fn root(&self) -> Option<Arc<SourceRoot>> {
        match self {
            Base::Open(root) => Some(Arc::clone(root)),
            Base::Named(named) => {
                let (path, root) = &**named;
                // It may come back, where it is not there now.
                let open = || SourceRoot::open_plain(path).ok().map(Arc::new);
                root.get().cloned().or_else(|| open().map(|opened| Arc::clone(root.get_or_init(|| opened))))
            }
        }
    }

    fn path(&self) -> Option<PathBuf> {
        match self {
            Base::Open(root) => std::fs::read_link(crate::source::proc_path(root.as_fd())).ok(),
            Base::Named(named) => Some(named.0.clone()),
        }
    }
}

#[derive(Debug)]
pub struct Node {
    pub id: u64,
    pub key: SourceKey,
    pub kind: FileType,
    /// The latest way by which it was found, where it is not found by its names.
    origin: Mutex<Option<Origin>>,
    names: Mutex<Vec<Name>>,
    /// When a name was forgotten here because it leads elsewhere: for the kernel it may still lead here.
    astray: Mutex<Option<Instant>>,
    /// How many lookups the kernel has not yet forgotten.
    lookups: Lookups,
    ledger: Ledger,
    /// Another file is open under this number. The number is no longer given to whichever file has it in the source.
    lent: AtomicBool,
    /// A descriptor while the file is open: an open file needs no name.
    kept: Mutex<Kept>,
    /// What only regular files have.
    pub file: FileState,
}

#[derive(Debug, Default)]
struct Kept {
    opens: usize,
    fd: Option<Arc<OwnedFd>>,
}

impl Node {
    fn new(id: u64, key: SourceKey, kind: FileType, origin: Option<Origin>, lookups: Lookups, ledger: Ledger) -> Self {
        Self {
            id,
            key,
            kind,
            origin: Mutex::new(origin),
            names: Mutex::default(),
            astray: Mutex::default(),
            lent: false.into(),
            lookups,
            ledger,
            kept: Mutex::default(),
            file: FileState::default(),
        }
    }

    fn origin(&self) -> Option<Origin> {
        self.origin.lock().clone()
    }

    /// The names under which the node was seen last, the most recent one at the end.
    pub fn names(&self) -> Vec<Name> {
        self.names.lock().clone()
    }

    pub fn add_name(&self, parent: u64, name: &OsStr) {
        let mut names = self.names.lock();
        if names.last().is_some_and(|last| last.parent == parent && last.name == name) {
            return;
        }
        names.retain(|known| known.parent != parent || known.name != name);
        names.push(Name { parent, name: name.to_owned() });
        let (mount, id) = (self.ledger.mount, self.id);
        self.ledger.note(&Record::Name { mount, id, name: (parent, name.as_bytes()) });
    }

    /// A name of it is about to be forgotten although the kernel may still come by it.
    pub fn goes_astray(&self) {
        *self.astray.lock() = Some(Instant::now());
    }

    /// Whether who opens it may have come by a name that leads elsewhere, although none of `names` does. Of those who
    /// can be told from others, everybody may who comes to a file without a name.
    pub fn is_astray(&self, names: &[Name], is_told: bool) -> bool {
        let astray = || self.astray.lock().is_some_and(|at| at.elapsed() < BELIEVED);
        if is_told { names.is_empty() || astray() } else { names.is_empty() && astray() }
    }

    pub fn remove_name(&self, parent: u64, name: &OsStr) {
        let mut names = self.names.lock();
        let before = names.len();
        names.retain(|known| known.parent != parent || known.name != name);
        if names.len() < before {
            let (mount, id) = (self.ledger.mount, self.id);
            self.ledger.note(&Record::NameGone { mount, id, name: (parent, name.as_bytes()) });
        }
    }

    /// The kernel is about to hear of this node: it is noted with its names, in a counter of its own.
    fn note(&self) -> Result<(), Errno> {
        let (slot, is_new) = self.lookups.slot(&self.ledger)?;
        if !is_new {
            return Ok(());
        }
        let names = self.names.lock();
        let (mount, id) = (self.ledger.mount, self.id);
        let key = (self.key.device, self.key.inode);
        let origin = self.origin();
        let base = origin.as_ref().and_then(|origin| origin.base.path().zip(Some(origin.path.as_os_str())));
        let origin = base.as_ref().map(|(base, path)| (base.as_os_str().as_bytes(), path.as_bytes()));
        let kind = self.kind.as_raw_mode();
        let name = names.first().map(|name| (name.parent, name.name.as_bytes()));
        self.ledger.note(&Record::Node { mount, id, key, kind, slot, origin, name });
        for name in names.iter().skip(1) {
            self.ledger.note(&Record::Name { mount, id, name: (name.parent, name.name.as_bytes()) });
        }
        Ok(())
    }

    /// Remembers a descriptor of the file while somebody has it open: `fd`, or the one of who has opened it before.
    pub fn opened(&self, fd: impl FnOnce() -> Result<OwnedFd, Errno>) -> Result<Arc<OwnedFd>, Errno> {
        let mut kept = self.kept.lock();
        let remembered = match &kept.fd {
            Some(fd) => Arc::clone(fd),
            None => Arc::clone(kept.fd.insert(Arc::new(fd()?))),
        };
        kept.opens += 1;
        Ok(remembered)
    }

    pub fn closed(&self) {
        let mut kept = self.kept.lock();
        kept.opens = kept.opens.saturating_sub(1);
        if kept.opens == 0 {
            kept.fd = None;
        }
    }

    /// Another file is about to be opened under this number.
    pub fn lend(&self) {
        self.lent.store(true, Ordering::Release);
    }

    /// The descriptor of an open file.
    pub fn kept(&self) -> Option<Arc<OwnedFd>> {
        self.kept.lock().fd.clone()
    }
}

/// A file that stays at hand while this lives, whatever becomes of its names: neither is its number given to another.
#[derive(Debug)]
pub struct AtHand(Arc<Node>);

impl AtHand {
    pub fn new(node: Arc<Node>, fd: OwnedFd) -> Result<Self, Errno> {
        node.opened(|| Ok(fd))?;
        Ok(Self(node))
    }
}

impl Drop for AtHand {
    fn drop(&mut self) {
        self.0.closed();
    }
}

#[derive(Debug)]
pub struct Nodes {
    root_device: u64,
    ledger: Ledger,
    by_id: RwLock<HashMap<u64, Arc<Node>>>,
}

impl Nodes {
    pub fn new(root: Arc<SourceRoot>, ledger: Ledger) -> Self {
        let key = root.key();
        let origin = Origin { base: Base::Open(root), path: PathBuf::new() };
        let (lookups, its) = (Lookups::none(), ledger.clone());
        let node = Arc::new(Node::new(ROOT, key, FileType::Directory, Some(origin), lookups, its));
        Self { root_device: key.device, ledger, by_id: RwLock::new(HashMap::from([(ROOT, node)])) }
    }

    /// A node that an earlier worker has told the kernel of. What the kernel has not heard of is not restored.
    pub fn restore(&self, id: u64, state: NodeState) {
        let lookups = Lookups::in_slot(state.slot);
        if lookups.count(&self.ledger) == 0 {
            self.ledger.note(&Record::NodeGone { mount: self.ledger.mount, id });
            return lookups.release(&self.ledger);
        }
        let origin = state.origin.map(|(base, path)| {
            let [base, path] = [base, path].map(|bytes| PathBuf::from(OsString::from_vec(bytes)));
            Origin { base: Base::named(base), path }
        });
        let key = SourceKey { device: state.key.0, inode: state.key.1 };
        let kind = FileType::from_raw_mode(state.kind);
        let node = Node::new(id, key, kind, origin, lookups, self.ledger.clone());
        let names = state.names.into_iter();
        *node.names.lock() = names.map(|(parent, name)| Name { parent, name: OsString::from_vec(name) }).collect();
        self.by_id.write().insert(id, Arc::new(node));
    }

    /// # Errors
    /// `Stale` for a number that is not known.
    pub fn get(&self, id: u64) -> Result<Arc<Node>, FsError> {
        self.by_id.read().get(&id).cloned().ok_or(FsError::Stale)
    }

    /// The number of the node of a source file, whether it is known or not.
    pub fn id_of(&self, key: SourceKey) -> u64 {
        Self::id_in(&self.by_id.read(), self.root_device, key)
    }

    fn id_in(known: &HashMap<u64, Arc<Node>>, root_device: u64, key: SourceKey) -> u64 {
        let free = |id: u64| {
            id > ROOT && known.get(&id).is_none_or(|node| node.key == key && !node.lent.load(Ordering::Acquire))
        };
        if known[&ROOT].key == key {
            return ROOT;
        }
        if key.device == root_device && key.inode < PLAIN_LIMIT && free(key.inode) {
            return key.inode;
        }
        // Another file system below the root, or unusual numbers: a number above all plain ones, made from both.
        let hash = BuildHasherDefault::<DefaultHasher>::default().hash_one(key);
        let mut id = hash & !RESIDENT_BIT | PLAIN_LIMIT;
        while !free(id) {
            id = id.wrapping_add(1) & !RESIDENT_BIT | PLAIN_LIMIT;
        }
        id
    }

    /// The node of a source file, made if it is new, with one more lookup by the kernel. Until that is forgotten there is
    /// no other under its number.
    pub fn found(
        &self,
        key: SourceKey,
        kind: FileType,
        name: Option<(u64, &OsStr)>,
        origin: Option<Origin>,
    ) -> Result<Arc<Node>, Errno> {
        let node = {
            let mut by_id = self.by_id.write();
            let id = Self::id_in(&by_id, self.root_device, key);
            let first = name.map(|(parent, name)| Name { parent, name: name.to_owned() });
            let node = match by_id.entry(id) {
                // An inode number that was given to another kind of file: the old one is gone.
                Entry::Occupied(mut known) if known.get().kind != kind => {
                    let new = Node::new(id, key, kind, origin, Lookups::none(), self.ledger.clone());
                    // The kernel forgets both by this number.
                    let lookups = known.get().lookups.count(&self.ledger);
                    new.names.lock().extend(first);
                    new.note()?;
                    (0..lookups).for_each(|_| new.lookups.add(&self.ledger));
                    known.get().lookups.release(&self.ledger);
                    known.insert(Arc::new(new));
                    Arc::clone(known.get())
                }
                Entry::Occupied(known) => {
                    // A link may lead to where it has moved, or the file has come into the source itself.
                    if id != ROOT {
                        *known.get().origin.lock() = origin;
                    }
                    Arc::clone(known.get())
                }
                Entry::Vacant(vacant) => {
                    let new = Node::new(id, key, kind, origin, Lookups::none(), self.ledger.clone());
                    new.names.lock().extend(first);
                    Arc::clone(vacant.insert(Arc::new(new)))
                }
            };
            node.note()?;
            node.lookups.add(&self.ledger);
            node
        };
        failpoint::pass("lookup.noted");
        if let Some((parent, name)) = name {
            node.add_name(parent, name);
        }
        Ok(node)
    }

    /// The kernel has forgotten `lookups` of a node.
    pub fn forget(&self, id: u64, lookups: u64) {
        if id == ROOT {
            return;
        }
        let mut by_id = self.by_id.write();
        let Some(node) = by_id.get(&id) else { return };
        if node.lookups.forget(&self.ledger, lookups) {
            self.ledger.note(&Record::NodeGone { mount: self.ledger.mount, id });
            node.lookups.release(&self.ledger);
            by_id.remove(&id);
        }
    }

    /// All that the kernel may believe of any node.
    pub fn everything(&self) -> Vec<Expiry> {
        let by_id = self.by_id.read();
        let mut expiries = Vec::new();
        for node in by_id.values() {
            expiries.push(Expiry::Node { id: node.id, pages: true });
            let names = node.names().into_iter();
            expiries.extend(names.map(|Name { parent, name }| Expiry::Entry { directory: parent, name, gone: false }));
        }
        expiries
    }

    /// The paths at which a node may be found, the likeliest first, each beneath its base.
    pub fn paths(&self, node: &Node) -> Vec<(Arc<SourceRoot>, PathBuf)> {
        let own = node.origin().map(|Origin { base, path }| (base, path));
        let named = node.names().into_iter().rev().filter_map(|name| self.path_of(name));
        own.into_iter().chain(named).filter_map(|(base, path)| Some((base.root()?, path))).collect()
    }

    fn path_of(&self, name: Name) -> Option<(Base, PathBuf)> {
        let by_id = self.by_id.read();
        let mut reversed = vec![name.name];
        let mut parent = by_id.get(&name.parent)?;
        // Deeper than the kernel allows paths to be: names that contradict each other.
        for _ in 0..2048 {
            if let Some(Origin { base, mut path }) = parent.origin() {
                path.extend(reversed.iter().rev());
                return Some((base, path));
            }
            let next = parent.names.lock().last().cloned()?;
            reversed.push(next.name);
            parent = by_id.get(&next.parent)?;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn nodes() -> (Nodes, SourceKey) {
        let root = SourceRoot::open(Path::new("/")).unwrap();
        let key = root.key();
        (Nodes::new(Arc::new(root), Ledger::of_nobody()), key)
    }

    fn seen(nodes: &Nodes, key: SourceKey, kind: FileType, parent: u64, name: &str) -> Arc<Node> {
        nodes.found(key, kind, Some((parent, OsStr::new(name))), None).unwrap()
    }

    #[test]
    fn numbers_are_the_sources_own_where_they_can_be() {
        let (nodes, root) = nodes();
        let here = SourceKey { device: root.device, inode: 4711 };
        assert_eq!(seen(&nodes, here, FileType::RegularFile, ROOT, "a").id, 4711);
        let elsewhere = SourceKey { device: root.device + 1, inode: 4711 };
        let other = seen(&nodes, elsewhere, FileType::RegularFile, ROOT, "b");
        assert!(other.id >= PLAIN_LIMIT && other.id & RESIDENT_BIT == 0);
        assert_eq!(nodes.id_of(elsewhere), other.id);
        let unlucky = SourceKey { device: root.device, inode: ROOT };
        assert!(seen(&nodes, unlucky, FileType::RegularFile, ROOT, "c").id >= PLAIN_LIMIT);
    }

    #[test]
    fn a_node_is_found_under_its_last_name_first() {
        let (nodes, root) = nodes();
        let directory = SourceKey { device: root.device, inode: 1000 };
        let file = SourceKey { device: root.device, inode: 1001 };
        seen(&nodes, directory, FileType::Directory, ROOT, "dir");
        let node = seen(&nodes, file, FileType::RegularFile, 1000, "x");
        seen(&nodes, file, FileType::RegularFile, ROOT, "y");
        let paths: Vec<_> = nodes.paths(&node).into_iter().map(|(_, path)| path).collect();
        assert_eq!(paths, [PathBuf::from("y"), PathBuf::from("dir/x")]);
        node.remove_name(ROOT, OsStr::new("y"));
        assert_eq!(nodes.paths(&node).len(), 1);
    }

    #[test]
    fn a_node_goes_with_its_last_lookup() {
        let (nodes, root) = nodes();
        let key = SourceKey { device: root.device, inode: 1001 };
        seen(&nodes, key, FileType::RegularFile, ROOT, "x");
        seen(&nodes, key, FileType::RegularFile, ROOT, "x");
        nodes.forget(1001, 1);
        assert!(nodes.get(1001).is_ok());
        nodes.forget(1001, 1);
        assert!(matches!(nodes.get(1001), Err(FsError::Stale)));
        nodes.forget(ROOT, 99);
        assert!(nodes.get(ROOT).is_ok());
    }

    #[test]
    fn what_was_found_is_known_until_it_is_forgotten() {
        let (nodes, root) = nodes();
        let key = SourceKey { device: root.device, inode: 1001 };
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..20_000 {
                        let name = Some((ROOT, OsStr::new("x")));
                        let found = nodes.found(key, FileType::RegularFile, name, None).unwrap();
                        assert!(nodes.get(1001).is_ok_and(|known| Arc::ptr_eq(&known, &found)));
                        nodes.forget(1001, 1);
                    }
                });
            }
        });
        assert!(matches!(nodes.get(1001), Err(FsError::Stale)));
    }

    #[test]
    fn names_in_a_circle_lead_nowhere() {
        let (nodes, root) = nodes();
        let a = SourceKey { device: root.device, inode: 1000 };
        let b = SourceKey { device: root.device, inode: 1001 };
        seen(&nodes, a, FileType::Directory, 1001, "a");
        let node = seen(&nodes, b, FileType::Directory, 1000, "b");
        assert!(nodes.paths(&node).is_empty());
    }
}
