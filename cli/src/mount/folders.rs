//! Checks that the folders to mount are there, may be mounted, and do not get in each other's way.

use std::path::{Path, PathBuf};
use std::{fs, io};

use rustix::io::Errno;
use weightfs_mount::settings::MountSpec;

use super::options::Options;
use super::values::Folder;
use weightfs_mount::mount_table::MountTable;

#[derive(Debug, thiserror::Error)]
pub enum FolderError {
    #[error(
        "which folder? Write 'weightfs mount SOURCE', with the folder that has the models, or name it as \
             'source' in a file given by --config"
    )]
    NoSource,
    #[error("a mountpoint without a source: name the folder that has the models as 'source' as well")]
    MountpointAlone,
    #[error("the source {} does not exist: give the folder that has the models", .0.display())]
    SourceMissing(PathBuf),
    #[error("the mountpoint {path} does not exist: make it with 'mkdir -p {path}', or leave it out to mount over the source", path = .0.display())]
    MountpointMissing(PathBuf),
    #[error("{} is not a folder: give the folder that has the models, not a file in it", .0.display())]
    SourceNotAFolder(PathBuf),
    #[error("{} is not a folder: give an empty folder, or leave it out to mount over the source", .0.display())]
    MountpointNotAFolder(PathBuf),
    #[error("you may not read {}: run weightfs as a user who may, or as root", .0.display())]
    NoAccess(PathBuf),
    #[error("cannot look at {}: {error}", path.display())]
    Look { path: PathBuf, error: io::Error },
    #[error("a daemon that died has left a dead mount at {path}: mount with --replace, or remove it with 'weightfs unmount {path}'", path = .0.display())]
    DeadMount(PathBuf),
    #[error("the mountpoint {} is not empty ('{entry}' is in it) and the mount would hide that: give an empty \
             folder, or leave it out to mount over the source", mountpoint.display())]
    NotEmpty { mountpoint: PathBuf, entry: String },
    #[error("{path} already is a weightfs mount ('weightfs status {path}'); to mount it with other options, first \
             'weightfs unmount {path}'", path = .0.display())]
    AlreadyMounted(PathBuf),
    #[error("{} is the mountpoint of something else ({fs_type}): unmount that first, or give another, empty folder", mountpoint.display())]
    OtherMount { mountpoint: PathBuf, fs_type: String },
    #[error("{} lies in the weightfs mount {}, and would be kept in RAM twice: give the folder behind that mount", source_dir.display(), mount.display())]
    SourceInWeightfs { source_dir: PathBuf, mount: PathBuf },
    #[error("the folder {} is given twice: give each once", .0.display())]
    SameSource(PathBuf),
    #[error("the source {} lies in the source {}, and would be kept in RAM twice: give the outer one alone", inner.display(), outer.display())]
    SourceInSource { inner: PathBuf, outer: PathBuf },
    #[error("two folders are to be mounted at {}: give each a mountpoint of its own", .0.display())]
    SameMountpoint(PathBuf),
    #[error("the mountpoint {} lies in the source {}, which would then contain itself: give a mountpoint outside", mountpoint.display(), source_dir.display())]
    InSource { mountpoint: PathBuf, source_dir: PathBuf },
    #[error("the mountpoint {} lies in the mountpoint {}, which would hide it: give a mountpoint outside", inner.display(), outer.display())]
    InMountpoint { inner: PathBuf, outer: PathBuf },
}

/// The folders of `options`, in their order, with paths that are absolute and free of links.
pub fn check(options: &Options, mounted: &MountTable) -> Result<Vec<MountSpec>, FolderError> {
    let first = match (&options.source, &options.mountpoint) {
        (Some(source), mountpoint) => Some(Folder { source: source.clone(), mountpoint: mountpoint.clone() }),
        (None, Some(_)) => return Err(FolderError::MountpointAlone),
        (None, None) => None,
    };
    let mounts =
        first.iter().chain(&options.also).map(|folder| check_one(folder, mounted)).collect::<Result<Vec<_>, _>>()?;
    if mounts.is_empty() {
        return Err(FolderError::NoSource);
    }
    check_together(&mounts)?;
    Ok(mounts)
}

