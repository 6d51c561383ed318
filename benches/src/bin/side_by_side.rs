//! The side-by-side suite: weightfs against the plain folder, in one run.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use std::{env, fs};

use clap::Parser;
use weightfs_benches::data::{Library, Sizes};
use weightfs_benches::error::{BenchError, Doing, Result};
use weightfs_benches::interrupt;
use weightfs_benches::machine::{self, Machine, Probe};
use weightfs_benches::nobody;
use weightfs_benches::readahead;
use weightfs_benches::readers::{Loader, Python, Reader, Readers, helper, turns};
use weightfs_benches::report::{Cell, Comparison, Failed, Figure, Outcome, PLOTS, Ran, Results, Skipped, render};
use weightfs_benches::scenario::{self, Bench, Length, Scenario};
use weightfs_benches::weightfs::{Weightfs, detach_below};

/// What the usual run may take.
const MINUTES: u64 = 20;

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

    /// Where results.json, REPORT.md and the plots go.
    #[arg(long, value_name = "DIR", default_value = "target/bench")]
    out: PathBuf,

    /// Pairs of samples. [default: 7, or 2 with --quick]
    #[arg(long)]
    pairs: Option<usize>,

    /// RAM for models, as of `weightfs mount`.
    #[arg(long, value_name = "SIZE", default_value = "4G")]
    ram: String,

    /// One more option for every mount; may be repeated: --mount-option=--io=threads.
    #[arg(long, value_name = "OPTION", allow_hyphen_values = true)]
    mount_option: Vec<String>,

    /// A Python with packages that load models. [default: those of .venv and .venv-bench above this program]
    #[arg(long, value_name = "FILE")]
    python: Option<PathBuf>,

    /// Holds both sides of the loops to so many MB a second from the disk; 0 does not. [default: 3/4 of the
    /// slowest read, where the disk is not always as fast]
    #[arg(long, value_name = "MB")]
    throttle: Option<u64>,

    /// Small files and few pairs: shows that everything works, and says nothing of speed.
    #[arg(long)]
    quick: bool,

    /// How costs grow instead: up to 200,000 files, models of 64 GiB, 12 GiB in RAM. Takes a quarter of an hour.
    #[arg(long, conflicts_with = "quick")]
    long: bool,

    /// No scenario is begun after so many minutes; those that are left are reported as not measured. [default: 20; with
    /// --long as many as it takes]
    #[arg(long, value_name = "NUMBER")]
    minutes: Option<u64>,

    /// Keep the library for the next run.
    #[arg(long)]
    keep: bool,

    /// Becomes a process that reads these models in turn, so many times.
    #[arg(long, value_name = "ROUNDS", hide = true)]
    read_in_turns: Option<usize>,

    /// Becomes a process that reads what it is told to, with these interpreters of Python.
    #[arg(long, hide = true)]
    help_to_read: bool,

    /// Only scenarios whose name begins with one of these.
    #[arg(value_name = "SCENARIO")]
    only: Vec<String>,
}

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("weightfs-bench: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Says whether every scenario came to its end.
fn run(arguments: &Arguments) -> Result<bool> {
    let paths = || arguments.only.iter().map(PathBuf::from).collect::<Vec<_>>();
    if let Some(rounds) = arguments.read_in_turns {
        return turns::serve(&paths(), rounds).map(|()| true);
    }
    if arguments.help_to_read {
        return helper::serve(&paths()).map(|()| true);
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
    let length = match (arguments.quick, arguments.long) {
        (true, _) => Length::Quick,
        (false, false) => Length::Usual,
        (false, true) => Length::Long,
    };
    let scenarios = chosen(&arguments.only, length)?;
    // Before anything is mounted or started.
    let (interrupted, keep, all) = (weightfs.clone(), arguments.keep, dir.clone());
    interrupt::on_signal(move || {
        if let Err(error) = clean_up(&interrupted, &all, keep) {
            eprintln!("{error}");
        }
    })?;
    // What a run left there that was killed.
    weightfs.clear();
    detach_below(dir);
    fs::create_dir_all(&weightfs.mountpoint).doing(|| format!("make {}", weightfs.mountpoint.display()))?;
    let measured = measure(arguments, &weightfs, &program, &scenarios);
    let cleaned = clean_up(&weightfs, dir, arguments.keep);
    let results = measured?;
    save(&results, &arguments.out)?;
    cleaned?;
    Ok(!results.outcomes.iter().any(|outcome| matches!(outcome, Outcome::Failed(_))))
}

fn measure(arguments: &Arguments, weightfs: &Weightfs, program: &Path, scenarios: &[Scenario]) -> Result<Results> {
    let (sizes, pairs) = if arguments.quick { (Sizes::QUICK, 2) } else { (Sizes::FULL, 7) };
    let load_before = machine::load();
    let library = Library::make(&weightfs.source, &sizes)?;
    let mut readers = match &arguments.python {
        Some(named) => Readers::new(vec![Python::start(named)]),
        None => Readers::beside(program),
    };
    let python = packages(&mut readers);
    let (started, start) = (SystemTime::now(), Instant::now());
    let daemon_notes = {
        let mounted = weightfs.mount(&[])?;
        let notes = mounted.status()?.notes;
        mounted.unmount()?;
        notes
    };
    let disk = Probe::of(&library.turns(&library.folder)[0], pairs)?;
    let mut bench = Bench::new(weightfs.clone(), library, readers, arguments.pairs.unwrap_or(pairs).max(1));
    bench.throttle = throttle(arguments.throttle, &disk);
    bench.profiles = !arguments.quick;
    let minutes = arguments.minutes.or((!arguments.long).then_some(MINUTES));
    bench.until = minutes.map(|minutes| start + Duration::from_secs(60 * minutes));
    let (mut outcomes, mut ran) = (Vec::new(), Vec::new());
    for scenario in scenarios {
        eprintln!("{:>5.0} s  {}", start.elapsed().as_secs_f64(), scenario.title);
        let began = Instant::now();
        let (id, title) = (scenario.id, scenario.title);
        let found = if let Some(reason) = bench.time_is_up() {
            vec![Outcome::Skipped(Skipped { id, title, reason })]
        } else {
            bench.run(scenario).unwrap_or_else(|error| {
                // Whatever it had mounted is in the way of the next.
                bench.weightfs.clear();
                vec![Outcome::Failed(Failed { id, title, reason: error.to_string() })]
            })
        };
        found.iter().for_each(say);
        outcomes.extend(found);
        ran.push(Ran { id, title, seconds: began.elapsed().as_secs_f64() });
    }
    Ok(Results {
        version: weightfs.version()?,
        started: started.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()),
        seconds: start.elapsed().as_secs_f64(),
        machine: Machine::look(&weightfs.source),
        disk: Some(disk),
        throttle: bench.throttle,
        load_before,
        load_after: machine::load(),
        is_quick: arguments.quick,
        pairs: bench.pairs,
        sizes,
        options: weightfs.options.clone(),
        daemon_notes,
        python,
        scenarios: ran,
        outcomes,
    })
}

/// The packages with loaders that are here, each once.
fn packages(readers: &mut Readers) -> Vec<String> {
    const TELLING: [Loader; 5] =
        [Loader::Safetensors, Loader::Aimdo, Loader::Gguf, Loader::FastSafetensors, Loader::RunaiStreamer];
    let found = TELLING.iter().filter_map(|loader| readers.has(Reader::Python(*loader)).ok());
    let mut all: Vec<String> = found.flat_map(|text| text.split(", ").map(str::to_owned).collect::<Vec<_>>()).collect();
    all.sort();
    all.dedup();
    if all.is_empty() { vec!["**no loader of any package: most readers are not measured**".to_owned()] } else { all }
}

/// Bytes a second for both sides of a loop: as was asked for, or where the disk is noisy.
fn throttle(asked: Option<u64>, disk: &Probe) -> Option<u64> {
    match asked {
        Some(megabytes) => (megabytes > 0).then_some(megabytes * 1_000_000),
        None => disk.is_noisy().then_some((disk.gigabytes_per_second.min * 1e9 * 0.75) as u64),
    }
}

/// The scenarios whose names begin with one of `only`, or all.
fn chosen(only: &[String], length: Length) -> Result<Vec<Scenario>> {
    let all = scenario::all(length);
    if let Some(unknown) = only.iter().find(|name| !all.iter().any(|scenario| scenario.id.starts_with(*name))) {
        let names: Vec<&str> = all.iter().map(|scenario| scenario.id).collect();
        return Err(BenchError::Unfit(format!("there is no scenario '{unknown}'; there are {}", names.join(", "))));
    }
    let wanted = |scenario: &Scenario| only.is_empty() || only.iter().any(|name| scenario.id.starts_with(name));
    Ok(all.into_iter().filter(wanted).collect())
}

fn say(outcome: &Outcome) {
    match outcome {
        Outcome::Compared(Comparison { title, sides, native, mount, relative, unit, notes, holds, .. }) => {
            eprintln!(
                "         {title}: {} {:.3}, {} {:.3} {}, relation {:.2} ({:.2} to {:.2}){}",
                sides.baseline,
                native.median,
                sides.subject,
                mount.median,
                unit.name(),
                relative.median,
                relative.min,
                relative.max,
                verdict(*holds)
            );
            notes.iter().for_each(|note| eprintln!("           {note}"));
        }
        Outcome::Figure(Figure { title, value, unit, holds, .. }) => {
            eprintln!("         {title}: {value:.3} {}{}", unit.name(), verdict(*holds));
        }
        Outcome::Grid(grid) => grid.rows.iter().for_each(|row| {
            let cell = |cell: &Cell| cell.median().map_or("-".to_owned(), |value| format!("{value:.2}"));
            let cells: Vec<String> = row.cells.iter().map(cell).collect();
            eprintln!("         {}, {}: {} {}", grid.id, row.name, cells.join("  "), grid.unit.name());
        }),
        Outcome::Growth(growth) => growth.lines.iter().for_each(|line| {
            let power = line.exponent.map_or("unknown".to_owned(), |power| format!("{power:.2}"));
            eprintln!("         {}, {}: grows with the power {power}", growth.id, line.name);
        }),
        Outcome::Profile { .. } => {}
        Outcome::Skipped(Skipped { reason, .. }) => eprintln!("         *** NOT MEASURED: {reason} ***"),
        Outcome::Failed(Failed { reason, .. }) => eprintln!("         *** FAILED: {reason} ***"),
    }
}

fn verdict(holds: Option<bool>) -> &'static str {
    match holds {
        Some(true) => ", the bar holds",
        Some(false) => ", MISSES THE BAR",
        None => "",
    }
}

