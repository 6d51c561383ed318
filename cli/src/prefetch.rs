//! `weightfs prefetch`: reads files into RAM before they are needed, and shows how far it is.

use std::path::PathBuf;
use std::process;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use clap::Args;
use nix::sys::signal::{SigSet, Signal};
use weightfs::control::{Job, JobState, PrefetchRequest};
use weightfs::pattern::Pattern;
use weightfs::units::ByteSize;
use weightfs_mount::control_client::ControlClient;

use crate::exit::{EXIT_CODES_HELP, Exit, Failure};
use crate::find;
use crate::output::figures::{files, plain, rate};
use crate::output::progress::Transfer;
use crate::output::{self, json};

/// How long to wait for news, and so for Ctrl-C to be seen.
const LOOK_AGAIN: Duration = Duration::from_millis(200);

/// How long a prefetch to a device is watched that nobody waits for: where it is impossible, it fails by then.
const FAILS_SOON: Duration = Duration::from_secs(3);

const HELP: &str = "\
It reads as much as the policy keeps: what does not fit, or is worth less than what is there, is left out. Without \
--wait it goes on in the daemon; 'weightfs top' shows how far it is.

Examples:
  weightfs prefetch --wait ~/ComfyUI/models/vae/ae.safetensors
                                                  with a progress bar; Ctrl-C stops the prefetch
  weightfs prefetch ~/ComfyUI/models/loras/'*.safetensors'
  weightfs prefetch sd15.safetensors --tensors 'cond_stage_model.*'
                                                  only the text encoder of a checkpoint
  weightfs prefetch --wait --to cuda:0 base.safetensors
                                                  into the GPU's memory, past RAM; 'weightfs doctor' says whether
                                                  this machine can";

const WITHOUT_DEVICE: &str = "\
Without --to it is read into RAM, from where loads to the GPU are fast too. 'weightfs doctor' says what this machine \
lacks.";

#[derive(Args, Clone, Debug)]
#[command(after_help = format!("{HELP}\n\n{EXIT_CODES_HELP}"))]
pub struct PrefetchArgs {
    /// A file in a mount; names may have * and ? in them
    #[arg(value_name = "PATH", required = true)]
    paths: Vec<PathBuf>,

    /// Only tensors whose name matches; 'weightfs ls --tensors FILE' shows them
    #[arg(long, value_name = "GLOB")]
    tensors: Option<String>,

    /// Read into the memory of a GPU instead, such as cuda:0, straight from storage where the machine can: the program
    /// that loads it within ten minutes finds it there
    #[arg(long, value_name = "DEVICE", value_parser = device)]
    to: Option<String>,

    /// Show how far it is, and return when it is done
    #[arg(long)]
    wait: bool,

    /// Print the job as JSON
    #[arg(long)]
    json: bool,
}

fn device(name: &str) -> Result<String, String> {
    weightfs::gpu::device_number(name).map(|_| name.to_owned())
}

pub fn run(arguments: &PrefetchArgs) -> Result<(), Failure> {
    let (daemon, paths) = find::daemon_of_patterns(&arguments.paths)?;
    let tensors = arguments.tensors.as_ref().map(Pattern::new);
    // Before anything has begun, so that it can be stopped from the start.
    let interrupted = if arguments.wait { Some(on_interrupt()?) } else { None };
    let asked = PrefetchRequest { paths, tensors, to: arguments.to.clone(), ..PrefetchRequest::default() };
    let mut job = daemon.prefetch(&asked).map_err(|error| find::failure(&error))?;
    if let Some(interrupted) = interrupted {
        job = follow(&daemon, job, &interrupted, !arguments.json)?;
    } else if arguments.to.is_some() {
        job = begun(&daemon, job)?;
    }
    if arguments.json {
        output::print(&json::pretty(&job)?)?;
    } else if !matches!(job.state, JobState::Failed) {
        output::print(&format!("{}\n", words(&job, arguments.to.as_deref())))?;
    }
    match job.state {
        JobState::Running | JobState::Done => Ok(()),
        JobState::Failed => {
            let why = job.detail.map_or("the prefetch failed".to_owned(), |why| plain(&why));
            Err(Failure::failed(match &arguments.to {
                Some(device) => format!("nothing is read into {device}: {why}\n{WITHOUT_DEVICE}"),
                None => why,
            }))
        }
        JobState::Cancelled => Err(Failure {
            exit: Exit::Interrupted,
            message: "the prefetch was stopped; what was read stays".to_owned(),
        }),
    }
}

