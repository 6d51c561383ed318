//! Model files by their path in the mount, for what is asked about them past the kernel.

use std::ffi::OsString;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{FileType, Mode, OFlags, Stat};
use rustix::io::Errno;
use weightfs::fill::SourceFile;
use weightfs::ids::SourceIdentity;
use weightfs::pattern::Pattern;
use weightfs::store::{Opened, SMALLEST_MODEL, identity_of};

use super::Fs;
use crate::attr::{SourceKey, identity};
use crate::control::rights::Reader;
use crate::error::FsError;
use crate::source;

/// The most files that are listed: a folder with more is no folder of models.
const MOST_LISTED: usize = 100_000;

/// A file that may be kept in RAM.
#[derive(Clone, Debug)]
pub struct ModelFile {
    /// Beneath the root.
    pub path: PathBuf,
    pub identity: SourceIdentity,
}

/// More files than anyone has models, and few enough to be held open.
const MOST_FILES: usize = 10_000;

impl Fs {
    /// The identity of the regular file at `path` beneath the root.
    pub fn model_identity(&self, path: &Path) -> Result<SourceIdentity, FsError> {
        let fd = self.root.locate(path)?;
        let stat = rustix::fs::fstat(&fd)?;
        if !FileType::from_raw_mode(stat.st_mode).is_file() {
            return Err(Errno::INVAL.into());
        }
        Ok(identity_of(fd)?)
    }

    /// Opens the file at `path`. None where its content cannot be kept now: it is small, somebody writes it, or it has
    /// just been written.
    pub fn open_model(&self, path: &Path) -> Result<Option<Opened>, FsError> {
        let identity = self.model_identity(path)?;
        let key = SourceKey { device: identity.device, inode: identity.inode };
        let known = self.nodes.get(self.nodes.id_of(key)).ok().filter(|node| node.key == key);
        if known.is_some_and(|node| node.file.has_writers()) {
            return Ok(None);
        }
        let file = source::reopen(self.root.locate(path)?.as_fd(), OFlags::RDONLY | OFlags::NONBLOCK)?;
        let is_same = identity_of(&file)? == identity;
        Ok(if is_same { self.store.open(&Arc::new(SourceFile::new(file))) } else { None })
    }

    /// Whether `path` beneath the root is a directory.
    pub fn is_folder(&self, path: &Path) -> bool {
        let stat = self.root.locate(path).and_then(rustix::fs::fstat);
        stat.is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode).is_dir())
    }

    /// All files that may be kept at or beneath `path`, in the order of their names. Links are listed where they are
    /// shown as what they point to. Directories that cannot be read, or not by `reader`, are left out.
    pub fn models(&self, path: &Path, reader: Option<&Reader>) -> Result<Vec<ModelFile>, FsError> {
        let stat = rustix::fs::fstat(self.root.locate(path)?)?;
        if !FileType::from_raw_mode(stat.st_mode).is_dir() {
            let identity = self.model_identity(path)?;
            return Ok(vec![ModelFile { path: path.to_owned(), identity }]);
        }
        let mut found = Vec::new();
        let mut folders = vec![path.to_owned()];
        while let Some(folder) = folders.pop() {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY;
            let Ok(fd) = self.root.open_beneath(&folder, flags, Mode::empty()) else { continue };
            let may = |stat: &Stat, bits| reader.is_none_or(|reader| reads(reader, stat, bits));
            if !rustix::fs::fstat(&fd).is_ok_and(|stat| may(&stat, 0o5)) {
                continue;
            }
            let Ok(entries) = rustix::fs::Dir::read_from(&fd) else { continue };
            for entry in entries {
                let Ok(entry) = entry else { break };
                let name = OsString::from_vec(entry.file_name().to_bytes().to_vec());
                if name == "." || name == ".." {
                    continue;
                }
                // Whatever has gone in the meantime is not listed.
                let Ok(stat) = self.look_at(fd.as_fd(), &name) else { continue };
                let path = folder.join(&name);
                match FileType::from_raw_mode(stat.st_mode) {
                    FileType::Directory if entry.file_type() != FileType::Symlink => folders.push(path),
                    FileType::RegularFile if stat.st_size as u64 >= SMALLEST_MODEL => {
                        found.push(ModelFile { path, identity: identity(&stat) });
                    }
                    _ => {}
                }
            }
            if found.len() > MOST_LISTED {
                return Err(Errno::TOOBIG.into());
            }
        }
        found.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(found)
    }

    /// Whether somebody may read the file at `path`: can enter every folder on the way from the root, and read it.
    pub fn may_read(&self, path: &Path, reader: &Reader) -> Result<bool, FsError> {
        let allows = |path: &Path, bits| -> Result<bool, FsError> {
            let stat = rustix::fs::fstat(self.root.locate(path)?)?;
            Ok(reads(reader, &stat, bits))
        };
        for folder in path.ancestors().skip(1) {
            if !allows(folder, 0o1)? {
                return Ok(false);
            }
        }
        allows(path, 0o4)
    }

    /// The regular files beneath the root whose path matches `path`, in which every name may have wildcards. Links are
    /// not followed; names that begin with a dot match only patterns that do.
    pub fn matching(&self, path: &Path) -> Result<Vec<PathBuf>, FsError> {
        let mut found = vec![PathBuf::new()];
        let names: Vec<_> = path.iter().collect();
        for (place, name) in names.iter().enumerate() {
            let is_last = place + 1 == names.len();
            let Some(pattern) = name.to_str().map(Pattern::new).filter(Pattern::has_wildcards) else {
                found.iter_mut().for_each(|path| path.push(name));
                continue;
            };
            let mut next = Vec::new();
            for folder in found {
                next.extend(self.matching_in(&folder, &pattern, is_last)?);
            }
            found = next;
        }
        found.retain(|path| self.model_identity(path).is_ok());
        found.sort();
        Ok(found)
    }

    fn matching_in(&self, folder: &Path, pattern: &Pattern, files: bool) -> Result<Vec<PathBuf>, FsError> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        let fd = match self.root.open_beneath(folder, flags, Mode::empty()) {
            Ok(fd) => fd,
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::ACCESS) => return Ok(Vec::new()),
            Err(error) => return Err(error.into()),
        };
        let mut found = Vec::new();
        for entry in rustix::fs::Dir::read_from(fd)? {
            let entry = entry?;
            let (name, kind) = (entry.file_name().to_bytes(), entry.file_type());
            let is_hidden = name.starts_with(b".") && !pattern.as_str().starts_with('.');
            let fits = kind == FileType::Unknown || kind.is_file() == files && kind.is_dir() != files;
            if !is_hidden && fits && pattern.matches(name) {
                found.push(folder.join(OsString::from_vec(name.to_vec())));
            }
            if found.len() > MOST_FILES {
                return Err(Errno::TOOBIG.into());
            }
        }
        Ok(found)
    }
}

fn reads(reader: &Reader, stat: &Stat, bits: u32) -> bool {
    reader.may(stat.st_mode, stat.st_uid, stat.st_gid, bits)
}
