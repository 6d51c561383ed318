//! `weightfs upgrade`: another program goes on with the running mounts.

use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use clap::Args;

use crate::exit::{EXIT_CODES_HELP, Exit, Failure};
use crate::mount::launch::this_program;
use crate::{find, output};

/// How long the new worker may take to answer.
const PATIENCE: Duration = Duration::from_secs(60);
const LOOK_AGAIN: Duration = Duration::from_millis(20);

const HELP: &str = "\
Programs that use the mounts notice a short pause. What is in RAM stays there, and files stay open. The supervisor itself
stays the program that it was until the next mount.

Examples:
  weightfs upgrade                          this program serves the only daemon that runs
  weightfs upgrade /opt/weightfs-2/weightfs another one does
  weightfs upgrade ./weightfs /mnt/models   of several daemons, the one of this mount";

#[derive(Args, Clone, Debug)]
#[command(after_help = format!("{HELP}\n\n{EXIT_CODES_HELP}"))]
pub struct UpgradeArgs {
    /// The program that takes over. [default: this one]
    #[arg(value_name = "PROGRAM")]
    program: Option<PathBuf>,

    /// A path in a mount of the daemon to upgrade. Without one, the only daemon there is.
    #[arg(value_name = "PATH")]
    path: Option<PathBuf>,
}

pub fn run(arguments: &UpgradeArgs) -> Result<(), Failure> {
    let program = match &arguments.program {
        Some(program) => find::resolve(program)?,
        None => this_program().map_err(|error| Failure::failed(format!("cannot find this program: {error}")))?,
    };
    let daemon = find::daemon(arguments.path.as_deref())?;
    let before = daemon.status().map_err(|error| find::failure(&error))?.worker;
    daemon.upgrade(&program).map_err(|error| find::failure(&error))?;
    let until = Instant::now() + PATIENCE;
    loop {
        // It does not answer while one goes and the other comes.
        if let Some(status) = daemon.status().ok().filter(|status| status.worker.pid != before.pid) {
            let text = format!("weightfs {} serves the mounts (process {})\n", status.version, status.worker.pid);
            return output::print(&text);
        }
        if Instant::now() >= until {
            let message = "the new worker does not answer; the daemon's log may say why".to_owned();
            return Err(Failure { exit: Exit::Failed, message });
        }
        thread::sleep(LOOK_AGAIN);
    }
}
