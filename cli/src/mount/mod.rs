//! `weightfs mount`: from what was said, over what that means on this machine, to a daemon that serves it.

pub mod folders;
pub mod helper;
pub mod launch;
pub mod layers;
pub mod options;
pub mod plan;
mod replace;
pub mod serve;
pub mod sizes;
pub mod values;

use std::path::PathBuf;

use clap::Args;
use clap::builder::BoolishValueParser;
use weightfs::control::Status;
use weightfs::units::ByteSize;
use weightfs_mount::control_client::ControlClient;

use crate::exit::{EXIT_CODES_HELP, Exit, Failure};
use crate::output;
use options::Options;
use plan::Plan;

const HELP: &str = "\
Every option can also be given by a variable (WEIGHTFS_RAM=24GiB, WEIGHTFS_READ_ONLY=1; WEIGHTFS_ALSO takes several,
separated by semicolons) and in the file (ram = \"24GiB\", read-only = true). The command line comes before the
environment, the environment before the file.

Examples:
  weightfs mount ~/ComfyUI/models                     over the folder itself, half of the free RAM
  weightfs mount --ram 24GiB /srv/models /mnt/models  elsewhere, with a budget
  weightfs mount --config /etc/weightfs/models.toml   as a file says";

#[derive(Args, Clone, Debug, Default, PartialEq)]
#[command(after_help = format!("{HELP}\n\n{EXIT_CODES_HELP}"))]
pub struct MountArgs {
    #[command(flatten)]
    pub options: Options,

    /// A TOML file with options of these names, and with 'source' and 'mountpoint'.
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,

    /// Stay, and end with the mount, instead of going to the background. For service managers.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true",
          value_parser = BoolishValueParser::new())]
    pub foreground: Option<bool>,

    /// How a daemon in the background is started: arguments are complete, and standard output is listened to.
    #[arg(long, hide = true)]
    pub ready_on_stdout: bool,
}

pub fn run(arguments: MountArgs) -> Result<(), Failure> {
    if arguments.ready_on_stdout {
        let served = Plan::of(&arguments.options).and_then(serve::in_background);
        // Standard error is the log by now, and whoever started this wants to know as well.
        return served.inspect_err(|failure| drop(output::print(&failure.message)));
    }
    let arguments = layers::complete(arguments, |name| std::env::var_os(name))
        .map_err(|error| Failure::new(Exit::Usage, &error))?;
    if arguments.foreground == Some(true)
        && let Some(served) = serve::in_its_place(&arguments.options)
    {
        return served;
    }
    if arguments.options.replace == Some(true) {
        replace::dead_mounts(&arguments.options)?;
    }
    let plan = Plan::of(&arguments.options)?;
    if arguments.foreground == Some(true) {
        return serve::in_foreground(plan);
    }
    launch::background(&plan, &arguments.options)?;
    let status = ControlClient::new(plan.settings.control_socket.clone()).status();
    output::print(&format!("{}\n", ready_line(&plan, status.ok().as_ref())))
}

/// Checks everything and mounts nothing.
pub fn check(arguments: MountArgs) -> Result<(), Failure> {
    let arguments = layers::complete(arguments, |name| std::env::var_os(name))
        .map_err(|error| Failure::new(Exit::Usage, &error))?;
    Plan::of(&arguments.options).map(drop)
}

fn ready_line(plan: &Plan, status: Option<&Status>) -> String {
    let mountpoints: Vec<_> = plan.settings.mounts.iter().map(|mount| mount.mountpoint.display().to_string()).collect();
    let are = if mountpoints.len() == 1 { "is" } else { "are" };
    let mut facts = vec![format!("up to {} of RAM", ByteSize(plan.settings.ram))];
    if let Some(status) = status {
        let passthrough = status.mounts.iter().all(|mount| mount.passthrough);
        facts.push(if passthrough { "passthrough" } else { "no passthrough" }.into());
        facts.push(format!("reads by {}", status.io.engine));
        if !status.notes.is_empty() {
            facts.push("'weightfs status' says what is missing here".into());
        }
    }
    format!("{} {are} ready ({})", mountpoints.join(", "), facts.join(", "))
}
