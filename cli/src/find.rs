//! Finds the daemon that a command is about.

use std::path::{Path, PathBuf};
use std::{env, fs, io};

use weightfs::pattern::Pattern;
use weightfs_mount::control_client::{ClientError, ControlClient, FindError};
use weightfs_mount::runtime_dir::RuntimeDir;

use crate::env_vars::XDG_RUNTIME_DIR;
use crate::exit::{Exit, Failure};

/// Where daemons that this user may ask can be: the user's own, and root's.
pub fn runtime_dirs() -> Vec<RuntimeDir> {
    let uid = rustix::process::geteuid().as_raw();
    let own = RuntimeDir::of_user(uid, env::var_os(XDG_RUNTIME_DIR).as_deref());
    let system = RuntimeDir::of_user(0, None);
    if own == system { vec![system] } else { vec![own, system] }
}

/// The daemon of `path`, or the only one there is.
pub fn daemon(path: Option<&Path>) -> Result<ControlClient, Failure> {
    let dirs = runtime_dirs();
    let found = match path {
        Some(path) => {
            let resolved = resolve(path)?;
            ControlClient::of_path(&resolved, &dirs)
        }
        None => ControlClient::only_one(&dirs),
    };
    found.map_err(|error| {
        let exit = match &error {
            FindError::NoneRunning | FindError::NotInMount(_) | FindError::DeadMount(_) => Exit::NoDaemon,
            FindError::Several(_) => Exit::Usage,
            FindError::Path { error, .. } if error.kind() == io::ErrorKind::PermissionDenied => Exit::NotPermitted,
            FindError::Path { .. } => Exit::Failed,
        };
        Failure::new(exit, &error)
    })
}

/// `path`, absolute and free of links. A dead mount cannot be looked into, so that there only the way to it counts.
pub fn resolve(path: &Path) -> Result<PathBuf, Failure> {
    let failed = |error: io::Error| match error.kind() {
        io::ErrorKind::NotFound => Failure::failed(format!("{} does not exist", path.display())),
        _ => Failure::failed(format!("cannot look at {}: {error}", path.display())),
    };
    fs::canonicalize(path).or_else(|error| {
        let absolute = std::path::absolute(path).map_err(failed)?;
        match (absolute.parent(), absolute.file_name()) {
            (Some(parent), Some(name)) if error.kind() != io::ErrorKind::NotFound => {
                Ok(fs::canonicalize(parent).map_err(failed)?.join(name))
            }
            _ => Err(failed(error)),
        }
    })
}

/// As [`resolve`], where names may have wildcards: what comes before the first of them must be there.
pub fn resolve_pattern(path: &Path) -> Result<PathBuf, Failure> {
    let has_wildcards = |part: &Path| part.to_str().is_some_and(|text| Pattern::new(text).has_wildcards());
    if !has_wildcards(path) || fs::symlink_metadata(path).is_ok() {
        return resolve(path);
    }
    let plain = path.ancestors().find(|folder| !has_wildcards(folder)).unwrap_or(Path::new(""));
    let rest = path.strip_prefix(plain).expect("it is one of its ancestors");
    let plain = if plain.as_os_str().is_empty() { Path::new(".") } else { plain };
    Ok(resolve(plain)?.join(rest))
}

/// The daemon of what `path` names, which may have wildcards, and that, resolved.
pub fn daemon_of_pattern(path: &Path) -> Result<(ControlClient, PathBuf), Failure> {
    let resolved = resolve_pattern(path)?;
    // A pattern is no path that could be looked at.
    let there = resolved.ancestors().find(|path| path.exists()).unwrap_or(&resolved);
    Ok((daemon(Some(there))?, resolved))
}

/// As [`daemon_of_pattern`], for several paths of one daemon.
pub fn daemon_of_patterns(paths: &[PathBuf]) -> Result<(ControlClient, Vec<PathBuf>), Failure> {
    let found = paths.iter().map(|path| daemon_of_pattern(path)).collect::<Result<Vec<_>, _>>()?;
    let (daemons, paths): (Vec<_>, Vec<_>) = found.into_iter().unzip();
    match daemons.as_slice() {
        [first, others @ ..] if others.iter().all(|other| other == first) => Ok((first.clone(), paths)),
        _ => Err(Failure {
            exit: Exit::Usage,
            message: "these paths belong to several daemons: name those of one at a time".to_owned(),
        }),
    }
}

/// The failure that a daemon's missing or negative answer is.
pub fn failure(error: &ClientError) -> Failure {
    use weightfs::control::ProblemKind;
    let exit = match error {
        ClientError::Dead(_) => Exit::NoDaemon,
        ClientError::NotPermitted(_) => Exit::NotPermitted,
        ClientError::Refused(problem) => match problem.kind {
            ProblemKind::NotPermitted => Exit::NotPermitted,
            ProblemKind::Busy => Exit::Busy,
            _ => Exit::Failed,
        },
        _ => Exit::Failed,
    };
    Failure::new(exit, error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_followed_and_what_is_not_there_is_said() {
        let place = tempfile::tempdir().unwrap();
        let root = place.path().canonicalize().unwrap();
        fs::create_dir(root.join("d")).unwrap();
        std::os::unix::fs::symlink("d", root.join("l")).unwrap();
        assert_eq!(resolve(&root.join("l/../l")).unwrap(), root.join("d"));
        assert_eq!(resolve_pattern(&root.join("l/*.gguf")).unwrap(), root.join("d/*.gguf"));
        assert!(resolve_pattern(&root.join("none/*")).is_err());
        assert!(resolve(&root.join("none")).unwrap_err().message.ends_with("does not exist"));
    }
}
