//! What the options mean on this machine, checked as a whole before anything is started.

use std::env;
use std::path::{Path, PathBuf};

use nix::unistd::Group;
use weightfs_mount::runtime_dir::{RuntimeDir, daemon_name};
use weightfs_mount::settings::Settings;

use super::options::Options;
use super::serve::Logging;
use super::values::Wait;
use super::{folders, sizes};
use crate::env_vars;
use crate::exit::{Exit, Failure};
use crate::machine::fuse::{self, FuseError};
use crate::machine::memory::Memory;
use weightfs_mount::mount_table::MountTable;

const OPEN_WAIT: Wait = Wait(std::time::Duration::from_secs(2));
const SYSTEM_STATE: &str = "/var/lib/weightfs";

/// A daemon, ready to be started.
#[derive(Debug)]
pub struct Plan {
    pub settings: Settings,
    pub runtime: RuntimeDir,
    pub logging: Logging,
    /// Where a daemon in the background logs.
    pub background_log: PathBuf,
}

impl Plan {
    pub fn of(options: &Options) -> Result<Self, Failure> {
        let mounted = MountTable::read()
            .map_err(|error| Failure::failed(format!("cannot read /proc/self/mountinfo: {error}")))?;
        let mounts = folders::check(options, &mounted).map_err(|error| Failure::new(folder_exit(&error), &error))?;
        let memory = Memory::read().map_err(|error| Failure::new(Exit::Failed, &error))?;
        let sizes = sizes::check(options, &memory).map_err(|error| Failure::new(Exit::Usage, &error))?;
        let uid = rustix::process::geteuid();
        let allow_other = options.allow_other.unwrap_or(uid.is_root());
        fuse::check(allow_other, env::var_os(env_vars::PATH).as_deref())
            .map_err(|error| Failure::new(fuse_exit(&error), &error))?;

        let runtime = RuntimeDir::of_user(uid.as_raw(), env::var_os(env_vars::XDG_RUNTIME_DIR).as_deref());
        let name = daemon_name(&mounts[0].mountpoint);
        let state_dir = state_base(uid.is_root()).unwrap_or_else(|| runtime.path().join("state")).join(&name);
        let settings = Settings {
            mounts,
            ram: sizes.ram,
            high_watermark: sizes.high_watermark,
            low_watermark: sizes.low_watermark,
            reserve: sizes.reserve,
            read_only: options.read_only.unwrap_or(false),
            allow_other,
            follow_symlinks: options.follow_symlinks.unwrap_or(false),
            io: options.io.unwrap_or_default(),
            passthrough: !options.no_passthrough.unwrap_or(false),
            open_wait: options.open_wait.unwrap_or(OPEN_WAIT).0,
            control_group: options.control_group.as_deref().map(group).transpose()?,
            listen: options.listen,
            control_socket: runtime.socket(&name),
            state_dir,
        };
        let logging = Logging::of(options);
        let background_log = logging.file.clone().unwrap_or_else(|| runtime.log(&name));
        Ok(Self { settings, runtime, logging, background_log })
    }
}

/// Where what outlives daemons is kept. None for a user without a home.
fn state_base(root: bool) -> Option<PathBuf> {
    if root {
        return Some(SYSTEM_STATE.into());
    }
    let absolute = |name: &str| env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    absolute(env_vars::XDG_STATE_HOME)
        .or_else(|| Some(absolute(env_vars::HOME)?.join(Path::new(".local/state"))))
        .map(|base| base.join("weightfs"))
}

/// A group by its name or number.
fn group(name: &str) -> Result<u32, Failure> {
    let found = Group::from_name(name).ok().flatten().map(|group| group.gid.as_raw());
    found.or_else(|| name.parse().ok()).ok_or_else(|| Failure {
        exit: Exit::Usage,
        message: format!("there is no group '{name}' for --control-group; make it with 'groupadd {name}'"),
    })
}

fn folder_exit(error: &folders::FolderError) -> Exit {
    match error {
        folders::FolderError::NoSource | folders::FolderError::MountpointAlone => Exit::Usage,
        folders::FolderError::NoAccess(_) => Exit::NotPermitted,
        _ => Exit::Failed,
    }
}

fn fuse_exit(error: &FuseError) -> Exit {
    match error {
        FuseError::RootWithoutRights | FuseError::AllowOtherForbidden => Exit::NotPermitted,
        FuseError::NoDevice | FuseError::DeviceClosed(_) | FuseError::NoFusermount => Exit::Unsupported,
    }
}
