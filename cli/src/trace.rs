//! `weightfs trace`: begin and end a recording, and show one.

use std::collections::HashMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use weightfs::ids::FileId;
use weightfs::trace::{Event, Reader, Trace, What};
use weightfs::units::{ByteSize, EXTENT_SIZE};

use crate::exit::{EXIT_CODES_HELP, Failure};
use crate::output::json;
use crate::{find, output};

const HELP: &str = "\
Examples:
  weightfs trace start /tmp/day.trace     begin; names of files are not recorded, but numbers for them
  weightfs trace stop                     end
  weightfs trace show /tmp/day.trace | tail -50
  weightfs simulate /tmp/day.trace        what it would have come to with more RAM, or another policy";

#[derive(Args, Clone, Debug)]
#[command(after_help = format!("{HELP}\n\n{EXIT_CODES_HELP}"))]
pub struct TraceArgs {
    #[command(subcommand)]
    command: TraceCommand,
}

#[derive(Clone, Debug, Subcommand)]
enum TraceCommand {
    /// Begin to record in a new file, which the daemon writes
    Start {
        #[arg(value_name = "FILE")]
        file: PathBuf,
        /// Any path in the mount. Not needed while only one daemon runs
        #[arg(long, value_name = "PATH")]
        of: Option<PathBuf>,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// End the recording
    Stop {
        /// Any path in the mount. Not needed while only one daemon runs
        #[arg(long, value_name = "PATH")]
        of: Option<PathBuf>,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Print a recording, an event a line
    Show {
        #[arg(value_name = "FILE")]
        file: PathBuf,
    },
}

pub fn run(arguments: &TraceArgs) -> Result<(), Failure> {
    match &arguments.command {
        TraceCommand::Start { file, of, json } => {
            let absolute = std::path::absolute(file)
                .map_err(|error| Failure::failed(format!("cannot name {}: {error}", file.display())))?;
            let client = find::daemon(of.as_deref())?;
            let started = client.start_trace(&absolute).map_err(|error| find::failure(&error))?;
            if *json {
                return output::print(&json::pretty(&started)?);
            }
            output::print(&format!("recording to {}; end it with 'weightfs trace stop'\n", absolute.display()))
        }
        TraceCommand::Stop { of, json } => {
            let summary = find::daemon(of.as_deref())?.stop_trace().map_err(|error| find::failure(&error))?;
            if *json {
                return output::print(&json::pretty(&summary)?);
            }
            let lost = if summary.lost > 0 { format!(", {} were lost", summary.lost) } else { String::new() };
            output::print(&format!("{} events in {}{lost}\n", summary.events, summary.file.display()))
        }
        TraceCommand::Show { file } => show(file),
    }
}

/// The bytes of the file at `path`, read as a trace. What cannot be read of it is said on standard error.
pub fn read(path: &Path) -> Result<Trace, Failure> {
    let bytes = bytes(path)?;
    let (trace, end) = Trace::read(&bytes).map_err(|error| no_trace(path, &error))?;
    if let Some(error) = end {
        eprintln!("weightfs: {}: {error}", path.display());
    }
    Ok(trace)
}

fn bytes(path: &Path) -> Result<Vec<u8>, Failure> {
    std::fs::read(path).map_err(|error| Failure::failed(format!("cannot read {}: {error}", path.display())))
}

fn no_trace(path: &Path, error: &dyn std::error::Error) -> Failure {
    Failure::failed(format!("{}: {error}", path.display()))
}

fn show(path: &Path) -> Result<(), Failure> {
    let bytes = bytes(path)?;
    let mut opens = HashMap::new();
    let mut text = String::new();
    for event in Reader::new(&bytes).map_err(|error| no_trace(path, &error))? {
        match event {
            // Writing to a String cannot fail.
            Ok(event) => _ = writeln!(text, "{}", line(&event, &mut opens)),
            Err(error) => {
                output::print(&text)?;
                return Err(no_trace(path, &error));
            }
        }
        if text.len() > 64 << 10 {
            output::print(&text)?;
            text.clear();
        }
    }
    output::print(&text)
}

fn line(event: &Event, opens: &mut HashMap<u32, FileId>) -> String {
    let of = |opens: &HashMap<u32, FileId>, open: &u32| match opens.get(open) {
        Some(file) => file.to_string(),
        None => format!("open {open}"),
    };
    let size = |first: u32, end: u32| ByteSize(u64::from(end - first) * EXTENT_SIZE);
    let what = match &event.what {
        What::File { file, size, cost } => {
            let rate = (1024.0 * 1e9 / f64::from(cost.ns_per_kib.max(1))) as u64;
            format!("{file} has {} behind a source of {}/s", ByteSize(*size), ByteSize(rate))
        }
        What::Open { open, file, kind } => {
            opens.insert(*open, *file);
            format!("{file} is opened, kind {kind}")
        }
        What::Read { open, extents } => {
            format!("{} is read, extents {extents:?} ({})", of(opens, open), size(extents.start, extents.end))
        }
        What::Close { open, kind } => format!("{} is closed, kind {kind}", of(opens, open)),
        What::Decided { file, extents, admitted, reason } => {
            let verdict = if *admitted { "admitted" } else { "bypassed" };
            format!("{file} misses extents {extents:?} ({}), {verdict}: {reason}", size(extents.start, extents.end))
        }
        What::Evicted { file, extents, reason } => {
            format!("{file} loses extents {extents:?} ({}): {reason}", size(extents.start, extents.end))
        }
        What::Budget { bytes } => format!("the policy may keep {}", ByteSize(*bytes)),
    };
    format!("{:>10.3} s  {what}", event.at_ms as f64 / 1000.0)
}
