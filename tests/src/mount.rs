//! A mount of the program under test that goes away again, whatever happens to the test.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::Duration;

use nix::mount::{MntFlags, umount2};
use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;
use tempfile::TempDir;

use crate::status::Status;
use crate::system::{mounts_on, temporary_folder, wait_until};

/// How long a daemon may take to answer after its start, and to be gone after its end. Only a broken one needs it.
const PATIENCE: Duration = Duration::from_secs(20);

/// How long one mount may live in a test. A daemon that no longer answers holds its clients, and so the test, in the
/// kernel for ever; ended, it gives them an error.
fn longest_life() -> Duration {
    let seconds = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let stress = seconds("WEIGHTFS_STRESS_SECONDS").unwrap_or(0).max(seconds("WEIGHTFS_SOAK_SECONDS").unwrap_or(0));
    Duration::from_secs(240 + stress)
}

/// The built program.
///
/// # Panics
/// If it was not built: tests do not build what they test.
pub fn binary() -> PathBuf {
    if let Some(path) = std::env::var_os("WEIGHTFS_BIN") {
        return path.into();
    }
    let test = std::env::current_exe().expect("a test is a program");
    let folder = test.ancestors().nth(2).expect("target/<profile>/deps/<test>");
    let path = folder.join("weightfs");
    assert!(path.is_file(), "{} is not built: run 'cargo build -p weightfs-cli' first", path.display());
    path
}

/// A running daemon. Dropping it unmounts and ends it; [`Mount::stop`] does so and checks that it went well.
pub struct Mount {
    source: PathBuf,
    mountpoint: PathBuf,
    mounts_before: usize,
    child: Child,
    /// Sockets, state and log of this daemon alone, so that tests do not meet.
    private: TempDir,
    /// Kept for mount points that the harness made.
    _folder: Option<TempDir>,
    ended: bool,
    /// Dropped when the daemon has ended, which ends the watchdog.
    alive: Option<Sender<()>>,
}

impl Mount {
    /// Mounts `source` on a new folder.
    pub fn start(source: &Path, options: &[&str]) -> Mount {
        let folder = temporary_folder("mnt");
        let mountpoint = folder.path().join("models");
        fs::create_dir(&mountpoint).expect("make a mount point");
        Mount::start_on(source, &mountpoint, options, Some(folder))
    }

    /// Mounts `source` over itself.
    pub fn over(source: &Path, options: &[&str]) -> Mount {
        Mount::start_on(source, source, options, None)
    }

    /// Mounts `source` on the folder `mountpoint`.
    pub fn at(source: &Path, mountpoint: &Path, options: &[&str]) -> Mount {
        Mount::start_on(source, mountpoint, options, None)
    }

    /// As [`Mount::at`], with the state that a daemon before left behind: see [`Mount::stop_and_keep`].
    pub fn again(source: &Path, mountpoint: &Path, options: &[&str], state: Option<TempDir>) -> Mount {
        let text = |path: &Path| path.to_str().expect("UTF-8").to_owned();
        let (source_text, mountpoint_text) = (text(source), text(mountpoint));
        let arguments = [options, &[&source_text, &mountpoint_text]].concat();
        Mount::start_in(source, mountpoint, &arguments, None, state.unwrap_or_else(|| temporary_folder("run")))
    }

    fn start_on(source: &Path, mountpoint: &Path, options: &[&str], folder: Option<TempDir>) -> Mount {
        let mut arguments: Vec<&str> = options.to_vec();
        let (source_text, mountpoint_text) = (source.to_str().expect("UTF-8"), mountpoint.to_str().expect("UTF-8"));
        arguments.push(source_text);
        if source != mountpoint {
            arguments.push(mountpoint_text);
        }
        Mount::start_raw(source, mountpoint, &arguments, folder)
    }

    /// Runs `weightfs mount --foreground` with exactly these arguments and waits until `mountpoint` answers.
    ///
    /// # Panics
    /// With the daemon's log, if it does not come to answer.
    pub fn start_raw(source: &Path, mountpoint: &Path, arguments: &[&str], folder: Option<TempDir>) -> Mount {
        Mount::start_in(source, mountpoint, arguments, folder, temporary_folder("run"))
    }

    fn start_in(
        source: &Path,
        mountpoint: &Path,
        arguments: &[&str],
        folder: Option<TempDir>,
        private: TempDir,
    ) -> Mount {
        Mount::start_as(source, mountpoint, arguments, folder, private, &[])
    }

