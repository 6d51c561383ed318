//! What the daemon costs besides the arena: memory, CPU, and a second copy that should not be.

use std::rc::Rc;

use super::{Bench, Scenario, walk};
use crate::caches;
use crate::data::Model;
use crate::error::Result;
use crate::memory;
use crate::process;
use crate::readers::Reader;
use crate::report::{Bar, Figure, Outcome, Unit};
use crate::weightfs::Mounted;

const MIB: f64 = 1_048_576.0;

/// Loads while the kernel reads the arena, so that the ticks in which CPU is counted are small beside the bytes.
const LOADS: u64 = 5;

/// CPU seconds for a GB that the daemon hands out.
const STREAMING: f64 = 0.3;

/// What the machine's page cache may grow by in a load that copies nothing, in MiB: others use it too.
const NO_COPY: f64 = 32.0;

pub fn run(bench: &mut Bench, scenario: &Scenario) -> Result<Vec<Outcome>> {
    let weightfs = bench.weightfs.clone();
    weightfs.forget_history()?;
    caches::drop_all()?;
    let mounted = weightfs.mount(&[])?;
    let mut figures = Figures { prefix: scenario.id, outcomes: Vec::new() };
    figures.memory("start", "daemon memory besides the arena, just mounted", &mounted)?;
    walk::count(&bench.library.small(&weightfs.mountpoint))?;
    let files = bench.library.sizes.small_files;
    figures.memory("walk", &format!("daemon memory besides the arena, after a walk over {files} files"), &mounted)?;
    streaming(bench, &mounted, &mut figures)?;
    resident(bench, &mounted, &mut figures)?;
    bench.verify(Model::Large)?;
    bench.verify(Model::Medium)?;
    figures.memory("served", "daemon memory besides the arena, after serving two models", &mounted)?;
    mounted.unmount()?;
    out_of_the_arena(bench, &mut figures)?;
    Ok(figures.outcomes)
}

/// Loads that the daemon answers out of the arena.
fn out_of_the_arena(bench: &mut Bench, figures: &mut Figures) -> Result<()> {
    let weightfs = bench.weightfs.clone();
    let tensors = bench.library.tensors(Model::Large)?;
    let path = bench.through_mount(Model::Large);
    let watch = Rc::clone(&bench.watch);
    let mounted = weightfs.mount(&["--no-passthrough"])?;
    mounted.prefetch(std::slice::from_ref(&path))?;
    for (id, title, reader) in [
        ("cpu-streamed", "daemon CPU of loads that it streams out of the arena, pread", Reader::Pread),
        ("cpu-streamed-map", "daemon CPU of loads that it streams out of the arena, private map", Reader::PrivateMap),
    ] {
        // Maps are read through the page cache, which is to have nothing of them. What it takes for the first it has at once
        // again for the next.
        memory::back(bench.size(Model::Large)? * 5 / 4)?;
        let (before, mut bytes) = (mounted.work()?, 0);
        for _ in 0..LOADS {
            caches::drop_file(&path)?;
            bytes += watch.over(|| bench.readers.load(reader, &path, &tensors))?.bytes;
        }
        let per_gigabyte = mounted.work()?.since(before).cpu_seconds / (bytes as f64 / 1e9);
        figures.add(id, title, Unit::CpuSecondsPerGigabyte, per_gigabyte, Some(Bar::AtMost(STREAMING)));
    }
    mounted.unmount()
}

/// A cold load, read from the source and handed out.
fn streaming(bench: &mut Bench, mounted: &Mounted<'_>, figures: &mut Figures) -> Result<()> {
    let tensors = bench.library.tensors(Model::Large)?;
    let path = bench.through_mount(Model::Large);
    memory::back(bench.size(Model::Large)? * 2)?;
    let before = mounted.work()?;
    let loaded = bench.readers.load(Reader::Pread, &path, &tensors)?;
    let work = mounted.work()?.since(before);
    let per_gigabyte = work.cpu_seconds / (loaded.bytes as f64 / 1e9);
    let title = "daemon CPU of a cold load that it streams";
    figures.add("cpu-cold", title, Unit::CpuSecondsPerGigabyte, per_gigabyte, Some(Bar::AtMost(STREAMING)));
    mounted.wait_resident(bench.size(Model::Large)?)
}

/// Loads that the kernel serves out of the arena.
fn resident(bench: &mut Bench, mounted: &Mounted<'_>, figures: &mut Figures) -> Result<()> {
    let tensors = bench.library.tensors(Model::Large)?;
    let path = bench.through_mount(Model::Large);
    let (before, cache_before) = (mounted.work()?, process::page_cache()?);
    let mut bytes = 0;
    for _ in 0..LOADS {
        bytes += bench.readers.load(Reader::Pread, &path, &tensors)?.bytes;
    }
    let (work, cache_after) = (mounted.work()?.since(before), process::page_cache()?);
    let grown = |after: u64, before: u64| (after as f64 - before as f64) / MIB;
    let gigabytes = bytes as f64 / 1e9;
    let served = work.served() as f64 / MIB;
    figures.add(
        "served-resident",
        &format!("read from the daemon in {gigabytes:.1} GB of resident loads"),
        Unit::Mebibytes,
        served,
        Some(Bar::AtMost(0.0)),
    );
    let cpu = work.cpu_seconds / gigabytes;
    let title = "daemon CPU of resident loads";
    figures.add("cpu-resident", title, Unit::CpuSecondsPerGigabyte, cpu, Some(Bar::AtMost(0.01)));
    // tmpfs, and so the arena, is counted in both.
    for (id, title, value) in [
        ("cached", "growth of Cached in resident loads", grown(cache_after.cached, cache_before.cached)),
        ("shmem", "growth of Shmem in resident loads", grown(cache_after.shared, cache_before.shared)),
    ] {
        figures.add(id, title, Unit::Mebibytes, value, Some(Bar::AtMost(NO_COPY)));
    }
    Ok(())
}

struct Figures {
    prefix: &'static str,
    outcomes: Vec<Outcome>,
}

impl Figures {
    fn add(&mut self, id: &str, title: &str, unit: Unit, value: f64, bar: Option<Bar>) {
        let id = format!("{}-{id}", self.prefix);
        self.outcomes.push(Outcome::Figure(Figure::of(id, title, unit, value, bar)));
    }

    fn memory(&mut self, id: &str, title: &str, mounted: &Mounted<'_>) -> Result<()> {
        let own = mounted.memory()?.own() as f64 / MIB;
        self.add(&format!("memory-{id}"), title, Unit::Mebibytes, own, Some(Bar::AtMost(64.0)));
        Ok(())
    }
}
