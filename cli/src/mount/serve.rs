//! Runs the daemon in this process.

use std::fs::OpenOptions;
use std::io::{self, Write};

use tracing::Level;
use tracing_subscriber::Layer;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::writer::BoxMakeWriter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use weightfs_mount::daemon;

use super::launch::READY;
use super::plan::Plan;
use super::values::LogFormat;
use crate::exit::{Exit, Failure};
use crate::notify;

/// Until the mounts are gone, logging to the file that was named or to standard error.
pub fn in_foreground(plan: Plan) -> Result<(), Failure> {
    let log = match &plan.log_file {
        Some(path) => {
            let file = OpenOptions::new()
                .append(true)
                .create(true)
                .open(path)
                .map_err(|error| Failure::failed(format!("cannot write the log {}: {error}", path.display())))?;
            BoxMakeWriter::new(std::sync::Mutex::new(file))
        }
        None => BoxMakeWriter::new(io::stderr),
    };
    serve(plan, log, notify::ready)
}

/// The same as a process started by `launch`: without a terminal, holding no directory.
pub fn in_background(plan: Plan) -> Result<(), Failure> {
    // Fails only for a process that leads a group, which has left its terminal already.
    let _ = rustix::process::setsid();
    std::env::set_current_dir("/").map_err(|error| Failure::failed(format!("cannot go to /: {error}")))?;
    serve(plan, BoxMakeWriter::new(io::stderr), || {
        if let Err(error) = say_ready() {
            tracing::warn!(%error, "nobody waits for the mounts any more; ending");
            let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::TERM);
        }
    })
}

fn serve(plan: Plan, log: BoxMakeWriter, ready: impl FnOnce()) -> Result<(), Failure> {
    // The FUSE library's own words about every request are for its developers.
    let library = plan.log_level.min(Level::INFO);
    let filter = Targets::new().with_default(plan.log_level).with_target("fuser", library);
    let layer = tracing_subscriber::fmt::layer().with_writer(log).with_ansi(false);
    let registry = tracing_subscriber::registry();
    match plan.log_format {
        LogFormat::Text => registry.with(layer.with_filter(filter)).init(),
        LogFormat::Json => registry.with(layer.json().flatten_event(true).with_filter(filter)).init(),
    }
    plan.runtime.prepare().map_err(|error| Failure::new(Exit::Failed, &error))?;
    tracing::info!(version = env!("CARGO_PKG_VERSION"), settings = ?plan.settings, "starting");
    let served = daemon::run(plan.settings, |_| {
        tracing::info!("every mount answers");
        ready();
    });
    served.map_err(|error| Failure::new(Exit::Failed, &error))
}

/// Tells whoever started this, and lets go of the pipe.
fn say_ready() -> io::Result<()> {
    let mut stdout = io::stdout();
    stdout.write_all(READY.as_bytes())?;
    stdout.flush()?;
    nix::unistd::dup2_stdout(OpenOptions::new().write(true).open("/dev/null")?)?;
    Ok(())
}
