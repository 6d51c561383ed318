//! The time from `open` to the first bytes of a file that nobody has read yet.

use super::{Bench, Scenario};
use crate::caches;
use crate::error::Result;
use crate::measure::{interleave, percentile};
use crate::memory;
use crate::readers::first_bytes;
use crate::report::{Bar, Comparison, Outcome, Relation, Sample, Unit};
use crate::weightfs::Mounted;

/// Bytes read.
const READ: usize = 64 << 10;

#[derive(Clone, Copy, Debug)]
pub struct FirstByte {
    pub place: Place,
    /// Of the difference, in milliseconds.
    pub bar: Option<Bar>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// The start of the file, as a look at the header does.
    Header,
    /// The middle of the file.
    Middle,
}

impl FirstByte {
    /// Each sample is a round over all the files.
    pub fn run(&self, bench: &mut Bench, scenario: &Scenario) -> Result<Vec<Outcome>> {
        let weightfs = bench.weightfs.clone();
        let native = bench.library.first_byte_files(&bench.library.folder);
        let through_mount = bench.library.first_byte_files(&weightfs.mountpoint);
        let offset = match self.place {
            Place::Header => 0,
            // Not at a page's boundary, as tensors are not.
            Place::Middle => bench.library.sizes.first_byte_size / 2 + 8,
        };
        let room = 2 * native.len() as u64 * bench.library.sizes.first_byte_size;
        let mut buffer = vec![1; READ];
        let mut round = |files: &[std::path::PathBuf]| -> Result<Vec<f64>> {
            caches::drop_all()?;
            memory::back(room)?;
            files.iter().map(|path| Ok(first_bytes(path, offset, &mut buffer)?.as_secs_f64() * 1e3)).collect()
        };
        let round = std::cell::RefCell::new(&mut round);
        let mut mounted: Option<Mounted<'_>> = None;
        let rounds = interleave(
            bench.pairs,
            || round.borrow_mut()(&native),
            || {
                if let Some(old) = mounted.take() {
                    old.unmount()?;
                }
                weightfs.forget_history()?;
                mounted = Some(weightfs.mount(&[])?);
                bench.watch.over(|| round.borrow_mut()(&through_mount))
            },
        )?;
        if let Some(mounted) = mounted {
            mounted.unmount()?;
        }
        let outcome = |share: f64, bar| {
            let name = format!("p{:.0}", share * 100.0);
            let sample = |times: &[f64]| Sample::of(percentile(times, share));
            let pairs: Vec<_> = rounds.iter().map(|(native, mount)| (sample(native), sample(mount))).collect();
            let (id, title) = (format!("{}-{name}", scenario.id), format!("{}, {name}", scenario.title));
            Outcome::Compared(Comparison::of(id, title, Unit::Milliseconds, (Relation::Difference, bar), &pairs))
        };
        Ok(vec![outcome(0.5, self.bar), outcome(0.99, None)])
    }
}
