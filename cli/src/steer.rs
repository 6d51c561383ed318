//! `weightfs pin`, `unpin`, `prefetch` and `evict`: what people want to have in RAM.

use std::path::{Path, PathBuf};

use clap::Args;
use weightfs::control::{Outcome, Request};
use weightfs::pattern::Pattern;
use weightfs::units::ByteSize;

use crate::exit::{EXIT_CODES_HELP, Failure};
use crate::output::figures::files;
use crate::{find, output};

const PIN_HELP: &str = "\
Examples:
  weightfs pin ~/ComfyUI/models/vae/ae.safetensors        this file, also after a restart
  weightfs pin '~/ComfyUI/models/loras/*.safetensors'     these, and those that come later
  weightfs pin sd15.safetensors --tensors 'cond_stage_model.*'
                                                          only the text encoder of a checkpoint

Pins that do not fit are refused. 'weightfs status' shows how much is pinned.";

/// One or more files.
#[derive(Args, Clone, Debug)]
#[command(after_help = EXIT_CODES_HELP)]
pub struct PathsArgs {
    /// A file in a mount; names may have * and ? in them
    #[arg(value_name = "PATH", required = true)]
    paths: Vec<PathBuf>,
}

#[derive(Args, Clone, Debug)]
#[command(after_help = format!("{PIN_HELP}\n\n{EXIT_CODES_HELP}"))]
pub struct PinArgs {
    /// A file in a mount; names may have * and ? in them
    #[arg(value_name = "PATH", required = true)]
    paths: Vec<PathBuf>,

    /// Only tensors whose name matches, such as 'text_encoder.*'
    #[arg(long, value_name = "GLOB")]
    tensors: Option<String>,
}

#[derive(Args, Clone, Debug)]
#[command(after_help = EXIT_CODES_HELP)]
pub struct PrefetchArgs {
    /// A file in a mount; names may have * and ? in them
    #[arg(value_name = "PATH", required = true)]
    paths: Vec<PathBuf>,

    /// Return when they are there
    #[arg(long)]
    wait: bool,
}

pub fn pin(arguments: &PinArgs) -> Result<(), Failure> {
    let tensors = arguments.tensors.as_ref().map(Pattern::new);
    for path in &arguments.paths {
        let done = ask(path, |path| Request::Pin { path, tensors: tensors.clone() })?;
        say(path, &format!("{} pinned, {}", ByteSize(done.bytes), files(done.files)))?;
    }
    Ok(())
}

pub fn unpin(arguments: &PathsArgs) -> Result<(), Failure> {
    for path in &arguments.paths {
        let done = ask(path, |path| Request::Unpin { path })?;
        say(path, &format!("{} no longer pinned, {}", ByteSize(done.bytes), files(done.files)))?;
    }
    Ok(())
}

pub fn prefetch(arguments: &PrefetchArgs) -> Result<(), Failure> {
    let wait = arguments.wait;
    for path in &arguments.paths {
        let done = ask(path, |path| Request::Prefetch { path, wait })?;
        let left = match (wait, done.left_bytes) {
            (true, 1..) => format!(", {} do not fit or are worth less than what is there", ByteSize(done.left_bytes)),
            (false, 1..) => format!(", {} to come", ByteSize(done.left_bytes)),
            (_, 0) => String::new(),
        };
        say(path, &format!("{} resident, {}{left}", ByteSize(done.bytes), files(done.files)))?;
    }
    Ok(())
}

pub fn evict(arguments: &PathsArgs) -> Result<(), Failure> {
    for path in &arguments.paths {
        let done = ask(path, |path| Request::Evict { path })?;
        let left = match done.left_bytes {
            0 => String::new(),
            bytes => format!(", {} stay: pinned, or open or mapped by a program", ByteSize(bytes)),
        };
        say(path, &format!("{} freed, {}{left}", ByteSize(done.bytes), files(done.files)))?;
    }
    Ok(())
}

fn ask(path: &Path, request: impl FnOnce(PathBuf) -> Request) -> Result<Outcome, Failure> {
    let resolved = find::resolve_pattern(path)?;
    // A pattern is no path that could be looked at.
    let there = resolved.ancestors().find(|path| path.exists()).unwrap_or(&resolved);
    let client = find::daemon(Some(there))?;
    client.steer(&request(resolved.clone())).map_err(|error| find::failure(&error))
}

fn say(path: &Path, what: &str) -> Result<(), Failure> {
    output::print(&format!("{}: {what}\n", output::figures::shown(path)))
}
