//! `weightfs pin`, `unpin`, `prefetch` and `evict`: what people want to have in RAM.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use weightfs::control::{EvictRequest, Outcome, PinRequest, PrefetchRequest};
use weightfs::pattern::Pattern;
use weightfs::units::ByteSize;
use weightfs_mount::control_client::{ClientError, ControlClient};

use crate::exit::{EXIT_CODES_HELP, Failure};
use crate::{find, output};

/// How long to wait for news of a prefetch.
const LOOK_AGAIN: Duration = Duration::from_secs(10);

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
        let tensors = tensors.clone();
        let done = ask(path, |daemon, path| daemon.pin(&PinRequest { path, tensors, priority: None }))?;
        say(path, &format!("{} pinned, {}", ByteSize(done.bytes), files(&done)))?;
    }
    Ok(())
}

pub fn unpin(arguments: &PathsArgs) -> Result<(), Failure> {
    for path in &arguments.paths {
        let done = ask(path, |daemon, path| daemon.unpin(&path))?;
        say(path, &format!("{} no longer pinned, {}", ByteSize(done.bytes), files(&done)))?;
    }
    Ok(())
}

pub fn prefetch(arguments: &PrefetchArgs) -> Result<(), Failure> {
    let wait = arguments.wait;
    for path in &arguments.paths {
        let job = ask(path, |daemon, path| {
            let asked = PrefetchRequest { paths: vec![path], ..PrefetchRequest::default() };
            let mut job = daemon.prefetch(&asked)?;
            while wait && !job.state.has_ended() {
                job = daemon.job(&job.id, LOOK_AGAIN)?;
            }
            Ok(job)
        })?;
        let left = match (wait, job.bytes_total.saturating_sub(job.bytes_done)) {
            (true, left @ 1..) => format!(", {} do not fit or are worth less than what is there", ByteSize(left)),
            (false, left @ 1..) => format!(", {} to come", ByteSize(left)),
            (_, 0) => String::new(),
        };
        let done = Outcome { files: job.files, ..Outcome::default() };
        say(path, &format!("{} resident, {}{left}", ByteSize(job.bytes_done), files(&done)))?;
    }
    Ok(())
}

pub fn evict(arguments: &PathsArgs) -> Result<(), Failure> {
    for path in &arguments.paths {
        let done = ask(path, |daemon, path| daemon.evict(&EvictRequest { path, tensors: None }))?;
        let left = match done.left_bytes {
            0 => String::new(),
            bytes => format!(", {} stay: pinned, or open or mapped by a program", ByteSize(bytes)),
        };
        say(path, &format!("{} freed, {}{left}", ByteSize(done.bytes), files(&done)))?;
    }
    Ok(())
}

fn ask<T>(
    path: &Path,
    request: impl FnOnce(&ControlClient, PathBuf) -> Result<T, ClientError>,
) -> Result<T, Failure> {
    let resolved = find::resolve_pattern(path)?;
    // A pattern is no path that could be looked at.
    let there = resolved.ancestors().find(|path| path.exists()).unwrap_or(&resolved);
    let client = find::daemon(Some(there))?;
    request(&client, resolved.clone()).map_err(|error| find::failure(&error))
}

fn files(done: &Outcome) -> String {
    if done.files == 1 { "1 file".to_owned() } else { format!("{} files", done.files) }
}

fn say(path: &Path, what: &str) -> Result<(), Failure> {
    output::print(&format!("{}: {what}\n", output::human::shown(path)))
}
