//! A mount beside a plain folder: do the same to both, expect the same.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::fs::{self, File};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use tempfile::TempDir;

use crate::mount::Mount;
use crate::system::temporary_folder;

/// Whole contents are compared up to this size; of larger files only the size is.
const COMPARED_WHOLE: u64 = 64 << 20;

/// A mount whose source started empty, and an empty plain folder on the same file system.
pub struct Pair {
    // Before the folders: it must be gone before they go.
    mount: Mount,
    plain: TempDir,
    source: TempDir,
    /// The way to the source that no mount can cover, kept by a descriptor that was opened before.
    behind: PathBuf,
    _behind: File,
}

impl Pair {
    pub fn new(options: &[&str]) -> Pair {
        Pair::start(|source| Mount::start(source, options))
    }

    /// With the mount over its own source.
    pub fn over(options: &[&str]) -> Pair {
        Pair::start(|source| Mount::over(source, options))
    }

    fn start(mount: impl Fn(&Path) -> Mount) -> Pair {
        let source = temporary_folder("source");
        let plain = temporary_folder("plain");
        let open = File::open(source.path()).expect("open the source");
        let behind = PathBuf::from(format!("/proc/self/fd/{}", open.as_raw_fd()));
        let mount = mount(source.path());
        Pair { mount, plain, source, behind, _behind: open }
    }

    pub fn mount(&self) -> &Mount {
        &self.mount
    }

    /// The folder behind the mount.
    pub fn source(&self) -> &Path {
        &self.behind
    }

    /// The folder to compare with.
    pub fn plain(&self) -> &Path {
        self.plain.path()
    }

    /// Does `act` in the plain folder and in the mount, and returns what both gave.
    ///
    /// # Panics
    /// If they differ.
    pub fn same<T: PartialEq + Debug>(&self, what: &str, act: impl Fn(&Path) -> T) -> T {
        let expected = act(self.plain());
        let found = act(self.mount.path());
        assert!(expected == found, "{what}: the mount gave {found:?}, a plain folder {expected:?}");
        expected
    }

    /// Does `act` in the plain folder and in the mount, where it must succeed and give the same.
    ///
    /// # Panics
    /// If it fails, or gives two things.
    pub fn both<T: PartialEq + Debug, E: PartialEq + Debug>(&self, what: &str, act: impl Fn(&Path) -> Result<T, E>) {
        if let Err(error) = self.same(what, act) {
            panic!("{what} fails in the mount and in a plain folder: {error:?}");
        }
    }

    /// That the plain folder, the mount and the source behind it hold the same.
    ///
    /// # Panics
    /// With the first difference.
    pub fn check_trees(&self, after: &str) {
        let expected = tree(self.plain());
        for (name, root) in [("mount", self.mount.path()), ("source", self.source())] {
            let found = tree(root);
            for path in expected.keys().chain(found.keys()) {
                let (a, b) = (expected.get(path), found.get(path));
                assert!(
                    a == b,
                    "after {after}: {} is {b:?} in the {name} and {a:?} in the plain folder",
                    path.display()
                );
            }
        }
    }

    /// Unmounts, for tests that did nothing to the plain folder.
    pub fn unmount(self) {
        self.mount.stop();
    }

    /// Unmounts and checks that nothing is left but the source, with all that was done to it.
    pub fn stop(self) {
        self.mount.stop();
        assert!(tree(self.plain.path()) == tree(self.source.path()), "the source is not what was made of it");
    }
}

/// What one name in a tree is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    kind: char,
    mode: u32,
    owner: (u32, u32),
    links: u64,
    /// Bytes; 0 for folders, whose size is the file system's own affair.
    size: u64,
    /// Of the bytes of a file or the target of a link.
    content: u64,
}

/// Everything below `root`, without following links.
pub fn tree(root: &Path) -> BTreeMap<PathBuf, Node> {
    let mut nodes = BTreeMap::new();
    let mut folders = vec![root.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap_or_else(|error| panic!("list {}: {error}", folder.display())) {
            let path = entry.expect("a directory entry").path();
            let found = fs::symlink_metadata(&path).unwrap_or_else(|error| panic!("stat {}: {error}", path.display()));
            let kind = found.file_type();
            let mut hash = DefaultHasher::new();
            let letter = match () {
                () if kind.is_dir() => 'd',
                () if kind.is_symlink() => 'l',
                () if kind.is_fifo() => 'p',
                () if kind.is_file() => 'f',
                () => '?',
            };
            match letter {
                'd' => folders.push(path.clone()),
                'l' => fs::read_link(&path).expect("read a link").hash(&mut hash),
                'f' if found.len() <= COMPARED_WHOLE => fs::read(&path).expect("read a file").hash(&mut hash),
                _ => {}
            }
            let node = Node {
                kind: letter,
                mode: found.mode() & 0o7777,
                owner: (found.uid(), found.gid()),
                links: found.nlink(),
                size: if letter == 'd' { 0 } else { found.len() },
                content: hash.finish(),
            };
            nodes.insert(path.strip_prefix(root).expect("below the root").to_owned(), node);
        }
    }
    nodes
}

/// An I/O result that can be compared: the errno instead of the error.
///
/// # Errors
/// The errno of `result`.
pub fn outcome<T>(result: io::Result<T>) -> Result<T, Errno> {
    result
        .map_err(|error| Errno::from_io_error(&error).unwrap_or_else(|| panic!("not an error of the kernel: {error}")))
}
