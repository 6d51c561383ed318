//! Runs the supervisor in this process, and the worker in another one.

use std::ffi::OsString;
use std::fs::OpenOptions;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use clap::Args;

use tracing::Level;
use tracing_subscriber::Layer;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::writer::BoxMakeWriter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use weightfs_mount::settings::Settings;
use weightfs_mount::supervisor::{self, Depot, Launch, Remains};
use weightfs_mount::worker;

use super::launch::READY;
use super::options::Options;
use super::plan::Plan;
use super::values::{LogFormat, LogLevel};
use crate::exit::{Exit, Failure};
use crate::notify;
use crate::output;

/// Until the mounts are gone, logging to the file that was named or to standard error.
pub fn in_foreground(plan: Plan) -> Result<(), Failure> {
    let log = writer(plan.logging.file.as_deref())?;
    serve(plan, log, Depot::of_service(), notify::ready)
}

/// Goes on with the mounts of a supervisor that died, if this process was started in its place.
pub fn in_its_place(options: &Options) -> Option<Result<(), Failure>> {
    let logging = Logging::of(options);
    // Before anything asks a mount, which nobody serves.
    let remains = match Remains::find() {
        Ok(remains) => remains?,
        Err(error) => {
            let message =
                format!("what an earlier process has left of the mounts cannot be gone on with, and ends: {error}");
            return Some(Err(Failure::failed(message)));
        }
    };
    let served = writer(logging.file.as_deref()).and_then(|log| {
        logging.begin(log);
        let program = launch(&logging, remains.settings())?;
        let served = supervisor::go_on(remains, program, |_| notify::ready());
        served.map_err(|error| Failure::new(Exit::Failed, &error))
    });
    Some(served)
}

/// The same as a process started by `launch`: without a terminal, holding no directory.
pub fn in_background(plan: Plan) -> Result<(), Failure> {
    // Fails only for a process that leads a group, which has left its terminal already.
    let _ = rustix::process::setsid();
    std::env::set_current_dir("/").map_err(|error| Failure::failed(format!("cannot go to /: {error}")))?;
    serve(plan, BoxMakeWriter::new(io::stderr), Depot::none(), || {
        if let Err(error) = say_ready() {
            tracing::warn!(%error, "nobody waits for the mounts any more; ending");
            let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::TERM);
        }
    })
}

fn serve(plan: Plan, log: BoxMakeWriter, depot: Depot, ready: impl FnOnce()) -> Result<(), Failure> {
    plan.logging.begin(log);
    plan.runtime.prepare().map_err(|error| Failure::new(Exit::Failed, &error))?;
    tracing::info!(version = env!("CARGO_PKG_VERSION"), settings = ?plan.settings, "starting");
    let program = launch(&plan.logging, &plan.settings)?;
    let served = supervisor::run(plan.settings, program, depot, |_| {
        tracing::info!("every mount answers");
        ready();
    });
    served.map_err(|error| Failure::new(Exit::Failed, &error))
}

fn launch(logging: &Logging, settings: &Settings) -> Result<Launch, Failure> {
    super::launch::this_program()
        .and_then(|program| Launch::new(program, worker_arguments(logging, settings)))
        .map_err(|error| Failure::failed(format!("cannot find this program: {error}")))
}

/// How much is logged, how, and where.
#[derive(Clone, Debug)]
pub struct Logging {
    level: Level,
    format: LogFormat,
    /// Given by name.
    pub file: Option<PathBuf>,
}

impl Logging {
    pub fn of(options: &Options) -> Self {
        let LogLevel(level) = options.log.unwrap_or(LogLevel(Level::INFO));
        Self { level, format: options.log_format.unwrap_or_default(), file: options.log_file.clone() }
    }

    fn begin(&self, log: BoxMakeWriter) {
        log_to(log, self.level, self.format);
    }
}

fn log_to(log: BoxMakeWriter, level: Level, format: LogFormat) {
    // The FUSE library's own words about every request are for its developers.
    let library = level.min(Level::INFO);
    let filter = Targets::new().with_default(level).with_target("fuser", library);
    let layer = tracing_subscriber::fmt::layer().with_writer(log).with_ansi(false);
    let registry = tracing_subscriber::registry();
    match format {
        LogFormat::Text => registry.with(layer.with_filter(filter)).init(),
        LogFormat::Json => registry.with(layer.json().flatten_event(true).with_filter(filter)).init(),
    }
}

/// What the worker is told beside what the supervisor hands over. The mountpoints are for people who look at processes.
fn worker_arguments(logging: &Logging, settings: &Settings) -> Vec<OsString> {
    let mut arguments = vec!["--log".into(), logging.level.to_string().to_lowercase().into()];
    arguments.extend(["--log-format".into(), logging.format.to_string().into()]);
    if let Some(file) = &logging.file {
        arguments.extend(["--log-file".into(), file.clone().into_os_string()]);
    }
    arguments.push("--".into());
    arguments.extend(settings.mounts.iter().map(|mount| mount.mountpoint.clone().into_os_string()));
    arguments
}

/// How the supervisor starts a worker.
#[derive(Args, Clone, Debug)]
pub struct WorkerArgs {
    /// Say the form of the journal that it can go on with, and do nothing.
    #[arg(long)]
    journal_version: bool,

    #[arg(long, default_value = "info")]
    log: LogLevel,

    #[arg(long, default_value = "text")]
    log_format: LogFormat,

    #[arg(long)]
    log_file: Option<PathBuf>,

    mountpoints: Vec<PathBuf>,
}

/// Serves the mounts of the supervisor that has started this process.
pub fn as_worker(arguments: &WorkerArgs) -> Result<(), Failure> {
    if arguments.journal_version {
        return output::print(&format!("{}\n", worker::form()));
    }
    // Under this name also where the program has none any more.
    let _ = rustix::thread::set_name(c"weightfs");
    log_to(writer(arguments.log_file.as_deref())?, arguments.log.0, arguments.log_format);
    worker::run().map_err(|error| Failure::new(Exit::Failed, &error))
}

fn writer(file: Option<&Path>) -> Result<BoxMakeWriter, Failure> {
    let Some(path) = file else { return Ok(BoxMakeWriter::new(io::stderr)) };
    let file = OpenOptions::new()
        .append(true)
        .create(true)
        .open(path)
        .map_err(|error| Failure::failed(format!("cannot write the log {}: {error}", path.display())))?;
    Ok(BoxMakeWriter::new(std::sync::Mutex::new(file)))
}

/// Tells whoever started this, and lets go of the pipe.
fn say_ready() -> io::Result<()> {
    let mut stdout = io::stdout();
    stdout.write_all(READY.as_bytes())?;
    stdout.flush()?;
    nix::unistd::dup2_stdout(OpenOptions::new().write(true).open("/dev/null")?)?;
    Ok(())
}
