//! `weightfs explain`.

use std::fmt::Write;
use std::path::PathBuf;

use clap::Args;
use weightfs::control::Explained;
use weightfs::units::ByteSize;

use crate::exit::{EXIT_CODES_HELP, Failure};
use crate::find;
use crate::output::figures::{plain, shown, time};
use crate::output::{self, json};

const HELP: &str = "\
Examples:
  weightfs explain ~/ComfyUI/models/checkpoints/base.safetensors
  weightfs explain base.safetensors --json | jq .next";

#[derive(Args, Clone, Debug)]
#[command(after_help = format!("{HELP}\n\n{EXIT_CODES_HELP}"))]
pub struct ExplainArgs {
    /// A file in a mount
    #[arg(value_name = "PATH")]
    path: PathBuf,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub fn run(arguments: &ExplainArgs) -> Result<(), Failure> {
    let path = find::resolve(&arguments.path)?;
    let client = find::daemon(Some(&path))?;
    let explained = client.explain(&path).map_err(|error| find::failure(&error))?;
    output::print(&if arguments.json { json::pretty(&explained)? } else { human(&explained) })
}

fn human(explained: &Explained) -> String {
    let Explained { size_bytes: size, resident_bytes: resident, .. } = *explained;
    let state = match resident {
        0 => "not in RAM".to_owned(),
        whole if whole >= size => format!("all of it ({}) in RAM", ByteSize(size)),
        part => format!("{} of {} in RAM", ByteSize(part), ByteSize(size)),
    };
    let since = explained.resident_seconds.map(|seconds| format!(", since {} ago", time(seconds))).unwrap_or_default();
    let used = explained.unused_seconds.map(|seconds| format!("; last used {} ago", time(seconds))).unwrap_or_default();
    let mut text = format!("{}\n", shown(&explained.path));
    let mut line = |name: &str, value: &str| {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{name:<8}{value}");
    };
    line("State", &format!("{state}{since}{used}"));
    line("Why", &plain(&explained.why));
    let kept = ByteSize(explained.kept_bytes.min(size));
    line("Policy", &format!("{}; it would keep {kept} of this file", plain(&explained.policy)));
    if explained.pinned_bytes > 0 {
        line("Pinned", &ByteSize(explained.pinned_bytes.min(size)).to_string());
    }
    if explained.held {
        line("Held", "by programs that have it open or mapped: evicting a part of it would free nothing");
    }
    match &explained.next {
        Some(next) => {
            let before = match next.bytes_before {
                0 => "first of all".to_owned(),
                bytes => format!("after {} of other files", ByteSize(bytes)),
            };
            line("Next", &format!("{} of it would go {before}: {}", ByteSize(next.bytes), plain(&next.reason)));
        }
        None if resident > 0 => line("Next", "nothing of it may go"),
        None => {}
    }
    line("Budget", &format!("{}: {}", ByteSize(explained.budget_bytes), plain(&explained.budget_reason)));
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use weightfs::control::NextToGo;

    const GIB: u64 = 1 << 30;

    #[test]
    fn a_file_that_is_partly_there() {
        let explained = Explained {
            path: "/m/flux.safetensors".into(),
            size_bytes: 22 * GIB,
            resident_bytes: 9 * GIB,
            pinned_bytes: 0,
            kept_bytes: 10 * GIB,
            resident_seconds: Some(240.0),
            unused_seconds: Some(30.0),
            held: true,
            why: "the policy keeps a part of it".into(),
            next: Some(NextToGo { bytes: 2 * GIB, reason: "the budget holds no more".into(), bytes_before: GIB }),
            policy: "auto, now reuse".into(),
            budget_bytes: 24 * GIB,
            budget_reason: "as much as --ram allows".into(),
        };
        let expected = "\
/m/flux.safetensors
State   9.0 GiB of 22.0 GiB in RAM, since 4 min ago; last used 30 s ago
Why     the policy keeps a part of it
Policy  auto, now reuse; it would keep 10.0 GiB of this file
Held    by programs that have it open or mapped: evicting a part of it would free nothing
Next    2.0 GiB of it would go after 1.0 GiB of other files: the budget holds no more
Budget  24.0 GiB: as much as --ram allows
";
        assert_eq!(human(&explained), expected);
    }
}
