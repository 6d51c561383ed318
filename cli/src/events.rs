//! `weightfs events`: what happens at a daemon, as it happens.

use std::path::PathBuf;

use clap::Args;
use weightfs::control::{Event, EventKind};
use weightfs::units::ByteSize;
use weightfs_mount::control_client::Told;

use crate::exit::{EXIT_CODES_HELP, Exit, Failure};
use crate::find;
use crate::output::figures::plain;
use crate::output::{self, paint::Paint};

const HELP: &str = "\
It goes on until the daemon ends or Ctrl-C is pressed. Times are UTC.

Examples:
  weightfs events                         everything
  weightfs events --kinds evicted,budget  only what was taken out of RAM, and changes of the budget
  weightfs events --json | jq -c 'select(.bytes > 1e9)'";

#[derive(Args, Clone, Debug)]
#[command(after_help = format!("{HELP}\n\n{EXIT_CODES_HELP}"))]
pub struct EventsArgs {
    /// Any path in a mount, for its daemon. Not needed while only one daemon runs
    #[arg(value_name = "PATH")]
    path: Option<PathBuf>,

    /// Only these: opened, filled, evicted, budget, pinned, unpinned, prefetch, worker
    #[arg(long, value_name = "KIND", value_delimiter = ',', value_parser = kind)]
    kinds: Vec<EventKind>,

    /// Print JSON, an event a line
    #[arg(long)]
    json: bool,
}

fn kind(text: &str) -> Result<EventKind, String> {
    let names = || EventKind::ALL.map(EventKind::name).join(", ");
    EventKind::ALL.into_iter().find(|kind| kind.name() == text).ok_or_else(|| format!("use one of {}", names()))
}

pub fn run(arguments: &EventsArgs) -> Result<(), Failure> {
    let daemon = find::daemon(arguments.path.as_deref())?;
    let paint = Paint::of_stdout();
    for told in daemon.events(&arguments.kinds).map_err(|error| find::failure(&error))? {
        let line = match told.map_err(|error| find::failure(&error))? {
            Told::Event(event) if arguments.json => json_line(&event)?,
            Told::Event(event) => human(&event, paint),
            Told::Lost(lost) if arguments.json => format!("{{\"lost\":{lost}}}"),
            Told::Lost(lost) => paint.warn(&format!("{lost} events came faster than they could be printed")),
        };
        // Nobody reads any more.
        if !output::print_on(&format!("{line}\n"))? {
            return Ok(());
        }
    }
    Err(Failure { exit: Exit::NoDaemon, message: "the daemon has ended".to_owned() })
}

fn json_line(event: &Event) -> Result<String, Failure> {
    serde_json::to_string(event).map_err(|error| Failure::new(Exit::Failed, &error))
}

/// `20:41:16  evicted   512.0 MiB  /srv/models/a.safetensors  room for others`
fn human(event: &Event, paint: Paint) -> String {
    let name = format!("{:<9}", event.kind.name());
    let name = match event.kind {
        EventKind::Evicted | EventKind::Worker => paint.warn(&name),
        EventKind::Filled | EventKind::Pinned => paint.good(&name),
        _ => name,
    };
    let bytes = event.bytes.map(|bytes| ByteSize(bytes).to_string()).unwrap_or_default();
    let mut line = format!("{}  {name} {bytes:>10}", clock(event.at));
    for words in [&event.path, &event.reason].into_iter().flatten() {
        line += "  ";
        line += &plain(words);
    }
    line.trim_end().to_owned()
}

/// The time of the day, UTC.
fn clock(seconds: f64) -> String {
    let of_day = seconds.max(0.0) as u64 % 86_400;
    format!("{:02}:{:02}:{:02}", of_day / 3600, of_day / 60 % 60, of_day % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_a_line() {
        let event = Event {
            kind: EventKind::Evicted,
            at: 1_700_000_000.9,
            path: Some("/m/a\n.gguf".into()),
            bytes: Some(512 << 20),
            reason: Some("room for others".into()),
        };
        let expected = "22:13:20  evicted    512.0 MiB  /m/a\u{fffd}.gguf  room for others";
        assert_eq!(human(&event, Paint::PLAIN), expected);
        let bare = Event { path: None, bytes: None, reason: None, kind: EventKind::Worker, at: -1.0 };
        assert_eq!(human(&bare, Paint::PLAIN), "00:00:00  worker");
        assert!(!json_line(&event).unwrap().contains('\n'));
    }

    #[test]
    fn kinds_are_checked_before_anybody_is_asked() {
        assert_eq!(kind("evicted"), Ok(EventKind::Evicted));
        assert!(kind("nothing").unwrap_err().contains("opened, filled"));
    }
}
