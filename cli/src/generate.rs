//! `weightfs completions` and `weightfs man`: what a shell and a manual know of the program, made from its own
//! description of itself.

use std::io;
use std::path::PathBuf;

use clap::{Args, Command};
use clap_complete::Shell;

use crate::exit::{EXIT_CODES_HELP, Failure};
use crate::output;

const COMPLETIONS_HELP: &str = "\
Examples:
  weightfs completions bash > /usr/share/bash-completion/completions/weightfs
  weightfs completions zsh > ~/.zfunc/_weightfs
  weightfs completions fish > ~/.config/fish/completions/weightfs.fish";

const MAN_HELP: &str = "\
Examples:
  weightfs man /usr/share/man/man1        a page for the program, and one for each command";

#[derive(Args, Clone, Debug)]
#[command(after_help = format!("{COMPLETIONS_HELP}\n\n{EXIT_CODES_HELP}"))]
pub struct CompletionsArgs {
    /// For which shell
    #[arg(value_name = "SHELL")]
    shell: Shell,
}

#[derive(Args, Clone, Debug)]
#[command(after_help = format!("{MAN_HELP}\n\n{EXIT_CODES_HELP}"))]
pub struct ManArgs {
    /// A folder, which is made if it is not there
    #[arg(value_name = "DIR")]
    folder: PathBuf,
}

pub fn completions(arguments: &CompletionsArgs, mut program: Command) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(arguments.shell, &mut program, "weightfs", &mut script);
    output::print(&String::from_utf8_lossy(&script))
}

pub fn man(arguments: &ManArgs, program: Command) -> Result<(), Failure> {
    let folder = &arguments.folder;
    let failed = |error: io::Error| Failure::failed(format!("cannot write to {}: {error}", folder.display()));
    std::fs::create_dir_all(folder).map_err(failed)?;
    clap_mangen::generate_to(program, folder).map_err(failed)
}
