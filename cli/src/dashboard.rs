//! `weightfs dashboard`: has the daemon serve a page to a browser, and says where.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use clap::Args;

use crate::exit::{EXIT_CODES_HELP, Failure};
use crate::find;
use crate::output::figures::plain;
use crate::output::{self, json};

const HELP: &str = "\
The address has a secret in it: whoever has it may change things. Without the secret the page only shows them.

Examples:
  weightfs dashboard                      print the address
  weightfs dashboard --open               open it in the browser of this desktop
  weightfs dashboard --listen 127.0.0.1:8190
  ssh -L 8190:127.0.0.1:8190 HOST         to see the page of another machine";

#[derive(Args, Clone, Debug)]
#[command(after_help = format!("{HELP}\n\n{EXIT_CODES_HELP}"))]
pub struct DashboardArgs {
    /// Any path in a mount, for its daemon. Not needed while only one daemon runs
    #[arg(value_name = "PATH")]
    path: Option<PathBuf>,

    /// Where to listen, if the daemon does not yet: an address and a port of this machine [default: 127.0.0.1, any port]
    #[arg(long, value_name = "ADDRESS:PORT")]
    listen: Option<String>,

    /// Open the page in the browser of this desktop
    #[arg(long)]
    open: bool,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub fn run(arguments: &DashboardArgs) -> Result<(), Failure> {
    let daemon = find::daemon(arguments.path.as_deref())?;
    let page = daemon.dashboard(arguments.listen.as_deref()).map_err(|error| find::failure(&error))?;
    output::print(&if arguments.json { json::pretty(&page)? } else { format!("{}\n", plain(&page.url)) })?;
    if arguments.open { open(&page.url) } else { Ok(()) }
}

fn open(url: &str) -> Result<(), Failure> {
    let mut browser = Command::new("xdg-open");
    browser.arg(url).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    match browser.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(Failure::failed(format!("xdg-open ended with {status}; open the address by hand"))),
        Err(error) => Err(Failure::failed(format!("cannot run xdg-open: {error}; open the address by hand"))),
    }
}
