//! `weightfs flush`: frees everything that nobody uses.

use std::path::PathBuf;

use clap::Args;
use weightfs::units::ByteSize;

use crate::exit::{EXIT_CODES_HELP, Failure};
use crate::find;
use crate::output::figures::files;
use crate::output::{self, json};

const HELP: &str = "\
What is pinned, or open or mapped by a program, stays.

Examples:
  weightfs flush                          before a program that needs the RAM
  weightfs flush ~/ComfyUI/models         of the daemon behind any path of a mount";

#[derive(Args, Clone, Debug)]
#[command(after_help = format!("{HELP}\n\n{EXIT_CODES_HELP}"))]
pub struct FlushArgs {
    /// Any path in a mount, for its daemon. Not needed while only one daemon runs
    #[arg(value_name = "PATH")]
    path: Option<PathBuf>,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub fn run(arguments: &FlushArgs) -> Result<(), Failure> {
    let daemon = find::daemon(arguments.path.as_deref())?;
    let done = daemon.flush().map_err(|error| find::failure(&error))?;
    if arguments.json {
        return output::print(&json::pretty(&done)?);
    }
    let left = output::staying(done.left_bytes);
    output::print(&format!("{} freed, {}{left}\n", ByteSize(done.bytes), files(done.files)))
}