    /// As [`Mount::start`], with more in the daemon's environment.
    pub fn start_with(source: &Path, options: &[&str], environment: &[(&str, &str)]) -> Mount {
        let folder = temporary_folder("mnt");
        let mountpoint = folder.path().join("models");
        fs::create_dir(&mountpoint).expect("make a mount point");
        let text = |path: &Path| path.to_str().expect("UTF-8").to_owned();
        let (source_text, mountpoint_text) = (text(source), text(&mountpoint));
        let arguments = [options, &[&source_text, &mountpoint_text]].concat();
        Mount::start_as(source, &mountpoint, &arguments, Some(folder), temporary_folder("run"), environment)
    }

    fn start_as(
        source: &Path,
        mountpoint: &Path,
        arguments: &[&str],
        folder: Option<TempDir>,
        private: TempDir,
        environment: &[(&str, &str)],
    ) -> Mount {
        let mounts_before = mounts_on(mountpoint).len();
        let log = File::create(private.path().join("log")).expect("create the log");
        let mut command = program(private.path());
        command.args(["mount", "--foreground"]).args(arguments).envs(environment.iter().copied());
        // A group of its own: what the daemon starts can be ended with it, and nothing else can.
        command.process_group(0).stdin(Stdio::null()).stderr(log.try_clone().expect("share the log")).stdout(log);
        let child = command.spawn().unwrap_or_else(|error| panic!("{} does not start: {error}", binary().display()));
        let mut mount = Mount {
            source: source.to_owned(),
            mountpoint: mountpoint.to_owned(),
            mounts_before,
            child,
            private,
            _folder: folder,
            ended: false,
            alive: None,
        };
        mount.alive = Some(watch(mount.child.id(), mountpoint.to_owned()));
        let mut early_end = None;
        let answers = wait_until(PATIENCE, || {
            early_end = mount.child.try_wait().expect("ask for the daemon");
            early_end.is_some() || (mount.is_mounted() && fs::metadata(&mount.mountpoint).is_ok())
        });
        assert!(early_end.is_none(), "the daemon ended at once ({early_end:?}):\n{}", mount.log());
        assert!(answers, "the mount does not answer:\n{}", mount.log());
        mount
    }

    /// Where clients read.
    pub fn path(&self) -> &Path {
        &self.mountpoint
    }

    /// `name` as clients see it.
    pub fn join(&self, name: &str) -> PathBuf {
        self.mountpoint.join(name)
    }

    /// The real folder. Under an over-mount, this is the mount too.
    pub fn source(&self) -> &Path {
        &self.source
    }

    /// The process that `weightfs mount --foreground` is: the supervisor.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Whether the mount is there.
    pub fn is_mounted(&self) -> bool {
        mounts_on(&self.mountpoint).len() > self.mounts_before
    }

    /// The folder with the daemon's socket, state and log.
    pub fn private_folder(&self) -> &Path {
        self.private.path()
    }

    /// Everything the daemon said so far.
    pub fn log(&self) -> String {
        fs::read_to_string(self.private.path().join("log")).unwrap_or_default()
    }

    /// Runs `weightfs` with these arguments, such that it finds this daemon.
    pub fn run(&self, arguments: &[&str]) -> Output {
        program(self.private.path()).args(arguments).output().expect("run weightfs")
    }

    /// `weightfs status MOUNTPOINT --json`.
    pub fn status(&self) -> Status {
        let output = self.run(&["status", self.mountpoint.to_str().expect("UTF-8"), "--json"]);
        assert!(output.status.success(), "status: {}\n{}", String::from_utf8_lossy(&output.stderr), self.log());
        Status(serde_json::from_slice(&output.stdout).expect("status --json prints JSON"))
    }