fn save(results: &Results, out: &Path) -> Result<()> {
    let plots = out.join(PLOTS);
    fs::create_dir_all(&plots).doing(|| format!("make {}", plots.display()))?;
    let write = |path: &Path, text: &str| fs::write(path, text).doing(|| format!("write {}", path.display()));
    let text = serde_json::to_string_pretty(results).doing(|| "write the results as JSON".to_owned())?;
    write(&out.join("results.json"), &text)?;
    let rendered = render(results);
    for (name, plot) in &rendered.plots {
        write(&plots.join(name), plot)?;
    }
    let report = out.join("REPORT.md");
    write(&report, &rendered.text)?;
    println!("{}", report.display());
    Ok(())
}

/// Removes what the run made. The mount is gone: nothing is removed through it.
fn clean_up(weightfs: &Weightfs, dir: &Path, keep: bool) -> Result<()> {
    weightfs.clear();
    detach_below(dir);
    nobody::end_daemons(&dir.join("nobody"));
    readahead::restore()?;
    weightfs.forget_history()?;
    let remove_empty = |path: &Path| match fs::remove_dir(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).doing(|| format!("remove {}", path.display()))
        }
        _ => Ok(()),
    };
    for mountpoint in [&weightfs.mountpoint, &dir.join("passthrough")] {
        remove_empty(mountpoint)?;
    }
    if keep {
        return Ok(());
    }
    for path in [&weightfs.source, &dir.join("scale"), &dir.join("nobody"), &dir.join("daemon.log")] {
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
