//! The side-by-side suite: weightfs against the plain folder, in one run.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Instant, SystemTime, UNIX_EPOCH};
use std::{env, fs};

use clap::Parser;
use weightfs_benches::data::{Library, Sizes};
use weightfs_benches::error::{BenchError, Doing, Result};
use weightfs_benches::interrupt;
use weightfs_benches::machine::{self, Machine};
use weightfs_benches::readers::{Python, Readers, turns};
use weightfs_benches::report::{Comparison, Figure, Outcome, Results, Skipped, render};
use weightfs_benches::scenario::{self, Bench, Scenario};
use weightfs_benches::weightfs::Weightfs;

/// Measures weightfs against the plain folder behind it. Needs root: it mounts, and drops the kernel's caches.
#[derive(Debug, Parser)]
#[command(name = "weightfs-bench")]
struct Arguments {
    /// Where the library and the mountpoint go: a directory on the disk to be measured.
    #[arg(long, value_name = "DIR", default_value = "/var/tmp/weightfs-bench")]
    dir: PathBuf,

    /// The program to measure. [default: weightfs beside this program]
    #[arg(long, value_name = "FILE")]
    bin: Option<PathBuf>,

    /// Where results.json and report.md go.
    #[arg(long, value_name = "DIR", default_value = "target/bench")]
    out: PathBuf,

    /// Pairs of samples. [default: 5, or 2 with --quick]
    #[arg(long)]
    pairs: Option<usize>,

    /// RAM for models, as of `weightfs mount`.
    #[arg(long, value_name = "SIZE", default_value = "4G")]
    ram: String,

    /// One more option for every mount; may be repeated: --mount-option=--io=threads.
    #[arg(long, value_name = "OPTION", allow_hyphen_values = true)]
    mount_option: Vec<String>,

    /// A Python with the packages safetensors and numpy. [default: that of a .venv above this program, else python3]
    #[arg(long, value_name = "FILE")]
    python: Option<PathBuf>,

    /// Small files and few pairs: shows that everything works, and says nothing of speed.
    #[arg(long)]
    quick: bool,

    /// Keep the library for the next run.
    #[arg(long)]
    keep: bool,

    /// Becomes a process that reads these models in turn, so many times.
    #[arg(long, value_name = "ROUNDS", hide = true)]
    read_in_turns: Option<usize>,

    /// Only scenarios whose name begins with one of these.
    #[arg(value_name = "SCENARIO")]
    only: Vec<String>,
}

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("weightfs-bench: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> Result<()> {
    if let Some(rounds) = arguments.read_in_turns {
        let models: Vec<PathBuf> = arguments.only.iter().map(PathBuf::from).collect();
        return turns::serve(&models, rounds);
    }
    let program = env::current_exe().doing(|| "find this program".to_owned())?;
    fs::create_dir_all(&arguments.dir).doing(|| format!("make {}", arguments.dir.display()))?;
    // As the table of mounts has it.
    let dir = &arguments.dir.canonicalize().doing(|| format!("find {}", arguments.dir.display()))?;
    let weightfs = Weightfs {
        binary: arguments.bin.clone().unwrap_or_else(|| program.with_file_name("weightfs")),
        source: dir.join("library"),
        mountpoint: dir.join("mount"),
        options: vec![format!("--ram={}", arguments.ram), "--log-file".to_owned(), path_text(&dir.join("daemon.log"))?]
            .into_iter()
            .chain(arguments.mount_option.iter().cloned())
            .collect(),
    };
    let scenarios = chosen(&arguments.only)?;
    // Before anything is mounted or started.
    let (interrupted, keep, all) = (weightfs.clone(), arguments.keep, dir.clone());
    interrupt::on_signal(move || {
        interrupted.clear();
        if let Err(error) = clean_up(&interrupted, &all, keep) {
            eprintln!("{error}");
        }
    })?;
    // What a run left there that was killed.
    weightfs.clear();
    fs::create_dir_all(&weightfs.mountpoint).doing(|| format!("make {}", weightfs.mountpoint.display()))?;
    let measured = measure(arguments, &weightfs, &program, &scenarios);
    let cleaned = clean_up(&weightfs, dir, arguments.keep);
    let results = measured?;
    cleaned?;
    save(&results, &arguments.out)
}

