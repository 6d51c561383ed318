//! Where the sockets and logs of running daemons are, and how a daemon is named there.
//!
//! Root's daemons are in `/run/weightfs`, where everybody can see and ask them; another user's in a directory that is
//! closed to everybody else, below `$XDG_RUNTIME_DIR` or, without one, in `/tmp`.

use std::ffi::OsStr;
use std::fs::{self, DirBuilder, Permissions};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

/// Of root's daemons.
pub const SYSTEM_DIR: &str = "/run/weightfs";

const SOCKET_EXTENSION: &str = "sock";
/// Bytes of a mountpoint's path that a daemon's name keeps, so that a socket's path fits the 107 bytes it may have.
const NAME_TAIL: usize = 40;

#[derive(Debug, thiserror::Error)]
pub enum RuntimeDirError {
    #[error("cannot make the directory {}: {error}; make it by hand, owned by you", path.display())]
    Create { path: PathBuf, error: io::Error },
    #[error("{} is not a directory that belongs to you alone (mode 0700), so weightfs does not trust it: \
             remove it, or set XDG_RUNTIME_DIR to a directory of your own", .0.display())]
    NotOurs(PathBuf),
    #[error("a weightfs daemon already answers at {}; 'weightfs status' shows it", .0.display())]
    AlreadyRunning(PathBuf),
    #[error("cannot listen at {}: {error}", path.display())]
    Listen { path: PathBuf, error: io::Error },
}

/// The directory of one user's daemons.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuntimeDir {
    path: PathBuf,
    /// Whether others may look into it.
    shared: bool,
}

impl RuntimeDir {
    /// `xdg_runtime_dir` is the value of that variable. Touches nothing.
    pub fn of_user(uid: u32, xdg_runtime_dir: Option<&OsStr>) -> Self {
        if uid == 0 {
            return Self { path: SYSTEM_DIR.into(), shared: true };
        }
        let path = match xdg_runtime_dir.map(Path::new).filter(|dir| dir.is_absolute()) {
            Some(dir) => dir.join("weightfs"),
            None => format!("/tmp/weightfs-{uid}").into(),
        };
        Self::at(path)
    }

    /// A directory of this user alone at a place of its own.
    pub fn at(path: PathBuf) -> Self {
        Self { path, shared: false }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn socket(&self, daemon: &str) -> PathBuf {
        self.path.join(format!("{daemon}.{SOCKET_EXTENSION}"))
    }

    pub fn log(&self, daemon: &str) -> PathBuf {
        self.path.join(format!("{daemon}.log"))
    }

    /// Makes the directory where it is missing, and makes sure that nobody else can write to it.
    pub fn prepare(&self) -> Result<(), RuntimeDirError> {
        let mode = if self.shared { 0o755 } else { 0o700 };
        match DirBuilder::new().mode(mode).create(&self.path) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(RuntimeDirError::Create { path: self.path.clone(), error }),
        }
        let is_ours = fs::symlink_metadata(&self.path).is_ok_and(|found| {
            found.is_dir() && found.uid() == rustix::process::geteuid().as_raw() && found.mode() & 0o777 & !mode == 0
        });
        if is_ours { Ok(()) } else { Err(RuntimeDirError::NotOurs(self.path.clone())) }
    }

    /// The sockets in it, those of daemons that are dead included, sorted. None where there is no directory.
    pub fn sockets(&self) -> Vec<PathBuf> {
        let Ok(entries) = fs::read_dir(&self.path) else { return Vec::new() };
        let mut sockets: Vec<_> = entries
            .filter_map(|entry| Some(entry.ok()?.path()))
            .filter(|path| path.extension() == Some(OsStr::new(SOCKET_EXTENSION)))
            .collect();
        sockets.sort();
        sockets
    }
}

