//! `weightfs doctor`: what this machine, the sources and the mounts have and lack, what that costs, and what mends it.

mod gpu;
mod mounts;
mod text;

use std::path::{Path, PathBuf};

use clap::Args;
use serde::Serialize;
use weightfs::control::{Check, CheckState};
use weightfs_mount::doctor::{self, Finding, MEASURED, Subject};
use weightfs_mount::source::SourceRoot;

use crate::exit::{EXIT_CODES_HELP, Exit, Failure};
use crate::machine::memory::Memory;
use crate::mount::sizes;
use crate::output::paint::Paint;
use crate::output::progress::Spinner;
use crate::output::{self, json};

const HELP: &str = "\
Everything is tried: a mount is made for a moment where nobody sees it, an arena is written to, a file of each source \
is read. Nothing that runs is disturbed, and nothing is left behind.

Examples:
  weightfs doctor                         this machine, and what is mounted
  weightfs doctor ~/ComfyUI/models        a folder as well: its speed, its links
  weightfs doctor --fix                   mend what can be mended safely, as root
  weightfs doctor --json | jq '.checks[] | select(.state != \"ok\")'

It ends with 0 if weightfs works here, with whatever it lacks, and with 6 if something is bad.";

#[derive(Args, Clone, Debug)]
#[command(after_help = format!("{HELP}\n\n{EXIT_CODES_HELP}"))]
pub struct DoctorArgs {
    /// Folders with models, mounted or not
    #[arg(value_name = "PATH")]
    paths: Vec<PathBuf>,

    /// Mend what can be mended at once, disturbs nothing that runs and gives nobody more rights: load the module fuse,
    /// raise the size of requests, take dead mounts away (with PATH, only that one)
    #[arg(long)]
    fix: bool,

    /// Print JSON
    #[arg(long)]
    json: bool,

    /// What asks the GPU's driver, in a process of its own
    #[arg(long, hide = true)]
    gpu_probe: bool,
}

/// What is printed as JSON.
#[derive(Serialize)]
struct Report {
    checks: Vec<Check>,
    /// What was mended.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    mended: Vec<String>,
    /// What could not be.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    not_mended: Vec<String>,
}

pub fn run(arguments: &DoctorArgs) -> Result<(), Failure> {
    if arguments.gpu_probe {
        return gpu::probe();
    }
    let mut report = Report { checks: Vec::new(), mended: Vec::new(), not_mended: Vec::new() };
    let mut findings = look(arguments)?;
    if arguments.fix {
        for fix in findings.iter().filter_map(|finding| finding.fix.as_ref()) {
            match fix.apply() {
                Ok(done) => report.mended.push(done),
                Err(error) => report.not_mended.push(error.to_string()),
            }
        }
        if !report.mended.is_empty() {
            findings = look(arguments)?;
        }
    }
    let fixable = findings.iter().filter(|finding| finding.fix.is_some()).count();
    report.checks = findings.into_iter().map(|finding| finding.check).collect();
    output::print(&if arguments.json {
        json::pretty(&report)?
    } else {
        text::draw(&report, if arguments.fix { 0 } else { fixable }, Paint::of_stdout())
    })?;
    match report.checks.iter().filter(|check| check.state == CheckState::Bad).count() {
        0 => Ok(()),
        1 => Err(Failure { exit: Exit::Unsupported, message: "one check is bad".to_owned() }),
        bad => Err(Failure { exit: Exit::Unsupported, message: format!("{bad} checks are bad") }),
    }
}

fn look(arguments: &DoctorArgs) -> Result<Vec<Finding>, Failure> {
    let spinner = Spinner::on_stderr(!arguments.json);
    let observe = &mut |what: &str| spinner.say(what);
    let mut findings = doctor::machine(observe);
    findings.extend(reserve());
    findings.extend(gpu::check(observe));
    let sorted = mounts::sort(&arguments.paths)?;
    for path in &sorted.plain {
        findings.extend(folder(path, observe)?);
    }
    findings.extend(mounts::check(&sorted.mounts, observe));
    Ok(findings)
}

/// A folder that is not mounted, as it would be over itself.
fn folder(path: &Path, observe: &mut dyn FnMut(&str)) -> Result<Vec<Finding>, Failure> {
    let root = SourceRoot::open(path).map_err(|error| {
        Failure::failed(format!("cannot open {}: {error}; give a folder with models", path.display()))
    })?;
    let subject = Subject {
        root: &root,
        name: path,
        seen_at: path,
        follow_symlinks: false,
        name_links: true,
        measure: Some(MEASURED),
    };
    Ok(doctor::source(&subject, observe))
}

/// What a mount would leave to others if nobody said how much.
fn reserve() -> Option<Finding> {
    let memory = Memory::read().ok()?;
    Some(doctor::reserve(memory.most(), sizes::default_reserve(memory.most())))
}
