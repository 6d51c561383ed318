//! Links that lead out of the source, presented as what they point to, if their owner may be trusted.
//!
//! A link is followed one component at a time, so that every link on the way is seen: each must belong to root or to the
//! daemon's user, and none may lead into a mount of this daemon, which would ask itself.

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::os::fd::BorrowedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{AtFlags, CWD, FileType, Stat};

use crate::attr::SourceKey;
use crate::nodes::{Base, Origin};
use crate::source::SourceRoot;

/// As many links as the kernel follows.
const MOST_LINKS: usize = 40;

#[derive(Debug)]
pub struct Follow {
    user: u32,
    /// Where this daemon's sources and mounts are: nothing under these is outside.
    inside: Vec<PathBuf>,
}

impl Follow {
    /// `inside` are the absolute paths of all sources and mountpoints of this daemon.
    pub fn new(user: u32, inside: Vec<PathBuf>) -> Self {
        Self { user, inside }
    }

    /// What the link `name` in `directory` points to, if that lies outside and may be shown.
    pub fn outside(&self, directory: BorrowedFd<'_>, name: &OsStr, link: &Stat) -> Option<(Origin, Stat)> {
        if !self.trusts(link) {
            return None;
        }
        let target = rustix::fs::readlinkat(directory, name, Vec::new()).ok()?;
        let target = Path::new(OsStr::from_bytes(target.as_bytes()));
        // A relative link is counted from where its directory lies, which the kernel knows without links.
        let from = std::fs::read_link(crate::source::proc_path(directory)).ok()?;
        let (path, stat) = self.walk(from, target)?;
        let origin = match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => {
                Origin { base: Base::Open(Arc::new(SourceRoot::open_plain(&path).ok()?)), path: PathBuf::new() }
            }
            FileType::RegularFile => Origin {
                base: Base::Open(Arc::new(SourceRoot::open_plain(path.parent()?).ok()?)),
                path: PathBuf::from(path.file_name()?),
            },
            _ => return None,
        };
        // What was opened is what was looked at, or somebody is moving things just now.
        let reached = rustix::fs::fstat(origin.base.root()?.locate(&origin.path).ok()?).ok()?;
        (SourceKey::of(&reached) == SourceKey::of(&stat)).then_some((origin, stat))
    }

    fn trusts(&self, link: &Stat) -> bool {
        link.st_uid == 0 || link.st_uid == self.user
    }

    /// The path without links that `target` leads to from the directory `done`, and what is there.
    fn walk(&self, mut done: PathBuf, target: &Path) -> Option<(PathBuf, Stat)> {
        if target.is_absolute() {
            done = PathBuf::from("/");
        }
        let mut left: VecDeque<OsString> = components(target).collect();
        let mut links = 0;
        while let Some(next) = left.pop_front() {
            if next == ".." {
                done.pop();
                continue;
            }
            let here = done.join(&next);
            if self.inside.contains(&here) {
                return None;
            }
            let stat = rustix::fs::statat(CWD, &here, AtFlags::SYMLINK_NOFOLLOW).ok()?;
            if !FileType::from_raw_mode(stat.st_mode).is_symlink() {
                done = here;
                continue;
            }
            links += 1;
            if links > MOST_LINKS || !self.trusts(&stat) {
                return None;
            }
            let target = std::fs::read_link(&here).ok()?;
            if target.is_absolute() {
                done = PathBuf::from("/");
            }
            for component in components(&target).collect::<Vec<_>>().into_iter().rev() {
                left.push_front(component);
            }
        }
        if self.inside.iter().any(|inside| done.starts_with(inside)) {
            return None;
        }
        let stat = rustix::fs::statat(CWD, &done, AtFlags::SYMLINK_NOFOLLOW).ok()?;
        Some((done, stat))
    }
}

fn components(path: &Path) -> impl Iterator<Item = OsString> + '_ {
    path.components().filter_map(|component| match component {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some(OsString::from("..")),
        Component::CurDir | Component::RootDir | Component::Prefix(_) => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;
    use std::os::unix::fs::symlink;

    fn shown(follow: &Follow, root: &Path, name: &str) -> Option<PathBuf> {
        let directory = rustix::fs::open(root, rustix::fs::OFlags::PATH, rustix::fs::Mode::empty()).unwrap();
        let link = crate::source::stat_at(&directory, OsStr::new(name)).unwrap();
        let (origin, _) = follow.outside(directory.as_fd(), OsStr::new(name), &link)?;
        let root = origin.base.root().unwrap();
        let base = std::fs::read_link(crate::source::proc_path(root.as_fd())).unwrap();
        Some(base.join(origin.path))
    }

    #[test]
    fn only_what_lies_outside_is_shown_as_what_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let base = folder.path().canonicalize().unwrap();
        let (source, other) = (base.join("source"), base.join("other"));
        std::fs::create_dir_all(source.join("sub")).unwrap();
        std::fs::create_dir_all(&other).unwrap();
        std::fs::write(other.join("model"), "x").unwrap();
        symlink("/", other.join("up")).unwrap();
        symlink(other.join("model"), source.join("file")).unwrap();
        symlink("../other", source.join("relative")).unwrap();
        symlink("sub", source.join("within")).unwrap();
        symlink(other.join("up").join(source.strip_prefix("/").unwrap()), source.join("round")).unwrap();
        symlink("/nowhere", source.join("broken")).unwrap();
        symlink("loop", source.join("loop")).unwrap();
        let user = rustix::process::geteuid().as_raw();
        let follow = Follow::new(user, vec![source.clone()]);
        assert_eq!(shown(&follow, &source, "file"), Some(other.join("model")));
        assert_eq!(shown(&follow, &source, "relative"), Some(other.join("")));
        for name in ["within", "round", "broken", "loop"] {
            assert_eq!(shown(&follow, &source, name), None, "{name}");
        }
        if user == 0 {
            std::os::unix::fs::lchown(source.join("file"), Some(4711), None).unwrap();
            assert_eq!(shown(&follow, &source, "file"), None);
        }
    }
}
