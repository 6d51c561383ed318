//! `weightfs simulate`: what a trace would have come to under other policies and with more or less RAM.

mod svg;
mod text;

use std::collections::BTreeMap;
use std::path::PathBuf;

use clap::Args;
use serde::Serialize;
use weightfs::residency::PolicyKind;
use weightfs::trace::{Outcome, Row, Trace, What, sweep};
use weightfs::units::{ByteSize, EXTENT_SIZE};

use crate::exit::{EXIT_CODES_HELP, Exit, Failure};
use crate::output::{self, json};
use crate::trace;

const HELP: &str = "\
Examples:
  weightfs trace start /tmp/day.trace     record a day of work, then 'weightfs trace stop'
  weightfs simulate /tmp/day.trace        how much RAM pays
  weightfs simulate /tmp/day.trace --ignore-vram
                                          what it would be if models in VRAM stayed in RAM as well
  weightfs simulate /tmp/day.trace --ram 24GiB,48GiB --policy auto,lru --plot day.svg

The optimum knows the future: nothing reads less. Hits count bytes that were used, no hash scans and no header peeks.";

/// Budgets that are looked at where none is given, in parts of all that is used.
const STEPS: u64 = 10;

#[derive(Args, Clone, Debug)]
#[command(after_help = format!("{HELP}\n\n{EXIT_CODES_HELP}"))]
pub struct SimulateArgs {
    /// A file that 'weightfs trace' has recorded
    #[arg(value_name = "TRACE")]
    trace: PathBuf,

    /// Budgets, such as 24GiB,48GiB. By default, ten steps up to all that is used
    #[arg(long, value_name = "SIZE", value_delimiter = ',')]
    ram: Vec<ByteSize>,

    /// Policies: auto, reuse, aged:K, mru, lirs, lru
    #[arg(long, value_name = "NAME", value_delimiter = ',', default_value = "auto,lru")]
    policy: Vec<PolicyKind>,

    /// As if nobody had said what GPUs hold: the difference is what that was worth
    #[arg(long)]
    ignore_vram: bool,

    /// Print JSON
    #[arg(long)]
    json: bool,

    /// Draw the hit ratio over the budget into this SVG file
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
}

pub fn run(arguments: &SimulateArgs) -> Result<(), Failure> {
    let mut trace = trace::read(&arguments.trace)?;
    if arguments.ignore_vram {
        trace.events.retain(|event| !matches!(event.what, What::InVram { .. }));
    }
    let used = used_bytes(&trace);
    if used == 0 {
        return Err(Failure::failed(format!("{}: nothing is read in this trace", arguments.trace.display())));
    }
    let mut budgets: Vec<u64> = arguments.ram.iter().map(|size| size.0).collect();
    if let Some(small) = budgets.iter().find(|bytes| **bytes < EXTENT_SIZE) {
        let message = format!("--ram {}: give at least {}", ByteSize(*small), ByteSize(EXTENT_SIZE));
        return Err(Failure { exit: Exit::Usage, message });
    }
    if budgets.is_empty() {
        budgets = (1..=STEPS).map(|step| (used / STEPS * step).next_multiple_of(EXTENT_SIZE)).collect();
    }
    budgets.sort_unstable();
    budgets.dedup();
    let rows = sweep(&trace, &arguments.policy, &budgets);
    let names: Vec<String> = arguments.policy.iter().map(ToString::to_string).collect();
    if let Some(file) = &arguments.plot {
        std::fs::write(file, svg::draw(&names, &rows))
            .map_err(|error| Failure::failed(format!("cannot write {}: {error}", file.display())))?;
    }
    output::print(&if arguments.json {
        json::pretty(&report(used, &names, &rows))?
    } else {
        text::draw(used, &names, &rows)
    })
}

/// Bytes of all extents that are read at all.
fn used_bytes(trace: &Trace) -> u64 {
    let mut opens = BTreeMap::new();
    let mut read: BTreeMap<_, weightfs::residency::ExtentSet> = BTreeMap::new();
    for event in &trace.events {
        match &event.what {
            What::Open { open, file, .. } => _ = opens.insert(*open, *file),
            What::Read { open, extents } => {
                if let Some(file) = opens.get(open) {
                    read.entry(*file).or_default().insert(extents.clone());
                }
            }
            _ => {}
        }
    }
    read.values().map(|extents| extents.count() * EXTENT_SIZE).sum()
}

/// The JSON: a contract with scripts.
#[derive(Serialize)]
struct Report<'a> {
    /// Of everything that is read at all.
    used_bytes: u64,
    rows: Vec<ReportRow<'a>>,
}

#[derive(Serialize)]
struct ReportRow<'a> {
    budget_bytes: u64,
    optimum: ReportOutcome,
    policies: BTreeMap<&'a str, ReportOutcome>,
}

#[derive(Serialize)]
struct ReportOutcome {
    hit_bytes: u64,
    missed_bytes: u64,
    hit_ratio: f64,
    seconds_saved: f64,
    seconds_spent: f64,
    evicted_bytes: u64,
}

fn report<'a>(used_bytes: u64, names: &'a [String], rows: &[Row]) -> Report<'a> {
    let outcome = |outcome: &Outcome| ReportOutcome {
        hit_bytes: outcome.hit,
        missed_bytes: outcome.missed,
        hit_ratio: outcome.hit_ratio(),
        seconds_saved: outcome.seconds_saved,
        seconds_spent: outcome.seconds_spent,
        evicted_bytes: outcome.evicted,
    };
    let row = |row: &Row| ReportRow {
        budget_bytes: row.budget,
        optimum: outcome(&row.optimum),
        policies: names.iter().map(String::as_str).zip(row.policies.iter().map(outcome)).collect(),
    };
    Report { used_bytes, rows: rows.iter().map(row).collect() }
}