    /// Whether the supervisor has ended.
    pub fn has_ended(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(Some(_)))
    }

    /// For a daemon that has ended in a way that the test has looked at.
    pub fn forget(mut self) {
        self.alive = None;
        self.ended = true;
    }

    /// Ends a daemon whose workers may die while they end it.
    pub fn end_somehow(mut self) {
        self.signal(Signal::SIGTERM);
        self.wait();
        assert!(!self.is_mounted(), "{} is still mounted", self.mountpoint.display());
        self.forget();
    }

    /// Starts what may take the place of the daemon on this mount.
    pub fn spawn(&self, mut command: Command) -> Child {
        let log = File::options().append(true).open(self.private.path().join("log")).expect("open the log");
        command.process_group(0).stderr(log.try_clone().expect("share the log")).stdout(log);
        command.spawn().expect("start it")
    }

    /// Goes on with `child`, which has taken the place of a daemon that has died.
    pub fn go_on_with(&mut self, child: Child) {
        self.child = child;
        self.alive = Some(watch(self.child.id(), self.mountpoint.clone()));
    }

    /// Sends a signal to the daemon.
    pub fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id() as i32), signal).expect("the daemon is there");
    }

    /// Waits until the daemon is gone.
    ///
    /// # Panics
    /// If it does not go.
    pub fn wait(&mut self) -> ExitStatus {
        let mut status = None;
        wait_until(PATIENCE, || {
            status = self.child.try_wait().expect("ask for the daemon");
            status.is_some()
        });
        status.unwrap_or_else(|| panic!("the daemon does not end:\n{}", self.log()))
    }

    /// Unmounts as a user would and checks that nothing is left: no mount, no process, and a clean exit.
    pub fn stop(mut self) {
        let output = self.run(&["unmount", self.mountpoint.to_str().expect("UTF-8")]);
        assert!(output.status.success(), "unmount: {}\n{}", String::from_utf8_lossy(&output.stderr), self.log());
        self.check_gone();
    }

    /// As [`Mount::stop`]. Returns the folder with what the daemon leaves to the next one.
    pub fn stop_and_keep(mut self) -> TempDir {
        let output = self.run(&["unmount", self.mountpoint.to_str().expect("UTF-8")]);
        assert!(output.status.success(), "unmount: {}\n{}", String::from_utf8_lossy(&output.stderr), self.log());
        self.check_gone();
        std::mem::replace(&mut self.private, temporary_folder("run"))
    }

    /// That the daemon ends by itself with status 0 and leaves no mount.
    pub fn check_gone(&mut self) {
        let status = self.wait();
        self.alive = None;
        assert!(status.success(), "the daemon ended with {status} (signal {:?}):\n{}", status.signal(), self.log());
        assert!(!self.is_mounted(), "{} is still mounted", self.mountpoint.display());
        self.ended = true;
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let log = self.log();
            let tail: Vec<&str> = log.lines().rev().take(200).collect();
            println!("--- log of the daemon, its last {} lines ---", tail.len());
            tail.iter().rev().for_each(|line| println!("{line}"));
        }
        if self.ended {
            return;
        }
        // Busy only while a client of the test itself is still closing its files.
        wait_until(Duration::from_secs(2), || {
            !self.is_mounted() || umount2(&self.mountpoint, MntFlags::empty()).is_ok()
        });
        let group = Pid::from_raw(self.child.id() as i32);
        let mut gone = wait_until(Duration::from_secs(5), || matches!(self.child.try_wait(), Ok(Some(_))));
        if !gone {
            let _ = killpg(group, Signal::SIGTERM);
            gone = wait_until(Duration::from_secs(5), || matches!(self.child.try_wait(), Ok(Some(_))));
        }
        self.alive = None;
        let _ = killpg(group, Signal::SIGKILL);
        let _ = self.child.wait();
        let left = self.is_mounted();
        while self.is_mounted() && umount2(&self.mountpoint, MntFlags::MNT_DETACH).is_ok() {}
        if !std::thread::panicking() {
            assert!(
                gone && !left,
                "the daemon had to be killed (gone: {gone}, still mounted: {left}):\n{}",
                self.log()
            );
        }
    }
}

/// Ends the process group `id` if the mount lives for too long.
fn watch(id: u32, mountpoint: PathBuf) -> Sender<()> {
    let (alive, ended) = channel();
    std::thread::spawn(move || {
        if ended.recv_timeout(longest_life()) == Err(RecvTimeoutError::Timeout) {
            let _ = writeln!(
                std::io::stderr(),
                "*** {} lives for too long: its daemon is killed ***",
                mountpoint.display()
            );
            let _ = killpg(Pid::from_raw(id as i32), Signal::SIGKILL);
        }
    });
    alive
}

/// `weightfs` with a runtime and state folder of its own.
pub fn program(private: &Path) -> Command {
    let mut command = Command::new(binary());
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("WEIGHTFS_")) {
        command.env_remove(name);
    }
    command.env("XDG_RUNTIME_DIR", private).env("XDG_STATE_HOME", private.join("state")).env("HOME", private);
    command.env("WEIGHTFS_LOG", std::env::var("WEIGHTFS_TEST_LOG").unwrap_or_else(|_| "info".to_owned()));
    command
}

/// A number for names that must not meet.
pub fn unique() -> u32 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}
