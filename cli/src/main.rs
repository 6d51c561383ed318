//! The program `weightfs`.

mod dashboard;
mod doctor;
mod env_vars;
mod events;
mod exit;
mod explain;
mod find;
mod flush;
mod generate;
mod ls;
mod machine;
mod mount;
mod notify;
mod output;
mod prefetch;
mod simulate;
mod status;
mod steer;
mod top;
mod trace;
mod unmount;

use std::io::Write;
use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};

use dashboard::DashboardArgs;
use doctor::DoctorArgs;
use events::EventsArgs;
use exit::{EXIT_CODES_HELP, Exit, Failure};
use explain::ExplainArgs;
use flush::FlushArgs;
use generate::{CompletionsArgs, ManArgs};
use ls::LsArgs;
use mount::MountArgs;
use mount::helper;
use prefetch::PrefetchArgs;
use simulate::SimulateArgs;
use status::StatusArgs;
use steer::{EvictArgs, PinArgs, UnpinArgs};
use top::TopArgs;
use trace::TraceArgs;
use unmount::UnmountArgs;

/// Mounts a folder of model weights and keeps the weights that matter in pinned RAM.
#[derive(Debug, Parser)]
#[command(name = "weightfs", version, after_help = EXIT_CODES_HELP, args_override_self = true)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Mount a folder of models, over itself or elsewhere
    #[command(args_override_self = true)]
    Mount(Box<MountArgs>),
    /// End a mount
    Unmount(UnmountArgs),
    /// Show what is mounted, how full the RAM is and where the bytes came from
    Status(StatusArgs),
    /// List model files, or the tensors of one, and what of them is in RAM
    Ls(LsArgs),
    /// Watch and steer a daemon as it works
    Top(TopArgs),
    /// Keep files in RAM for good, or tensors of them
    Pin(PinArgs),
    /// Take pins back
    Unpin(UnpinArgs),
    /// Read files into RAM before they are needed
    Prefetch(PrefetchArgs),
    /// Free what files take of the RAM
    Evict(EvictArgs),
    /// Free everything that is neither pinned nor in use
    Flush(FlushArgs),
    /// Say why a file is or is not in RAM, and what would happen to it next
    Explain(ExplainArgs),
    /// Print what happens, as it happens
    Events(EventsArgs),
    /// Have a page served to a browser, and print its address
    Dashboard(DashboardArgs),
    /// Record what is opened, read and decided, and look at what was recorded
    Trace(TraceArgs),
    /// Replay a trace under other policies and budgets
    Simulate(SimulateArgs),
    /// Try what this machine and its folders of models have, and say what is missing, what it costs and what mends it
    Doctor(DoctorArgs),
    /// Print completions for a shell
    Completions(CompletionsArgs),
    /// Write the manual pages
    Man(ManArgs),
}

fn main() -> ExitCode {
    let mut words = std::env::args_os();
    if words.next().is_some_and(|program| helper::is_helper(&program)) {
        return finish(run_helper(words)).for_mount_helper();
    }
    let done = match Arguments::parse().command {
        Command::Mount(arguments) => mount::run(*arguments),
        Command::Unmount(arguments) => unmount::run(&arguments),
        Command::Status(arguments) => status::run(&arguments),
        Command::Ls(arguments) => ls::run(&arguments),
        Command::Top(arguments) => top::run(&arguments),
        Command::Pin(arguments) => steer::pin(&arguments),
        Command::Unpin(arguments) => steer::unpin(&arguments),
        Command::Prefetch(arguments) => prefetch::run(&arguments),
        Command::Evict(arguments) => steer::evict(&arguments),
        Command::Flush(arguments) => flush::run(&arguments),
        Command::Events(arguments) => events::run(&arguments),
        Command::Dashboard(arguments) => dashboard::run(&arguments),
        Command::Explain(arguments) => explain::run(&arguments),
        Command::Trace(arguments) => trace::run(&arguments),
        Command::Simulate(arguments) => simulate::run(&arguments),
        Command::Doctor(arguments) => doctor::run(&arguments),
        Command::Completions(arguments) => generate::completions(&arguments, Arguments::command()),
        Command::Man(arguments) => generate::man(&arguments, Arguments::command()),
    };
    finish(done).into()
}

fn run_helper(words: impl Iterator<Item = std::ffi::OsString>) -> Result<(), Failure> {
    let invocation = helper::parse(words).map_err(|error| Failure::new(Exit::Usage, &error))?;
    if invocation.fake { mount::check(invocation.arguments) } else { mount::run(invocation.arguments) }
}

fn finish(done: Result<(), Failure>) -> Exit {
    match done {
        Ok(()) => Exit::Ok,
        Err(failure) => {
            // With nobody to tell, the code must do.
            let _ = writeln!(std::io::stderr(), "weightfs: {failure}");
            failure.exit
        }
    }
}