/// The name of the daemon whose first mount is at `mountpoint`, an absolute path: readable, and told apart by a hash.
pub fn daemon_name(mountpoint: &Path) -> String {
    let bytes = mountpoint.as_os_str().as_bytes();
    // FNV-1a: the same in every build, as a name that is looked up by other versions must be.
    let hash = bytes.iter().fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193));
    let readable: String = bytes
        .iter()
        .map(|byte| if byte.is_ascii_alphanumeric() || b"._".contains(byte) { char::from(*byte) } else { '-' })
        .collect();
    let tail = &readable[readable.len().saturating_sub(NAME_TAIL)..];
    match tail.trim_matches(|c| c == '-' || c == '.') {
        "" => format!("root-{hash:08x}"),
        slug => format!("{slug}-{hash:08x}"),
    }
}

/// Listens at `path`, for everybody where the daemon is root's and for its user alone otherwise. What a dead daemon
/// left there is replaced.
///
/// The socket appears under its name only once it listens, so that whoever finds one that refuses knows it is dead.
pub fn listen(path: &Path) -> Result<UnixListener, RuntimeDirError> {
    let failed = |error| RuntimeDirError::Listen { path: path.to_owned(), error };
    if UnixStream::connect(path).is_ok() {
        return Err(RuntimeDirError::AlreadyRunning(path.to_owned()));
    }
    let early = path.with_extension(std::process::id().to_string());
    let _ = fs::remove_file(&early);
    let listener = UnixListener::bind(&early).map_err(failed)?;
    let mode = if rustix::process::geteuid().is_root() { 0o666 } else { 0o600 };
    fs::set_permissions(&early, Permissions::from_mode(mode))
        .and_then(|()| fs::rename(&early, path))
        .inspect_err(|_| drop(fs::remove_file(&early)))
        .map_err(failed)?;
    Ok(listener)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_readable_distinct_and_safe() {
        assert_eq!(daemon_name(Path::new("/srv/models")), "srv-models-6394be3e");
        assert_ne!(daemon_name(Path::new("/srv/models")), daemon_name(Path::new("/srv-models")));
        assert!(daemon_name(Path::new("/")).starts_with("root-"));
        let odd = daemon_name(Path::new(OsStr::from_bytes(b"/a b/\xff/..x/\n")));
        assert!(odd.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'/') && !odd.starts_with('.'), "{odd}");
        assert!(daemon_name(Path::new(&"/long".repeat(500))).len() <= NAME_TAIL + 9);
    }

    #[test]
    fn each_user_has_a_directory() {
        let xdg = Some(OsStr::new("/run/user/7"));
        assert_eq!(RuntimeDir::of_user(0, xdg).path(), Path::new("/run/weightfs"));
        assert_eq!(RuntimeDir::of_user(7, xdg).path(), Path::new("/run/user/7/weightfs"));
        assert_eq!(RuntimeDir::of_user(7, None).path(), Path::new("/tmp/weightfs-7"));
        assert_eq!(RuntimeDir::of_user(7, Some(OsStr::new("here"))).path(), Path::new("/tmp/weightfs-7"));
    }

    #[test]
    fn a_directory_that_others_could_write_to_is_refused() {
        let place = tempfile::tempdir().unwrap();
        let dir = RuntimeDir::at(place.path().join("d"));
        dir.prepare().unwrap();
        dir.prepare().unwrap();
        fs::set_permissions(dir.path(), Permissions::from_mode(0o777)).unwrap();
        assert!(matches!(dir.prepare(), Err(RuntimeDirError::NotOurs(_))));

        let link = RuntimeDir::at(place.path().join("link"));
        std::os::unix::fs::symlink(place.path(), link.path()).unwrap();
        assert!(matches!(link.prepare(), Err(RuntimeDirError::NotOurs(_))));
    }

    #[test]
    fn a_dead_socket_is_replaced_and_a_live_one_is_not() {
        let place = tempfile::tempdir().unwrap();
        let dir = RuntimeDir::at(place.path().into());
        let path = dir.socket("x");
        let live = listen(&path).unwrap();
        assert!(matches!(listen(&path), Err(RuntimeDirError::AlreadyRunning(_))));
        drop(live);
        let _again = listen(&path).unwrap();
        assert!(UnixStream::connect(&path).is_ok());
        assert_eq!(dir.sockets(), [path]);
        assert_eq!(fs::read_dir(place.path()).unwrap().count(), 1);
    }
}
