//! `weightfs ls`: what of the models is in RAM.

mod text;

use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use serde::Serialize;
use weightfs::control::{FileSort, FileStatus, FilesQuery, Totals};

use crate::exit::{EXIT_CODES_HELP, Failure};
use crate::find;
use crate::output::paint::Paint;
use crate::output::{self, json};

const HELP: &str = "\
A bar shows what of a file is in RAM: █ is there, ▓ is pinned, ▒ is on its way, ░ is not there. Only regular files \
of 1 MiB or more are kept, and so listed.

Examples:
  weightfs ls                                     every model of the one daemon that runs
  weightfs ls ~/ComfyUI/models/loras --resident   what of this folder is in RAM
  weightfs ls --sort resident | head -20          what takes the most RAM
  weightfs ls --tensors sd15.safetensors          the parts of one file
  weightfs ls --json | jq '.files[] | select(.in_use).path'";

#[derive(Args, Clone, Debug)]
#[command(after_help = format!("{HELP}\n\n{EXIT_CODES_HELP}"))]
pub struct LsArgs {
    /// A folder or a file in a mount. Without it, everything in every mount of the one daemon that runs
    #[arg(value_name = "PATH")]
    path: Option<PathBuf>,

    /// Show the tensors of a file, by group
    #[arg(long, requires = "path")]
    tensors: bool,

    /// Only files of which something is in RAM
    #[arg(long, conflicts_with = "tensors")]
    resident: bool,

    /// In which order
    #[arg(long, value_name = "ORDER", default_value = "path", conflicts_with = "tensors")]
    sort: Order,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Names from a to z, everything else from the most or latest down.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Order {
    Path,
    Size,
    Resident,
    Used,
}

impl From<Order> for FileSort {
    fn from(order: Order) -> Self {
        match order {
            Order::Path => Self::Path,
            Order::Size => Self::Size,
            Order::Resident => Self::Resident,
            Order::Used => Self::Used,
        }
    }
}

/// What is printed as JSON.
#[derive(Serialize)]
struct Listing<'a> {
    files: &'a [FileStatus],
    totals: Totals,
}

pub fn run(arguments: &LsArgs) -> Result<(), Failure> {
    let path = arguments.path.as_deref().map(find::resolve).transpose()?;
    let daemon = find::daemon(path.as_deref())?;
    let paint = Paint::of_stdout();
    if let Some(file) = path.as_deref().filter(|_| arguments.tensors) {
        let tensors = daemon.tensors(file).map_err(|error| find::failure(&error))?;
        return output::print(&if arguments.json { json::pretty(&tensors)? } else { text::tensors(&tensors, paint) });
    }
    let query = FilesQuery {
        path: path.clone(),
        resident: arguments.resident.then_some(true),
        sort: Some(arguments.sort.into()),
        ..FilesQuery::default()
    };
    let found = daemon.all_files(&query).map_err(|error| find::failure(&error))?;
    output::print(&if arguments.json {
        json::pretty(&Listing { files: &found.files, totals: found.totals })?
    } else {
        let base = path.as_deref().filter(|path| Path::is_dir(path));
        text::files(&found.files, &found.totals, base, paint)
    })
}
