//! `weightfs gds`, hidden: what calls the CUDA driver and cuFile does so in this process, which nobody would miss.

use std::io::Write;
use std::os::unix::net::UnixStream;

use clap::{Args, ValueEnum};
use weightfs::gpu::{probe, serve};

use crate::exit::Failure;
use crate::output;

/// Descriptors from here on are used for what must not be lost.
const KEPT: i32 = 16;

#[derive(Args, Clone, Debug)]
pub struct GdsArgs {
    /// What to do; what is found out goes to standard output as JSON
    #[arg(value_enum)]
    task: Task,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Task {
    /// Say what the driver can do
    Driver,
    /// Say what cuFile can do
    Cufile,
    /// Read files into device memory as the other side of standard input, a socket, asks for it
    Serve,
}

pub fn run(arguments: &GdsArgs) -> Result<(), Failure> {
    let failed = |error: &dyn std::error::Error| Failure::failed(error.to_string());
    match arguments.task {
        Task::Driver => output::print(&serde_json::to_string(&probe::driver_here()).map_err(|error| failed(&error))?),
        Task::Cufile => {
            // Opening cuFile was seen to write over the lowest descriptors: the answer goes to one that is out of reach.
            let kept = rustix::io::fcntl_dupfd_cloexec(std::io::stdout(), KEPT).map_err(|error| failed(&error))?;
            let answer = serde_json::to_string(&probe::cufile_here()).map_err(|error| failed(&error))?;
            std::fs::File::from(kept).write_all(answer.as_bytes()).map_err(|error| failed(&error))
        }
        Task::Serve => {
            let kept = rustix::io::fcntl_dupfd_cloexec(std::io::stdin(), KEPT).map_err(|error| failed(&error))?;
            serve::serve(UnixStream::from(kept)).map_err(|error| failed(&error))
        }
    }
}
