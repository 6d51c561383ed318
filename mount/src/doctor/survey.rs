//! A look at the names in a source: a file to try things on, and links that lead out.

use std::ffi::{OsStr, OsString};
use std::os::fd::AsFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use crate::source::{SourceRoot, open_at};

/// The most entries, and the longest time, that are spent on one source.
const MOST_ENTRIES: u32 = 100_000;
const LONGEST: Duration = Duration::from_secs(2);

#[derive(Debug, Default, PartialEq, Eq)]
pub struct Survey {
    /// The largest regular file, beneath the root, and its size.
    pub largest: Option<(PathBuf, u64)>,
    /// Links to things outside, beneath the root.
    pub links_out: Vec<PathBuf>,
    /// Not everything was looked at.
    pub cut_short: bool,
}

/// `seen_at` is where clients see the root: absolute links to there lead back inside.
pub fn survey(root: &SourceRoot, seen_at: &Path) -> Survey {
    let end = Instant::now() + LONGEST;
    let mut found = Survey::default();
    let mut left = MOST_ENTRIES;
    let mut folders = vec![PathBuf::new()];
    while let Some(folder) = folders.pop() {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        // A folder that may not be looked into has nothing for us.
        let Ok(opened) = root.open_beneath(&folder, flags, Mode::empty()) else { continue };
        let Ok(entries) = Dir::read_from(&opened) else { continue };
        for entry in entries.flatten() {
            let name = OsStr::from_bytes(entry.file_name().to_bytes());
            if name == "." || name == ".." {
                continue;
            }
            if left == 0 || Instant::now() >= end {
                found.cut_short = true;
                return found;
            }
            left -= 1;
            let path = folder.join(name);
            let Ok(located) = open_at(opened.as_fd(), name) else { continue };
            let Ok(stat) = rustix::fs::fstat(&located) else { continue };
            match FileType::from_raw_mode(stat.st_mode) {
                FileType::Directory => folders.push(path),
                FileType::RegularFile => {
                    let size = stat.st_size as u64;
                    if found.largest.as_ref().is_none_or(|(_, largest)| *largest < size) {
                        found.largest = Some((path, size));
                    }
                }
                FileType::Symlink if leads_out(root, &path, seen_at) => found.links_out.push(path),
                _ => {}
            }
        }
    }
    found
}

/// Whether following the link at `path` ends outside, at something that is there.
fn leads_out(root: &SourceRoot, path: &Path, seen_at: &Path) -> bool {
    let inside = |path: &Path| {
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
        rustix::fs::openat2(root.as_fd(), path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), resolve)
    };
    if inside(path).err() != Some(Errno::XDEV) {
        // Inside, or to nothing.
        return false;
    }
    let Ok(target) = rustix::fs::readlinkat(root.as_fd(), path, Vec::new()) else { return false };
    let target = PathBuf::from(OsString::from_vec(target.into_bytes()));
    match target.strip_prefix(seen_at) {
        Ok(rest) => inside(rest).err() == Some(Errno::XDEV),
        // Outside, if there is anything. As a program would follow it.
        Err(_) => rustix::fs::statat(root.as_fd(), path, AtFlags::empty()).is_ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    #[test]
    fn links_are_told_apart_by_where_they_end() {
        let place = tempfile::tempdir().unwrap();
        let root = place.path().canonicalize().unwrap().join("models");
        fs::create_dir_all(root.join("loras")).unwrap();
        fs::write(root.join("loras/a.safetensors"), [0; 100]).unwrap();
        fs::write(root.join("b.gguf"), [0; 200]).unwrap();
        fs::write(root.join("../outside"), [0; 300]).unwrap();
        symlink("a.safetensors", root.join("loras/inside")).unwrap();
        symlink("../../outside", root.join("loras/out")).unwrap();
        symlink(root.join("b.gguf"), root.join("absolute-inside")).unwrap();
        symlink("/etc", root.join("etc")).unwrap();
        symlink("nowhere", root.join("dangling")).unwrap();
        symlink("/nowhere/at/all", root.join("dangling-outside")).unwrap();
        let opened = SourceRoot::open(&root).unwrap();
        let mut found = survey(&opened, &root);
        found.links_out.sort();
        assert_eq!(found.links_out, ["etc", "loras/out"].map(PathBuf::from));
        assert_eq!(found.largest, Some(("b.gguf".into(), 200)));
        assert!(!found.cut_short);
        // Mounted elsewhere, the absolute link leads to the plain folder.
        assert_eq!(survey(&opened, Path::new("/mnt")).links_out.len(), 3);
    }
}
