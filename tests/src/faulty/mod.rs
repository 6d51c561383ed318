//! A source that fails on demand: a small file system over a plain folder that answers some requests wrongly, late, or
//! not at all, as a script says.
//!
//! It runs in the test's own process. No thread of it ever waits: what is to hang is put aside, and answered later. Tests
//! look at the plain folder to prepare files, and never at the mounted one while something hangs there.

mod script;
mod server;

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::Duration;

use fuser::{BackgroundSession, Config, MountOption, SessionACL};
use nix::mount::{MntFlags, umount2};
use parking_lot::Mutex;
use tempfile::TempDir;

use crate::system::temporary_folder;

pub use script::{Fault, Op, Rule, Script};
use server::{Parked, Server};

/// After this, whatever hangs gets an error from the kernel: a test that went wrong must not hang for ever.
const LONGEST_LIFE: Duration = Duration::from_secs(200);

/// The mounted file system. Whoever mounts something over it has to go first.
pub struct Faulty {
    backing: PathBuf,
    mountpoint: TempDir,
    pub script: Arc<Script>,
    parked: Arc<Parked>,
    connection: u32,
    session: Mutex<Option<BackgroundSession>>,
    _alive: Sender<()>,
}

impl Faulty {
    /// Shows `backing`, as it is for now.
    pub fn over(backing: &Path) -> Faulty {
        let mountpoint = temporary_folder("faulty");
        let (script, parked) = (Arc::<Script>::default(), Arc::<Parked>::default());
        let server = Server::new(backing, Arc::clone(&script), Arc::clone(&parked));
        let mut config = Config::default();
        config.acl = SessionACL::All;
        config.n_threads = Some(4);
        config.mount_options = vec![MountOption::FSName("faulty".to_owned()), MountOption::DefaultPermissions];
        let session = fuser::spawn_mount(server, mountpoint.path(), &config).expect("mount the faulty source");
        let device = fs::metadata(mountpoint.path()).expect("it answers").dev();
        let connection = rustix::fs::minor(device);
        let (alive, ended) = channel();
        std::thread::spawn(move || {
            if ended.recv_timeout(LONGEST_LIFE) == Err(RecvTimeoutError::Timeout) {
                abort(connection);
            }
        });
        let session = Mutex::new(Some(session));
        Faulty { backing: backing.to_owned(), mountpoint, script, parked, connection, session, _alive: alive }
    }

    /// Where it is mounted.
    pub fn path(&self) -> &Path {
        self.mountpoint.path()
    }

    /// The plain folder behind it.
    pub fn backing(&self) -> &Path {
        &self.backing
    }

    /// Requests that `rule` meets get no answer until the result is dropped.
    pub fn hang(&self, rule: Rule) -> Hang {
        let (script, parked) = (Arc::clone(&self.script), Arc::clone(&self.parked));
        Hang { rule: self.script.add(rule), script, parked }
    }

    /// How many requests hang now.
    pub fn hanging(&self) -> usize {
        self.parked.count()
    }
}

impl Drop for Faulty {
    fn drop(&mut self) {
        self.script.clear();
        self.parked.release();
        let left = self.session.lock().take();
        if umount2(self.path(), MntFlags::empty()).is_err() {
            // Somebody holds it who should not, or a test has failed.
            abort(self.connection);
            let _ = umount2(self.path(), MntFlags::MNT_DETACH);
        }
        drop(left);
    }
}

fn abort(connection: u32) {
    // Gone already is fine.
    let _ = fs::write(format!("/sys/fs/fuse/connections/{connection}/abort"), "1");
}

/// Requests hang while this lives.
pub struct Hang {
    rule: u64,
    script: Arc<Script>,
    parked: Arc<Parked>,
}

impl Drop for Hang {
    fn drop(&mut self) {
        self.script.remove(self.rule);
        self.parked.release();
    }
}
