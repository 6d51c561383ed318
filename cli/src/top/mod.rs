//! `weightfs top`: a daemon as it works, and keys to steer it.
//!
//! The state, what changes it and how it looks are pure (`state`, `update`, `render`); threads ask the daemon (`feed`),
//! so that a slow one never holds up a key.

mod feed;
mod graphs;
mod render;
mod sample;
#[cfg(test)]
mod snapshots;
mod state;
mod update;

use std::io::{self, IsTerminal};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Args;
use crossterm::event;

use crate::exit::{EXIT_CODES_HELP, Exit, Failure};
use crate::find;
use crate::output::paint::Paint;
use feed::Feed;
use render::Theme;
use state::State;
use update::{Effect, Input, update};

/// How long to wait for a key before what came from the daemon is drawn.
const FRAME: Duration = Duration::from_millis(50);

const HELP: &str = "\
Keys: arrows select a file; p pins it, f prefetches it, e evicts it; s sorts, / filters, a shows all or only what is \
in RAM; ? explains, q quits.

Examples:
  weightfs top                            of the one daemon that runs
  weightfs top ~/ComfyUI/models           of the daemon behind any path of a mount

For scripts there are 'weightfs status --json' and 'weightfs ls --json'.";

#[derive(Args, Clone, Debug)]
#[command(after_help = format!("{HELP}\n\n{EXIT_CODES_HELP}"))]
pub struct TopArgs {
    /// Any path in a mount, for its daemon. Not needed while only one daemon runs
    #[arg(value_name = "PATH")]
    path: Option<PathBuf>,
}

pub fn run(arguments: &TopArgs) -> Result<(), Failure> {
    if !io::stdout().is_terminal() || !io::stdin().is_terminal() {
        let message = "top needs a terminal; for scripts there is 'weightfs status --json'".to_owned();
        return Err(Failure { exit: Exit::Usage, message });
    }
    let daemon = find::daemon(arguments.path.as_deref())?;
    // Once before the screen is taken, so that a refusal is said in plain words.
    daemon.status().map_err(|error| find::failure(&error))?;
    let feed = Feed::start(daemon).map_err(|error| Failure::failed(format!("cannot start a thread: {error}")))?;
    let theme = Theme { colour: Paint::of_stdout().colour };
    let mut terminal =
        ratatui::try_init().map_err(|error| Failure::failed(format!("the terminal cannot be used: {error}")))?;
    let shown = show(&mut terminal, &feed, theme);
    ratatui::restore();
    shown.map_err(|error| Failure::failed(format!("the terminal cannot be used: {error}")))
}

fn show(terminal: &mut ratatui::DefaultTerminal, feed: &Feed, theme: Theme) -> io::Result<()> {
    let begin = Instant::now();
    let mut state = State::default();
    let mut drawn_in = u64::MAX;
    loop {
        // Ages go on also while nothing comes.
        let second = begin.elapsed().as_secs();
        let mut changed = second != drawn_in;
        update(&mut state, Input::Time(begin.elapsed().as_secs_f64()));
        while let Some(input) = feed.next() {
            update(&mut state, input);
            changed = true;
        }
        while event::poll(Duration::ZERO)? {
            changed = true;
            let event::Event::Key(key) = event::read()? else { continue };
            match update(&mut state, Input::Key(key)) {
                Some(Effect::Quit) => return Ok(()),
                Some(Effect::Ask(action)) => feed.ask(action),
                Some(Effect::List { resident_only }) => feed.list(resident_only),
                None => {}
            }
        }
        if changed {
            drawn_in = second;
            let mut rows = 0;
            terminal.draw(|frame| rows = render::draw(frame, &state, theme))?;
            update(&mut state, Input::Page(rows));
        }
        event::poll(FRAME)?;
    }
}