/// Until it is seen to go on, or to fail.
fn begun(daemon: &ControlClient, mut job: Job) -> Result<Job, Failure> {
    let start = Instant::now();
    while !job.state.has_ended() && job.bytes_done == 0 && start.elapsed() < FAILS_SOON {
        job = daemon.job(&job.id, LOOK_AGAIN).map_err(|error| find::failure(&error))?;
    }
    Ok(job)
}

/// Until it has ended, or Ctrl-C ends it.
fn follow(daemon: &ControlClient, mut job: Job, interrupted: &AtomicBool, show: bool) -> Result<Job, Failure> {
    let bar = Transfer::on_stderr(show, job.bytes_total);
    let mut cancelled = false;
    while !job.state.has_ended() {
        bar.show(job.bytes_done, job.bytes_total);
        job = if interrupted.load(Ordering::Relaxed) && !cancelled {
            cancelled = true;
            daemon.cancel(&job.id)
        } else {
            daemon.job(&job.id, LOOK_AGAIN)
        }
        .map_err(|error| find::failure(&error))?;
    }
    Ok(job)
}

/// Set when Ctrl-C is pressed. Pressed again, it ends the program at once.
fn on_interrupt() -> Result<Arc<AtomicBool>, Failure> {
    let failed = |error: std::io::Error| Failure::failed(format!("Ctrl-C cannot be waited for: {error}"));
    let mut signals = SigSet::empty();
    signals.add(Signal::SIGINT);
    signals.thread_block().map_err(|error| failed(error.into()))?;
    let flag = Arc::new(AtomicBool::new(false));
    let set = Arc::clone(&flag);
    let wait = move || {
        while signals.wait().is_ok() {
            if set.swap(true, Ordering::Relaxed) {
                process::exit(Exit::Interrupted as i32);
            }
        }
    };
    thread::Builder::new().name("ctrl-c".to_owned()).spawn(wait).map_err(failed)?;
    Ok(flag)
}

fn words(job: &Job, device: Option<&str>) -> String {
    let place = device.map_or("resident".to_owned(), |device| format!("on {device}"));
    let mut text = format!("{} {place}, {}", ByteSize(job.bytes_done), files(job.files));
    let left = job.bytes_total.saturating_sub(job.bytes_done);
    if left > 0 {
        let what = match job.state {
            JobState::Running => "to come",
            JobState::Cancelled => "were not read",
            _ => "do not fit or are worth less than what is there",
        };
        text += &format!(", {} {what}", ByteSize(left));
    }
    // The detail has that of the device alone.
    if job.state == JobState::Done && job.bytes_per_second > 0 && device.is_none() {
        text += &format!(", at {}", rate(job.bytes_per_second));
    }
    if let Some(detail) = &job.detail {
        text += &format!(" ({})", plain(detail));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(state: JobState, bytes_done: u64) -> Job {
        Job {
            id: "1".into(),
            state,
            files: 2,
            bytes_done,
            bytes_total: 2 << 30,
            bytes_per_second: 1 << 30,
            detail: None,
        }
    }

    #[test]
    fn what_is_on_a_device_has_the_speed_of_its_reads() {
        let done = Job { detail: Some("GPUDirect Storage, 6.10 GB/s".into()), ..job(JobState::Done, 2 << 30) };
        let expected = "2.0 GiB on cuda:0, 2 files (GPUDirect Storage, 6.10 GB/s)";
        assert_eq!(words(&done, Some("cuda:0")), expected);
    }

    #[test]
    fn what_is_left_is_said_for_what_it_is() {
        assert_eq!(words(&job(JobState::Done, 2 << 30), None), "2.0 GiB resident, 2 files, at 1.0 GiB/s");
        assert_eq!(words(&job(JobState::Running, 1 << 30), None), "1.0 GiB resident, 2 files, 1.0 GiB to come");
        assert_eq!(words(&job(JobState::Cancelled, 1 << 30), None), "1.0 GiB resident, 2 files, 1.0 GiB were not read");
        let short = Job { bytes_per_second: 0, detail: Some("a.gguf is gone".into()), ..job(JobState::Done, 1 << 30) };
        let expected =
            "1.0 GiB resident, 2 files, 1.0 GiB do not fit or are worth less than what is there (a.gguf is gone)";
        assert_eq!(words(&short, None), expected);
    }
}
