//! `weightfs pin`, `unpin` and `evict`: what people want to have in RAM, and what not.

use std::path::PathBuf;

use clap::Args;
use weightfs::control::{EvictRequest, Outcome, PinRequest};
use weightfs::pattern::Pattern;
use weightfs::units::ByteSize;
use weightfs_mount::control_client::{ClientError, ControlClient};

use crate::exit::{EXIT_CODES_HELP, Failure};
use crate::find;
use crate::output::figures::{files, shown};
use crate::output::{self, json};

const PIN_HELP: &str = "\
Examples:
  weightfs pin ~/ComfyUI/models/vae/ae.safetensors        this file, also after a restart
  weightfs pin ~/ComfyUI/models/loras/'*.safetensors'     these, and those that come later
  weightfs pin sd15.safetensors --tensors 'cond_stage_model.*'
                                                          only the text encoder of a checkpoint

Pins that do not fit are refused. 'weightfs status' shows how much is pinned.";

const UNPIN_HELP: &str = "\
The file stays in RAM as long as the policy keeps it.

Examples:
  weightfs unpin ~/ComfyUI/models/vae/ae.safetensors
  weightfs unpin ~/ComfyUI/models/loras/'*.safetensors'   a pin is taken back by the words that it was made with";

const EVICT_HELP: &str = "\
What is pinned stays, and so does what a program has open or mapped.

Examples:
  weightfs evict ~/ComfyUI/models/checkpoints/old.safetensors
  weightfs evict sd15.safetensors --tensors 'first_stage_model.*'   only the VAE of a checkpoint
  weightfs flush                                                    everything that nobody uses";

#[derive(Args, Clone, Debug)]
#[command(after_help = format!("{PIN_HELP}\n\n{EXIT_CODES_HELP}"))]
pub struct PinArgs {
    #[command(flatten)]
    what: What,

    /// Only tensors whose name matches; 'weightfs ls --tensors FILE' shows them
    #[arg(long, value_name = "GLOB")]
    tensors: Option<String>,
}

#[derive(Args, Clone, Debug)]
#[command(after_help = format!("{UNPIN_HELP}\n\n{EXIT_CODES_HELP}"))]
pub struct UnpinArgs {
    #[command(flatten)]
    what: What,
}

#[derive(Args, Clone, Debug)]
#[command(after_help = format!("{EVICT_HELP}\n\n{EXIT_CODES_HELP}"))]
pub struct EvictArgs {
    #[command(flatten)]
    what: What,

    /// Only tensors whose name matches; 'weightfs ls --tensors FILE' shows them
    #[arg(long, value_name = "GLOB")]
    tensors: Option<String>,
}

#[derive(Args, Clone, Debug)]
struct What {
    /// A file in a mount; names may have * and ? in them
    #[arg(value_name = "PATH", required = true)]
    paths: Vec<PathBuf>,

    /// Print JSON: an outcome for each PATH
    #[arg(long)]
    json: bool,
}

pub fn pin(arguments: &PinArgs) -> Result<(), Failure> {
    let tensors = arguments.tensors.as_ref().map(Pattern::new);
    each(
        &arguments.what,
        |daemon, path| daemon.pin(&PinRequest { path, tensors: tensors.clone(), priority: None }),
        |done| format!("{} pinned, {}", ByteSize(done.bytes), files(done.files)),
    )
}

pub fn unpin(arguments: &UnpinArgs) -> Result<(), Failure> {
    each(
        &arguments.what,
        |daemon, path| daemon.unpin(&path),
        |done| format!("{} no longer pinned, {}", ByteSize(done.bytes), files(done.files)),
    )
}

pub fn evict(arguments: &EvictArgs) -> Result<(), Failure> {
    let tensors = arguments.tensors.as_ref().map(Pattern::new);
    each(
        &arguments.what,
        |daemon, path| daemon.evict(&EvictRequest { path, tensors: tensors.clone() }),
        |done| format!("{} freed, {}{}", ByteSize(done.bytes), files(done.files), output::staying(done.left_bytes)),
    )
}

fn each(
    what: &What,
    ask: impl Fn(&ControlClient, PathBuf) -> Result<Outcome, ClientError>,
    words: impl Fn(&Outcome) -> String,
) -> Result<(), Failure> {
    let mut outcomes = Vec::new();
    for path in &what.paths {
        let (daemon, resolved) = find::daemon_of_pattern(path)?;
        let done = ask(&daemon, resolved).map_err(|error| find::failure(&error))?;
        if !what.json {
            output::print(&format!("{}: {}\n", shown(path), words(&done)))?;
        }
        outcomes.push(done);
    }
    if what.json { output::print(&json::pretty(&outcomes)?) } else { Ok(()) }
}
