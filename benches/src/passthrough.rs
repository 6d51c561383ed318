//! A FUSE file system that passes everything on to a folder and does nothing else: the example of libfuse.
//!
//! `passthrough_ll` rather than its faster sibling `passthrough_hp`, which Debian ships neither built nor as a source.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::error::{BenchError, Doing, Result};
use crate::process;
use crate::weightfs::detach_below;

/// Where the Makefile builds it, seen from the folder of this program.
const BUILT: &str = "../bench-tools/passthrough_ll";

/// Descriptors for everything but files.
const SPARE: u64 = 1000;

/// How long it may take to be mounted or gone.
const PATIENCE: Duration = Duration::from_secs(10);

pub struct Passthrough {
    child: Child,
    mountpoint: PathBuf,
}

/// The program beside this one, or why there is none.
pub fn of_this_program() -> std::result::Result<PathBuf, String> {
    std::env::current_exe().map_err(|error| error.to_string()).and_then(|program| find(&program))
}

fn find(program: &Path) -> std::result::Result<PathBuf, String> {
    let built = program.parent().map(|folder| folder.join(BUILT)).filter(|built| built.exists());
    built
        .ok_or_else(|| "passthrough_ll of libfuse is not built (the package libfuse3-dev, and 'make bench')".to_owned())
}

/// Lets it keep a descriptor of each of `files`, as it does of every file that the kernel knows, or says why it cannot.
pub fn can_hold(files: u64) -> std::result::Result<(), String> {
    let (limit, wanted) = (getrlimit(Resource::Nofile), files + SPARE);
    let [current, maximum] = [limit.current, limit.maximum].map(|limit| limit.map(|limit| limit.max(wanted)));
    setrlimit(Resource::Nofile, Rlimit { current, maximum })
        .map_err(|error| format!("it needs {wanted} descriptors, which 'ulimit -n' does not allow here: {error}"))
}

impl Passthrough {
    /// With the page cache kept between opens: what serves its readers best.
    pub fn mount(program: &Path, source: &Path, mountpoint: &Path) -> Result<Self> {
        let what = || format!("run {}", program.display());
        std::fs::create_dir_all(mountpoint).doing(|| format!("make {}", mountpoint.display()))?;
        let device =
            |path: &Path| rustix::fs::stat(path).map(|stat| stat.st_dev).doing(|| "look at a folder".to_owned());
        let before = device(mountpoint)?;
        let child = Command::new(program)
            .args(["-f", "-o"])
            .arg(format!("source={},cache=always", source.display()))
            .arg(mountpoint)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .doing(what)?;
        let mounted = Self { child, mountpoint: mountpoint.to_owned() };
        let start = Instant::now();
        while device(mountpoint)? == before {
            if start.elapsed() > PATIENCE {
                return Err(BenchError::Unfit(format!("{} does not mount", program.display())));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(mounted)
    }

    pub fn cpu_seconds(&self) -> Result<f64> {
        process::cpu_seconds(self.child.id())
    }
}

impl Drop for Passthrough {
    fn drop(&mut self) {
        detach_below(&self.mountpoint);
        let start = Instant::now();
        while !matches!(self.child.try_wait(), Ok(Some(_))) {
            if start.elapsed() > PATIENCE
                && let Err(error) = self.child.kill()
            {
                eprintln!("cannot end passthrough_ll: {error}");
                return;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}
