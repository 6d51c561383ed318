//! The mounts of a daemon, by the paths that people use.

use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use weightfs::control::ControlError;
use weightfs::ids::SourceIdentity;
use weightfs::store::{Generation, Opened};

use super::rights::{Reader, mount_of};
use crate::error::FsError;
use crate::fs::ModelFile;
use crate::mounted::Shared;
use crate::source::proc_path;

/// Paths are absolute and free of links.
pub struct Places(Vec<Arc<Shared>>);

impl Places {
    pub fn new(mounts: Vec<Arc<Shared>>) -> Self {
        Self(mounts)
    }

    /// Whether a path lies in one of the mounts.
    pub fn contain(&self, path: &Path) -> bool {
        self.place(path).is_ok()
    }

    /// The number of the mount that a path lies in.
    pub fn number(&self, path: &Path) -> Result<usize, ControlError> {
        // The kernel looks names up one by one, and so `..` may lead anywhere.
        let is_plain = path.is_absolute() && !path.components().any(|part| part == std::path::Component::ParentDir);
        let found = mount_of(path, self.0.iter().map(|place| place.spec.mountpoint.as_path())).filter(|_| is_plain);
        found.ok_or_else(|| ControlError::NotMounted(path.to_owned()))
    }

    /// The files that `path` names, whose names may have wildcards; of a folder, all model files beneath it.
    ///
    /// # Errors
    /// Where there is none.
    pub fn files(&self, path: &Path) -> Result<Vec<PathBuf>, ControlError> {
        let (place, below) = self.place(path)?;
        let found = match place.fs.is_folder(below) {
            true => self.models(Some(path), None)?.into_iter().map(|file| file.path).collect(),
            false => self.matching(path)?,
        };
        if found.is_empty() {
            let reason = "no file has such a name".to_owned();
            return Err(ControlError::NoFile { path: path.to_owned(), reason });
        }
        Ok(found)
    }

    /// The files whose names match `path`, in which each may have wildcards. There may be none.
    pub fn matching(&self, path: &Path) -> Result<Vec<PathBuf>, ControlError> {
        let (place, below) = self.place(path)?;
        let found = place.fs.matching(below).map_err(|error| failed(path, &error))?;
        Ok(found.into_iter().map(|below| place.spec.mountpoint.join(below)).collect())
    }

    /// See [`Fs::open_model`].
    pub fn open(&self, file: &Path) -> Result<Option<Opened>, ControlError> {
        let (place, below) = self.place(file)?;
        place.fs.open_model(below).map_err(|error| failed(file, &error))
    }

    /// As [`Places::open`].
    ///
    /// # Errors
    /// Also where the content cannot be kept now.
    pub fn open_to_keep(&self, file: &Path) -> Result<Opened, ControlError> {
        let reason = "it cannot be kept in RAM: it is smaller than 1 MiB, or it has just been written".to_owned();
        self.open(file)?.ok_or_else(|| ControlError::NoFile { path: file.to_owned(), reason })
    }

    pub fn identity(&self, file: &Path) -> Result<SourceIdentity, ControlError> {
        let (place, below) = self.place(file)?;
        place.fs.model_identity(below).map_err(|error| failed(file, &error))
    }

    /// All model files at or beneath a path, or in every mount, by their paths in the mounts. See [`crate::fs::Fs::models`].
    pub fn models(&self, path: Option<&Path>, reader: Option<&Reader>) -> Result<Vec<ModelFile>, ControlError> {
        let Some(path) = path else {
            let mut all = Vec::new();
            for place in self.0.iter().filter(|place| !place.has_ended()) {
                all.extend(self.models(Some(&place.spec.mountpoint), reader)?);
            }
            return Ok(all);
        };
        let (place, below) = self.place(path)?;
        let mut found = place.fs.models(below, reader).map_err(|error| failed(path, &error))?;
        for file in &mut found {
            // Joined with nothing, a path would get a slash at its end.
            let below = std::mem::take(&mut file.path);
            file.path = if below.as_os_str().is_empty() { path.to_owned() } else { place.spec.mountpoint.join(below) };
        }
        Ok(found)
    }

    /// Whether somebody may read the file at `path`, as far as owners and modes tell.
    pub fn may_read(&self, path: &Path, reader: &Reader) -> Result<bool, ControlError> {
        let (place, below) = self.place(path)?;
        place.fs.may_read(below, reader).map_err(|error| failed(path, &error))
    }

    /// Where a file's content is found by now: in a mount, or else in its source.
    pub fn path_of(&self, generation: &Generation) -> PathBuf {
        let path = std::fs::read_link(proc_path(generation.source.file().as_fd())).unwrap_or_default();
        let in_mount = |place: &Arc<Shared>| {
            let below = path.strip_prefix(&place.spec.source).ok()?;
            Some(place.spec.mountpoint.join(below))
        };
        self.0.iter().find_map(in_mount).unwrap_or(path)
    }

    /// The mount around `path`, and the path in it.
    fn place<'a>(&self, path: &'a Path) -> Result<(&Shared, &'a Path), ControlError> {
        let place = &self.0[self.number(path)?];
        Ok((place, path.strip_prefix(&place.spec.mountpoint).expect("it lies in it")))
    }
}

fn failed(path: &Path, error: &FsError) -> ControlError {
    let reason = match error {
        FsError::Source(rustix::io::Errno::INVAL) => "it is no regular file".to_owned(),
        error => error.to_string(),
    };
    ControlError::NoFile { path: path.to_owned(), reason }
}
