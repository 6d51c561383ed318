//! The mounts of a daemon, by the paths that people use.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use weightfs::control::ControlError;
use weightfs::ids::SourceIdentity;
use weightfs::store::Opened;

use crate::error::FsError;
use crate::fs::Fs;

pub struct Place {
    pub mountpoint: PathBuf,
    pub fs: Arc<Fs>,
}

/// Paths are absolute and free of links.
pub struct Places(Vec<Place>);

impl Places {
    pub fn new(places: Vec<Place>) -> Self {
        Self(places)
    }

    /// Whether a path lies in one of the mounts.
    pub fn contain(&self, path: &Path) -> bool {
        self.place(path).is_ok()
    }

    /// The files that `path` names, whose names may have wildcards.
    pub fn files(&self, path: &Path) -> Result<Vec<PathBuf>, ControlError> {
        let (place, below) = self.place(path)?;
        let found = place.fs.matching(below).map_err(|error| failed(path, &error))?;
        Ok(found.into_iter().map(|below| place.mountpoint.join(below)).collect())
    }

    /// See [`Fs::open_model`].
    pub fn open(&self, file: &Path) -> Result<Option<Opened>, ControlError> {
        let (place, below) = self.place(file)?;
        place.fs.open_model(below).map_err(|error| failed(file, &error))
    }

    pub fn identity(&self, file: &Path) -> Result<SourceIdentity, ControlError> {
        let (place, below) = self.place(file)?;
        place.fs.model_identity(below).map_err(|error| failed(file, &error))
    }

    /// The innermost mount around `path`, and the path in it.
    fn place<'a>(&self, path: &'a Path) -> Result<(&Place, &'a Path), ControlError> {
        let around = |place: &'_ Place| path.strip_prefix(&place.mountpoint).ok();
        let innermost = self
            .0
            .iter()
            .filter_map(|place| Some((place, around(place)?)))
            .min_by_key(|(_, below)| below.as_os_str().len());
        innermost.ok_or_else(|| ControlError::NotMounted(path.to_owned()))
    }
}

fn failed(path: &Path, error: &FsError) -> ControlError {
    let reason = match error {
        FsError::Source(rustix::io::Errno::INVAL) => "it is no regular file".to_owned(),
        error => error.to_string(),
    };
    ControlError::NoFile { path: path.to_owned(), reason }
}
