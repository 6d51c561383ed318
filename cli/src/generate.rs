//! `weightfs completions` and `weightfs man`: what a shell and a manual know of the program, made from its own
//! description of itself.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use clap::{Args, Command};
use clap_complete::Shell;
use clap_mangen::Man;

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
    let mut program = program.disable_help_subcommand(true);
    program.build();
    fs::create_dir_all(folder)
        .and_then(|()| pages(&program, folder))
        .map_err(|error| Failure::failed(format!("cannot write to {}: {error}", folder.display())))
}

/// A page for `command`, and one for each below it.
fn pages(command: &Command, folder: &Path) -> io::Result<()> {
    let name = command.get_display_name().unwrap_or(command.get_name()).to_owned();
    let page = Man::new(command.clone()).title(&name).manual("weightfs");
    let mut text = Vec::new();
    page.render_title(&mut text)?;
    page.render_name_section(&mut text)?;
    page.render_synopsis_section(&mut text)?;
    page.render_description_section(&mut text)?;
    page.render_options_section(&mut text)?;
    if command.has_subcommands() {
        page.render_subcommands_section(&mut text)?;
    }
    for paragraph in command.get_after_help().map(ToString::to_string).unwrap_or_default().split("\n\n") {
        write_paragraph(&mut text, paragraph)?;
    }
    fs::write(folder.join(page.get_filename()), text)?;
    command.get_subcommands().filter(|below| !below.is_hide_set()).try_for_each(|below| pages(below, folder))
}

/// What stands after the help of a command: examples and exit codes keep their lines and get headings.
fn write_paragraph(page: &mut impl Write, paragraph: &str) -> io::Result<()> {
    let (heading, lines) = match paragraph.split_once('\n') {
        Some(("Examples:", lines)) => ("EXAMPLES", lines),
        Some(("Exit codes:", lines)) => ("EXIT STATUS", lines),
        _ => return writeln!(page, ".PP\n{}", escape(paragraph)),
    };
    writeln!(page, ".SH \"{heading}\"\n.nf\n{}\n.fi", escape(lines))
}

/// roff(7): what would be a command or a special character is text.
fn escape(text: &str) -> String {
    let line = |line: &str| {
        let text = line.replace('\\', "\\e").replace('-', "\\-").replace('\'', "\\(aq");
        if text.starts_with('.') { format!("\\&{text}") } else { text }
    };
    text.lines().map(line).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_page_says_is_not_taken_for_commands() {
        assert_eq!(escape(".x 'a' --b\\"), "\\&.x \\(aqa\\(aq \\-\\-b\\e");
    }

    #[test]
    fn examples_keep_their_lines() {
        let folder = tempfile::tempdir().unwrap();
        let below = Command::new("b")
            .about("below")
            .after_help("Some words\n\nExamples:\n  a b  why\n\nExit codes:\n  0  done");
        let program = Command::new("a").subcommand(below).subcommand(Command::new("hidden").hide(true));
        man(&ManArgs { folder: folder.path().join("man1") }, program).unwrap();
        let page = fs::read_to_string(folder.path().join("man1/a-b.1")).unwrap();
        assert!(
            page.contains(
                ".PP\nSome words\n.SH \"EXAMPLES\"\n.nf\n  a b  why\n.fi\n.SH \"EXIT STATUS\"\n.nf\n  0  done\n"
            ),
            "{page}"
        );
        assert!(fs::exists(folder.path().join("man1/a.1")).unwrap());
        assert_eq!(fs::read_dir(folder.path().join("man1")).unwrap().count(), 2);
    }
}