fn measure(arguments: &Arguments, weightfs: &Weightfs, program: &Path, scenarios: &[Scenario]) -> Result<Results> {
    let (sizes, pairs) = if arguments.quick { (Sizes::QUICK, 2) } else { (Sizes::FULL, 5) };
    let load_before = machine::load();
    let library = Library::make(&weightfs.source, &sizes)?;
    let python = match &arguments.python {
        Some(named) => Python::start(named),
        None => Python::find(program),
    };
    let python_version = python.as_ref().ok().map(|python| python.version.clone());
    let readers = Readers::new(python);
    let (started, start) = (SystemTime::now(), Instant::now());
    let daemon_notes = {
        let mounted = weightfs.mount(&[])?;
        let notes = mounted.status()?.notes;
        mounted.unmount()?;
        notes
    };
    let mut bench = Bench::new(weightfs.clone(), library, readers, arguments.pairs.unwrap_or(pairs).max(1));
    let mut outcomes = Vec::new();
    for scenario in scenarios {
        eprintln!("{:>5.0} s  {}", start.elapsed().as_secs_f64(), scenario.title);
        let found = bench.run(scenario)?;
        found.iter().for_each(say);
        outcomes.extend(found);
    }
    Ok(Results {
        version: weightfs.version()?,
        started: started.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()),
        seconds: start.elapsed().as_secs_f64(),
        machine: Machine::look(&weightfs.source),
        load_before,
        load_after: machine::load(),
        pairs: bench.pairs,
        sizes,
        options: weightfs.options.clone(),
        daemon_notes,
        python: python_version,
        outcomes,
    })
}

/// The scenarios whose names begin with one of `only`, or all.
fn chosen(only: &[String]) -> Result<Vec<Scenario>> {
    let all = scenario::all();
    if let Some(unknown) = only.iter().find(|name| !all.iter().any(|scenario| scenario.id.starts_with(*name))) {
        let names: Vec<&str> = all.iter().map(|scenario| scenario.id).collect();
        return Err(BenchError::Unfit(format!("there is no scenario '{unknown}'; there are {}", names.join(", "))));
    }
    let wanted = |scenario: &Scenario| only.is_empty() || only.iter().any(|name| scenario.id.starts_with(name));
    Ok(all.into_iter().filter(wanted).collect())
}

fn say(outcome: &Outcome) {
    match outcome {
        Outcome::Compared(Comparison { title, native, mount, relative, unit, notes, .. }) => {
            eprintln!(
                "         {title}: native {:.3}, weightfs {:.3} {}, relation {:.2} ({:.2} to {:.2})",
                native.median,
                mount.median,
                unit.name(),
                relative.median,
                relative.min,
                relative.max
            );
            notes.iter().for_each(|note| eprintln!("           {note}"));
        }
        Outcome::Figure(Figure { title, value, unit, .. }) => eprintln!("         {title}: {value:.3} {}", unit.name()),
        Outcome::Skipped(Skipped { reason, .. }) => eprintln!("         skipped: {reason}"),
    }
}

fn save(results: &Results, out: &Path) -> Result<()> {
    fs::create_dir_all(out).doing(|| format!("make {}", out.display()))?;
    let (json, report) = (out.join("results.json"), out.join("report.md"));
    let text = serde_json::to_string_pretty(results).doing(|| "write the results as JSON".to_owned())?;
    fs::write(&json, text).doing(|| format!("write {}", json.display()))?;
    fs::write(&report, render(results)).doing(|| format!("write {}", report.display()))?;
    println!("{}", report.display());
    Ok(())
}

/// Removes what the run made. The mount is gone: nothing is removed through it.
fn clean_up(weightfs: &Weightfs, dir: &Path, keep: bool) -> Result<()> {
    weightfs.clear();
    weightfs.forget_history()?;
    let remove_empty = |path: &Path| match fs::remove_dir(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).doing(|| format!("remove {}", path.display()))
        }
        _ => Ok(()),
    };
    remove_empty(&weightfs.mountpoint)?;
    if keep {
        return Ok(());
    }
    for path in [&weightfs.source, &dir.join("daemon.log")] {
        let removed = if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) };
        match removed {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(error).doing(|| format!("remove {}", path.display()));
            }
            _ => {}
        }
    }
    remove_empty(dir)
}

fn path_text(path: &Path) -> Result<String> {
    path.to_str().map(str::to_owned).ok_or_else(|| BenchError::Unfit(format!("{} is not UTF-8", path.display())))
}
