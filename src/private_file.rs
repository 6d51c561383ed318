//! Small files that outlive the daemon, for its user alone. The daemon has no file mode mask, so modes are given.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;

/// Makes `path`, which must not be there yet, for reading and writing by its owner alone.
///
/// # Errors
/// What the file system says, `AlreadyExists` among it.
pub fn create_new(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)
}

/// Writes `bytes` beside `path` and then puts that in its place: a crash leaves the old content or the new one. Folders
/// that are missing are made, for their owner alone.
///
/// # Errors
/// What the file system says.
pub fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    if let Some(folder) = path.parent() {
        DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    }
    let beside = path.with_extension("new");
    match std::fs::remove_file(&beside) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    create_new(&beside)?.write_all(bytes)?;
    std::fs::rename(beside, path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn nobody_else_may_read_or_write_them() {
        let place = tempfile::tempdir().unwrap();
        let file = place.path().join("a/b/state.json");
        for text in ["one", "two"] {
            replace(&file, text.as_bytes()).unwrap();
            assert_eq!(std::fs::read_to_string(&file).unwrap(), text);
        }
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&file), mode(file.parent().unwrap())), (0o600, 0o700));
        assert_eq!(create_new(&file).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(std::fs::read_dir(file.parent().unwrap()).unwrap().count(), 1, "nothing is left beside it");
    }
}
