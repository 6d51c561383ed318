//! `weightfs status`.

use std::path::PathBuf;

use clap::Args;

use crate::exit::{EXIT_CODES_HELP, Failure};
use crate::find;
use crate::output::paint::Paint;
use crate::output::{self, human, json};

const HELP: &str = "\
Examples:
  weightfs status                         of the one daemon that runs
  weightfs status ~/ComfyUI/models        of the daemon behind any path of a mount
  weightfs status --json | jq .ram        for scripts: bytes, and counts since the start";

#[derive(Args, Clone, Debug)]
#[command(after_help = format!("{HELP}\n\n{EXIT_CODES_HELP}"))]
pub struct StatusArgs {
    /// Any path in a mount. Not needed while only one daemon runs.
    #[arg(value_name = "MOUNTPOINT")]
    path: Option<PathBuf>,

    /// Print JSON.
    #[arg(long)]
    json: bool,
}

pub fn run(arguments: &StatusArgs) -> Result<(), Failure> {
    let client = find::daemon(arguments.path.as_deref())?;
    let status = client.status().map_err(|error| find::failure(&error))?;
    let text = if arguments.json { json::pretty(&status)? } else { human::status(&status, Paint::of_stdout()) };
    output::print(&text)
}
