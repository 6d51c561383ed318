//! A walk over many small files with a stat of each, as programs do that look for models.

use std::path::Path;
use std::time::{Duration, Instant};

use super::{Bench, Scenario};
use crate::caches;
use crate::error::{BenchError, Doing, Result};
use crate::measure::interleave;
use crate::report::{Bar, Comparison, Outcome, Relation, Sample, Unit};
use crate::weightfs::Mounted;

/// Longer than the kernel keeps names and attributes that are not renewed.
const APART: Duration = Duration::from_millis(2500);

#[derive(Clone, Copy, Debug)]
pub struct Walk {
    pub when: When,
    pub bar: Option<Bar>,
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
        let through_mount = bench.library.small(&weightfs.mountpoint);
        let expected = bench.library.sizes.small_files;
        let mut mounted: Option<Mounted<'_>> = None;
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
                    old.unmount()?;
                }
                mounted = Some(weightfs.mount(&[])?);
                if self.when == When::FirstCold {
                    caches::drop_all()?;
                }
            }
            let serving = mounted.as_ref().expect("mounted just now or before");
            let before = serving.work()?;
            let sample = bench.watch.over(|| walk(&through_mount, expected))?;
            Ok(Sample { work: Some(serving.work()?.since(before)), ..sample })
        };
        let pairs = interleave(bench.pairs, native_sample, mount_sample)?;
        if let Some(mounted) = mounted {
            mounted.unmount()?;
        }
        let judged = (Relation::Ratio, self.bar);
        let comparison = Comparison::of(scenario.id, scenario.title, Unit::Milliseconds, judged, &pairs);
        Ok(vec![Outcome::Compared(comparison)])
    }
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