fn check_one(folder: &Folder, mounted: &MountTable) -> Result<MountSpec, FolderError> {
    let source = resolve(&folder.source, FolderError::SourceMissing, FolderError::SourceNotAFolder)?;
    let mountpoint = match &folder.mountpoint {
        Some(path) => resolve(path, FolderError::MountpointMissing, FolderError::MountpointNotAFolder)?,
        None => source.clone(),
    };
    if mounted.at(&mountpoint).is_some_and(|mount| mount.is_weightfs()) {
        // Always asked of the daemon, while attributes may be remembered from when it lived.
        return Err(match rustix::fs::statfs(&mountpoint) {
            Err(Errno::NOTCONN) => FolderError::DeadMount(mountpoint),
            _ => FolderError::AlreadyMounted(mountpoint),
        });
    }
    if let Some(mount) = mounted.containing(&source).filter(|mount| mount.is_weightfs()) {
        return Err(FolderError::SourceInWeightfs { source_dir: source, mount: mount.mountpoint.clone() });
    }
    if mountpoint != source {
        if let Some(mount) = mounted.at(&mountpoint) {
            return Err(FolderError::OtherMount { mountpoint, fs_type: mount.fs_type.clone() });
        }
        if let Some(entry) = entries(&mountpoint)?.next() {
            let entry = entry.map_err(|error| look(&mountpoint, error))?.file_name().to_string_lossy().into_owned();
            return Err(FolderError::NotEmpty { mountpoint, entry });
        }
    }
    // A source that cannot be listed would look empty from the mount.
    entries(&source)?;
    Ok(MountSpec { source, mountpoint })
}

fn resolve(
    path: &Path,
    missing: fn(PathBuf) -> FolderError,
    no_folder: fn(PathBuf) -> FolderError,
) -> Result<PathBuf, FolderError> {
    let resolved = fs::canonicalize(path).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => missing(path.to_owned()),
        io::ErrorKind::NotADirectory => no_folder(path.to_owned()),
        _ => look(path, error),
    })?;
    let found = fs::metadata(&resolved).map_err(|error| look(&resolved, error))?;
    if found.is_dir() { Ok(resolved) } else { Err(no_folder(resolved)) }
}

fn entries(path: &Path) -> Result<fs::ReadDir, FolderError> {
    fs::read_dir(path).map_err(|error| look(path, error))
}

fn look(path: &Path, error: io::Error) -> FolderError {
    let path = path.to_owned();
    match Errno::from_io_error(&error) {
        Some(Errno::NOTCONN) => FolderError::DeadMount(path),
        Some(Errno::ACCESS) => FolderError::NoAccess(path),
        _ => FolderError::Look { path, error },
    }
}

