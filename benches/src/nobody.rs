//! weightfs and a reader of a user without any rights, with the mount that such a user gets.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Command;

use weightfs::control::Status;

use crate::error::{BenchError, Doing, Result};
use crate::process;
use crate::readers::helper::{self, Helper};
use crate::weightfs::{Weightfs, Work};

/// fusermount3 wants a user with a name.
const NOBODY: u32 = 65534;

/// Where copies of the programs lie that everybody may run.
const PROGRAMS: &str = "programs";

/// Ends daemons of a [`Nobody`] at `place` that was not dropped: their mounts are seen by nobody else.
pub fn end_daemons(place: &Path) {
    process::end_all_of(&place.join(PROGRAMS).join("weightfs"));
}

/// Becomes somebody in a mount namespace of its own, with a /dev/fuse that everybody may open, as distributions have it.
/// Where Python lives in the home directory of root, that part of it (named by the fourth argument) is let be seen there.
const SCRIPT: &str = r#"
set -e
mknod "$1/fuse" c 10 229
chmod 666 "$1/fuse"
mount --bind "$1/fuse" /dev/fuse
if [ -n "$3" ]; then
    mkdir "$1/home"
    mount --bind "$3" "$1/home"
    mount -t tmpfs -o mode=755 tmpfs /root
    mkdir -p "$3"
    mount --bind "$1/home" "$3"
fi
user=$2
shift 3
exec setpriv --reuid "$user" --regid "$user" --clear-groups "$@"
"#;

/// Somebody who mounts and reads. The mount is gone with its value.
pub struct Nobody {
    helper: Helper,
    program: PathBuf,
    source: PathBuf,
    mountpoint: PathBuf,
    ram: String,
    place: PathBuf,
}

impl Nobody {
    /// `place` is made, and removed in the end.
    pub fn become_one(weightfs: &Weightfs, place: &Path, ram: &str, interpreters: &[PathBuf]) -> Result<Self> {
        let user = nix::unistd::User::from_uid(nix::unistd::Uid::from_raw(NOBODY));
        if user.is_ok_and(|user| user.is_none()) {
            return Err(BenchError::Unfit(format!("there is no user with the number {NOBODY}")));
        }
        let what = || format!("make {}", place.display());
        let mountpoint = place.join("mount");
        let _ = fs::remove_dir_all(place);
        fs::create_dir_all(&mountpoint).doing(what)?;
        // Not where the socket of the daemon will be, which is named as the program is.
        let programs = place.join(PROGRAMS);
        fs::create_dir_all(&programs).doing(what)?;
        let program = copy(&weightfs.binary, &programs.join("weightfs"))?;
        let own = std::env::current_exe().doing(|| "find this program".to_owned())?;
        let reader = copy(&own, &programs.join("weightfs-bench"))?;
        for path in [place, &mountpoint] {
            chown(path, Some(NOBODY), Some(NOBODY)).doing(what)?;
        }
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation", "private", "sh", "-c", SCRIPT, "sh"]).arg(place);
        command.arg(NOBODY.to_string()).arg(home_of(interpreters)).arg(reader).arg(helper::ARGUMENT).args(interpreters);
        command.env("XDG_RUNTIME_DIR", place).env("XDG_STATE_HOME", place.join("state")).env("HOME", place);
        let helper = Helper::of(command)?;
        let source = weightfs.source.clone();
        Ok(Self { helper, program, source, mountpoint, ram: ram.to_owned(), place: place.to_owned() })
    }

    pub fn reader(&mut self) -> &mut Helper {
        &mut self.helper
    }

    pub fn mountpoint(&self) -> &Path {
        &self.mountpoint
    }

    pub fn mount(&mut self) -> Result<()> {
        let ram = format!("--ram={}", self.ram);
        let (source, mountpoint) = (self.source.clone(), self.mountpoint.clone());
        self.run(&["mount", &ram, &source.to_string_lossy(), &mountpoint.to_string_lossy()]).map(drop)
    }

    pub fn unmount(&mut self) -> Result<()> {
        let mountpoint = self.mountpoint.clone();
        self.run(&["unmount", &mountpoint.to_string_lossy()]).map(drop)
    }

    pub fn prefetch(&mut self, path: &Path) -> Result<()> {
        self.run(&["prefetch", "--wait", &path.to_string_lossy()]).map(drop)
    }

    pub fn work(&mut self) -> Result<Work> {
        let mountpoint = self.mountpoint.clone();
        let text = self.run(&["status", &mountpoint.to_string_lossy(), "--json"])?;
        let status: Status = serde_json::from_str(&text).doing(|| "read the status of the daemon".to_owned())?;
        Ok(Work::of(&status, process::cpu_seconds(status.worker.pid)?))
    }

    fn run(&mut self, words: &[&str]) -> Result<String> {
        let program = self.program.to_string_lossy().into_owned();
        let all: Vec<&str> = std::iter::once(program.as_str()).chain(words.iter().copied()).collect();
        self.helper.run(&all)
    }
}

impl Drop for Nobody {
    fn drop(&mut self) {
        // Mounted or not; the namespace, and with it every mount in it, goes with its last process.
        if self.unmount().is_err() {
            end_daemons(&self.place);
        }
        if let Err(error) = fs::remove_dir_all(&self.place) {
            eprintln!("cannot remove {}: {error}", self.place.display());
        }
    }
}

fn copy(from: &Path, to: &Path) -> Result<PathBuf> {
    let what = || format!("copy {} to where everybody may run it", from.display());
    fs::copy(from, to).doing(what)?;
    fs::set_permissions(to, fs::Permissions::from_mode(0o755)).doing(what)?;
    Ok(to.to_owned())
}

/// The folder in root's home directory that the interpreters lie in, if they do.
fn home_of(interpreters: &[PathBuf]) -> PathBuf {
    let real = interpreters.iter().filter_map(|interpreter| interpreter.canonicalize().ok());
    let inside = |path: PathBuf| Some(Path::new("/root").join(path.strip_prefix("/root").ok()?.components().next()?));
    real.filter_map(inside).next().unwrap_or_default()
}
