//! A walk over many small files with a stat of each, as programs do that look for models.

use std::path::Path;
use std::time::{Duration, Instant};

use super::{Bench, Scenario};
use crate::caches;
use crate::error::{BenchError, Doing, Result};
use crate::measure::{Spread, interleave};
use crate::passthrough::{self, Passthrough};
use crate::report::{Bar, Comparison, Figure, Outcome, Relation, Sample, Sides, Unit};
use crate::wakeup;
use crate::weightfs::{Mounted, Work};

/// Longer than the kernel keeps names and attributes that are not renewed.
const APART: Duration = Duration::from_millis(2500);

#[derive(Clone, Copy, Debug)]
pub struct Walk {
    pub when: When,
    pub through: Through,
    pub bar: Option<Bar>,
}

/// What the plain folder is set against.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Through {
    Weightfs,
    /// A FUSE file system that only passes on and has the kernel believe all for a day: what FUSE costs in itself.
    Passthrough,
}

/// One of them.
enum Served<'a> {
    Weightfs(Mounted<'a>),
    Passthrough(Passthrough),
}

impl Served<'_> {
    fn work(&self) -> Result<Option<Work>> {
        match self {
            Served::Weightfs(mounted) => mounted.work().map(Some),
            Served::Passthrough(_) => Ok(None),
        }
    }

    fn end(self) -> Result<()> {
        match self {
            Served::Weightfs(mounted) => mounted.unmount(),
            Served::Passthrough(mounted) => {
                drop(mounted);
                Ok(())
            }
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// On a new mount. The kernel knows the plain folder: its caches are dropped for neither side.
    FirstKnown,
    /// On a new mount, with the kernel's caches dropped for both sides.
    FirstCold,
    /// Again and again on one mount.
    Again,
}

impl Walk {
    pub fn run(&self, bench: &mut Bench, scenario: &Scenario) -> Result<Vec<Outcome>> {
        let weightfs = bench.weightfs.clone();
        let native = bench.library.small(&bench.library.folder);
        let mountpoint = match self.through {
            Through::Weightfs => weightfs.mountpoint.clone(),
            Through::Passthrough => weightfs.mountpoint.with_file_name("passthrough"),
        };
        let through_mount = bench.library.small(&mountpoint);
        let expected = bench.library.sizes.small_files;
        let mount = || match self.through {
            Through::Weightfs => weightfs.mount(&[]).map(Served::Weightfs),
            Through::Passthrough => {
                let program = passthrough::of_this_program().map_err(BenchError::Unfit)?;
                Passthrough::mount(&program, &bench.library.folder, &mountpoint).map(Served::Passthrough)
            }
        };
        let mut mounted: Option<Served<'_>> = None;
        let native_sample = || {
            match self.when {
                When::FirstCold => caches::drop_all()?,
                When::Again => std::thread::sleep(APART),
                When::FirstKnown => {}
            }
            walk(&native, expected)
        };
        let mount_sample = || {
            if mounted.is_none() || self.when != When::Again {
                if let Some(old) = mounted.take() {
                    old.end()?;
                }
                mounted = Some(mount()?);
                if self.when == When::FirstCold {
                    caches::drop_all()?;
                }
            }
            let serving = mounted.as_ref().expect("mounted just now or before");
            let before = serving.work()?;
            let sample = bench.watch.over(|| walk(&through_mount, expected))?;
            let work = serving.work()?.zip(before).map(|(after, before)| after.since(before));
            Ok(Sample { work, ..sample })
        };
        let pairs = interleave(bench.pairs, native_sample, mount_sample)?;
        if let Some(mounted) = mounted {
            mounted.end()?;
        }
        let judged = (Relation::Ratio, self.bar);
        let mut comparison = Comparison::of(scenario.id, scenario.title, Unit::Milliseconds, judged, &pairs);
        if self.through == Through::Passthrough {
            comparison.sides = Sides::of("native", "passthrough_ll");
        }
        let mut outcomes = vec![Outcome::Compared(comparison)];
        if self.when == When::Again && self.through == Through::Weightfs {
            outcomes.extend(wake_ups(&native, scenario)?);
        }
        Ok(outcomes)
    }
}

/// What of a later walk is nobody's work: each folder is opened, of which the daemon is asked.
fn wake_ups(folder: &Path, scenario: &Scenario) -> Result<Option<Outcome>> {
    let folders = 1 + folders(folder)?;
    let title =
        format!("{}: of that, waking a thread on another core and being woken, {folders} times", scenario.title);
    let figure = |each: Spread| {
        let all = each.median * folders as f64 / 1e3;
        Outcome::Figure(Figure::of(format!("{}-wake-ups", scenario.id), title, Unit::Milliseconds, all, None))
    };
    Ok(wakeup::there_and_back()?.map(figure))
}

fn folders(folder: &Path) -> Result<usize> {
    let what = || format!("list {}", folder.display());
    let mut found = 0;
    for entry in std::fs::read_dir(folder).doing(what)? {
        found += usize::from(entry.doing(what)?.file_type().doing(what)?.is_dir());
    }
    Ok(found)
}

fn walk(folder: &Path, expected: usize) -> Result<Sample> {
    let start = Instant::now();
    let found = count(folder)?;
    let time = start.elapsed();
    if found != expected {
        return Err(BenchError::Unfit(format!("{} has {found} files and not {expected}", folder.display())));
    }
    Ok(Sample::of(time.as_secs_f64() * 1e3))
}

/// Looks at every entry by its path, as os.walk with os.stat does.
pub fn count(folder: &Path) -> Result<usize> {
    let what = || format!("walk over {}", folder.display());
    let mut files = 0;
    for entry in std::fs::read_dir(folder).doing(what)? {
        let path = entry.doing(what)?.path();
        let metadata = std::fs::metadata(&path).doing(|| format!("look at {}", path.display()))?;
        files += if metadata.is_dir() { count(&path)? } else { 1 };
    }
    Ok(files)
}