/// The rules between folders. A mount inside a source would be read through that source.
fn check_together(mounts: &[MountSpec]) -> Result<(), FolderError> {
    for (index, mount) in mounts.iter().enumerate() {
        for earlier in &mounts[..index] {
            if mount.source == earlier.source {
                return Err(FolderError::SameSource(mount.source.clone()));
            }
            if mount.mountpoint == earlier.mountpoint {
                return Err(FolderError::SameMountpoint(mount.mountpoint.clone()));
            }
        }
        for other in mounts {
            if mount.source != other.source && mount.source.starts_with(&other.source) {
                return Err(FolderError::SourceInSource { inner: mount.source.clone(), outer: other.source.clone() });
            }
            let over_itself = mount.mountpoint == mount.source && other.source == mount.source;
            if mount.mountpoint.starts_with(&other.source) && !over_itself {
                return Err(FolderError::InSource {
                    mountpoint: mount.mountpoint.clone(),
                    source_dir: other.source.clone(),
                });
            }
            if mount.mountpoint != other.mountpoint && mount.mountpoint.starts_with(&other.mountpoint) {
                return Err(FolderError::InMountpoint {
                    inner: mount.mountpoint.clone(),
                    outer: other.mountpoint.clone(),
                });
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use tempfile::TempDir;

    /// `models` with a file in it, and the empty folders `a`, `b` and `models/inner`.
    fn place() -> (TempDir, impl Fn(&str) -> PathBuf) {
        let place = tempfile::tempdir().unwrap();
        let root = place.path().canonicalize().unwrap();
        for folder in ["a", "b", "models/inner"] {
            fs::create_dir_all(root.join(folder)).unwrap();
        }
        fs::write(root.join("models/m.safetensors"), "x").unwrap();
        std::os::unix::fs::symlink("models", root.join("link")).unwrap();
        (place, move |name| root.join(name))
    }

    fn options(source: PathBuf, mountpoint: Option<PathBuf>, also: Vec<(PathBuf, Option<PathBuf>)>) -> Options {
        let also = also.into_iter().map(|(source, mountpoint)| Folder { source, mountpoint }).collect();
        Options { source: Some(source), mountpoint, also, ..Options::default() }
    }

    fn error(options: &Options) -> FolderError {
        check(options, &MountTable::default()).unwrap_err()
    }

    #[test]
    fn folders_that_are_fine_come_out_absolute_and_free_of_links() {
        let (_place, at) = place();
        let over = check(&options(at("link"), None, vec![]), &MountTable::default()).unwrap();
        assert_eq!(over, [MountSpec { source: at("models"), mountpoint: at("models") }]);
        let two = options(at("models"), Some(at("a")), vec![(at("b"), None)]);
        let two = check(&two, &MountTable::default()).unwrap();
        assert_eq!(two[0], MountSpec { source: at("models"), mountpoint: at("a") });
        assert_eq!(two[1], MountSpec { source: at("b"), mountpoint: at("b") });
        // Named twice, it is still mounted over itself.
        let same = check(&options(at("models"), Some(at("link")), vec![]), &MountTable::default()).unwrap();
        assert_eq!(same[0].mountpoint, at("models"));
    }

    #[test]
    fn what_is_missing_or_no_folder_is_said() {
        let (_place, at) = place();
        assert!(matches!(error(&Options::default()), FolderError::NoSource));
        assert!(matches!(
            error(&Options { mountpoint: Some(at("a")), ..Options::default() }),
            FolderError::MountpointAlone
        ));
        assert!(matches!(error(&options(at("none"), None, vec![])), FolderError::SourceMissing(_)));
        assert!(matches!(error(&options(at("models/m.safetensors"), None, vec![])), FolderError::SourceNotAFolder(_)));
        let missing = error(&options(at("models"), Some(at("none")), vec![]));
        assert!(missing.to_string().contains("mkdir -p"), "{missing}");
        let file = error(&options(at("a"), Some(at("models/m.safetensors")), vec![]));
        assert!(matches!(file, FolderError::MountpointNotAFolder(_)));
    }

    #[test]
    fn a_mount_hides_nothing() {
        let (_place, at) = place();
        match error(&options(at("a"), Some(at("models")), vec![])) {
            FolderError::NotEmpty { mountpoint, .. } => assert_eq!(mountpoint, at("models")),
            other => panic!("{other}"),
        }
    }

    #[test]
    fn folders_do_not_contain_each_other() {
        let (_place, at) = place();
        let inside = error(&options(at("models"), Some(at("models/inner")), vec![]));
        assert!(matches!(inside, FolderError::InSource { .. }), "{inside}");
        let inside = error(&options(at("models"), Some(at("a")), vec![(at("b"), Some(at("models/inner")))]));
        assert!(matches!(inside, FolderError::InSource { .. }), "{inside}");
        for mountpoint in [None, Some(at("a"))] {
            let inside = error(&options(at("models"), None, vec![(at("models/inner"), mountpoint)]));
            assert!(matches!(inside, FolderError::SourceInSource { .. }), "{inside}");
        }
        let twice = error(&options(at("models"), None, vec![(at("link"), Some(at("a")))]));
        assert!(matches!(twice, FolderError::SameSource(_)), "{twice}");
        let twice = error(&options(at("models"), Some(at("a")), vec![(at("b"), Some(at("a")))]));
        assert!(matches!(twice, FolderError::SameMountpoint(_)), "{twice}");
    }

    #[test]
    fn mounts_that_are_there_already_are_told_apart() {
        let (_place, at) = place();
        let table = |path: &Path, fs_type: &str| {
            MountTable::parse(format!("9 1 0:9 / {} rw - {fs_type} x rw", path.display()).as_bytes())
        };
        let over = options(at("models"), None, vec![]);
        let mounted = check(&over, &table(&at("models"), "fuse.weightfs")).unwrap_err();
        assert!(matches!(mounted, FolderError::AlreadyMounted(_)), "{mounted}");
        // A disk of its own for the models is the normal case.
        assert!(check(&over, &table(&at("models"), "ext4")).is_ok());
        let elsewhere = options(at("models"), Some(at("a")), vec![]);
        let mounted = check(&elsewhere, &table(&at("a"), "tmpfs")).unwrap_err();
        assert!(matches!(mounted, FolderError::OtherMount { .. }), "{mounted}");
        let twice = check(&options(at("models/inner"), Some(at("a")), vec![]), &table(&at("models"), "fuse.weightfs"));
        assert!(matches!(twice.unwrap_err(), FolderError::SourceInWeightfs { .. }));
    }
}
