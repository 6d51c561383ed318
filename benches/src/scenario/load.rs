//! Loading one model: from the plain folder, and through the mount.

use std::cell::RefCell;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use super::{Bench, Scenario, fio};
use crate::caches;
use crate::data::Model;
use crate::error::Result;
use crate::measure::interleave;
use crate::memory;
use crate::profile::Watch;
use crate::readahead::ReadAhead;
use crate::readers::{Loaded, Reader, Readers};
use crate::report::{Bar, Comparison, Outcome, Relation, Sample, Sides, Unit};
use crate::weightfs::{Mounted, Weightfs, Work};

/// What the daemon has to answer for a load that it should not notice.
const HARDLY_ANYTHING: u64 = 1 << 20;

#[derive(Clone, Copy, Debug)]
pub struct Load {
    pub model: Model,
    pub reader: Reader,
    pub native: Native,
    pub served: Served,
    /// How far the kernel reads ahead in the plain folder, in KiB, if not as the machine is set.
    pub read_ahead: Option<u64>,
    pub bar: Option<Bar>,
}

/// The page cache before each native sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Native {
    Empty,
    /// As the load before has left it.
    AsLeft,
    /// No page cache, and no loader: what `fio` gets from the device by io_uring.
    Device,
}

/// The daemon before each sample of the mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Served {
    /// Just started, the page cache empty, and nothing known of the model.
    NewUnknown,
    /// Just started, the page cache empty, after a daemon that has seen the model being loaded twice.
    NewKnown,
    /// The model is in the arena, the page cache has none of it, and the daemon answers each read.
    Streamed,
    /// The model is in the arena, the daemon answers, and the page cache has what it handed out before.
    Kept,
    /// The model is in the arena, and the kernel reads it there.
    Resident,
}

impl Served {
    fn is_new(self) -> bool {
        matches!(self, Served::NewUnknown | Served::NewKnown)
    }

    fn options(self) -> &'static [&'static str] {
        if matches!(self, Served::Streamed | Served::Kept) { &["--no-passthrough"] } else { &[] }
    }

    /// What is odd about a daemon that did `work` for a sample.
    fn oddity(self, work: Work) -> Option<String> {
        let moved = |bytes: u64| bytes > HARDLY_ANYTHING;
        match self {
            Served::Streamed if moved(work.source_read_bytes) => Some("the daemon read from the source".to_owned()),
            Served::Resident if work.passthrough_opens == 0 => Some("not opened in passthrough".to_owned()),
            Served::Resident | Served::Kept if moved(work.served()) => Some("the daemon had to serve reads".to_owned()),
            _ => None,
        }
    }
}

/// A load that is run: where the files are, and what is kept between samples.
struct Run<'a> {
    load: &'a Load,
    weightfs: &'a Weightfs,
    tensors: Vec<Range<u64>>,
    native: PathBuf,
    through_mount: PathBuf,
    size: u64,
    watch: Rc<Watch>,
}

impl Load {
    pub fn run(&self, bench: &mut Bench, scenario: &Scenario) -> Result<Vec<Outcome>> {
        let weightfs = bench.weightfs.clone();
        let _read_ahead = self.read_ahead.map(|kib| ReadAhead::set(&weightfs.source, kib)).transpose()?;
        let run = Run {
            load: self,
            weightfs: &weightfs,
            tensors: bench.library.tensors(self.model)?,
            native: bench.native(self.model),
            through_mount: bench.through_mount(self.model),
            size: bench.size(self.model)?,
            watch: Rc::clone(&bench.watch),
        };
        let mounted = RefCell::new(run.prepare_mount(&mut bench.readers)?);
        run.prepare_native(&mut bench.readers)?;
        let pairs = {
            let readers = RefCell::new(&mut bench.readers);
            interleave(
                bench.pairs,
                || {
                    run.end(&mut mounted.borrow_mut())?;
                    run.native_sample(&mut readers.borrow_mut())
                },
                || run.mount_sample(&mut readers.borrow_mut(), &mut mounted.borrow_mut()),
            )?
        };
        let judged = (Relation::Ratio, self.bar);
        let mut comparison = Comparison::of(scenario.id, scenario.title, Unit::GigabytesPerSecond, judged, &pairs);
        if self.native == Native::Device {
            comparison = comparison.between(Sides::of("fio", "weightfs"));
        }
        if let Some(mounted) = mounted.into_inner() {
            bench.verify(self.model)?;
            mounted.unmount()?;
        }
        if self.served.is_new() {
            let in_passthrough = comparison.work.iter().filter(|work| work.passthrough_opens > 0).count();
            comparison.notes.push(format!("{in_passthrough} of {} cold loads ended in passthrough", pairs.len()));
        }
        Ok(vec![Outcome::Compared(comparison)])
    }
}

impl<'a> Run<'a> {
    /// Brings the mount into the state that the samples want. None where each of them mounts anew.
    fn prepare_mount(&self, readers: &mut Readers) -> Result<Option<Mounted<'a>>> {
        self.weightfs.forget_history()?;
        let served = self.load.served;
        match served {
            Served::NewUnknown => Ok(None),
            Served::NewKnown => {
                for _ in 0..2 {
                    let mounted = self.weightfs.mount(served.options())?;
                    self.load_once(readers, &self.through_mount)?;
                    mounted.unmount()?;
                }
                Ok(None)
            }
            Served::Streamed | Served::Kept | Served::Resident => {
                let mounted = self.weightfs.mount(served.options())?;
                // The plain reader, whoever is measured: it leaves no byte out. What is kept is what was mapped.
                let first = if served == Served::Kept { self.load.reader } else { Reader::Pread };
                readers.load(first, &self.through_mount, &self.tensors)?;
                mounted.wait_resident(self.size)?;
                if served == Served::Kept {
                    // Under the number that it has then, and once more for what is kept to be there.
                    self.load_once(readers, &self.through_mount)?;
                    self.load_once(readers, &self.through_mount)?;
                }
                Ok(Some(mounted))
            }
        }
    }

    fn prepare_native(&self, readers: &mut Readers) -> Result<()> {
        caches::drop_all()?;
        if self.load.native == Native::AsLeft {
            self.load_once(readers, &self.native)?;
        }
        Ok(())
    }

    /// Ends a mount of which no other sample is taken: what it holds is memory that the other side does not have.
    fn end(&self, mounted: &mut Option<Mounted<'a>>) -> Result<()> {
        mounted.take_if(|_| self.load.served.is_new()).map_or(Ok(()), Mounted::unmount)
    }

    fn native_sample(&self, readers: &mut Readers) -> Result<Sample> {
        if self.load.native != Native::AsLeft {
            caches::drop_all()?;
        }
        self.prepare_memory()?;
        if self.load.native == Native::Device {
            return Ok(Sample::of(fio::gigabytes_per_second(&self.native)?));
        }
        let was_cached = caches::holds(&self.native)?;
        let loaded = self.load_once(readers, &self.native)?;
        let oddity = match (self.load.native, self.load.reader, was_cached) {
            (Native::Empty, _, Some(true)) => Some("the page cache had the model before a cold load"),
            (Native::AsLeft, Reader::PreadAndDrop, Some(true)) => Some("the page cache kept what the loader dropped"),
            (Native::AsLeft, Reader::PreadAndDrop, _) => None,
            (Native::AsLeft, _, Some(false)) => Some("the page cache had lost some of the model before a warm load"),
            _ => None,
        };
        Ok(Sample { oddity: oddity.map(str::to_owned), ..Sample::of(speed(loaded)) })
    }

    fn mount_sample(&self, readers: &mut Readers, mounted: &mut Option<Mounted<'a>>) -> Result<Sample> {
        let served = self.load.served;
        if served.is_new() {
            if served == Served::NewUnknown {
                self.weightfs.forget_history()?;
            }
            *mounted = Some(self.weightfs.mount(served.options())?);
            caches::drop_all()?;
        }
        let serving = mounted.as_ref().expect("mounted by the preparation or just now");
        if served == Served::Streamed {
            caches::drop_file(&self.through_mount)?;
        }
        self.prepare_memory()?;
        let before = serving.work()?;
        let loaded = self.watch.over(|| self.load_once(readers, &self.through_mount))?;
        let work = serving.work()?.since(before);
        Ok(Sample { value: speed(loaded), work: Some(work), oddity: served.oddity(work) })
    }

    /// Room for what a load allocates, whichever side it is: the page cache or the arena, and a copy on top.
    fn prepare_memory(&self) -> Result<()> {
        let copies = matches!(self.load.reader, Reader::Python(_));
        // The page cache takes in anew what the daemon answers for maps.
        let fills = self.load.served == Served::Streamed && self.load.reader == Reader::PrivateMap;
        match self.load.native {
            Native::AsLeft if copies || fills => memory::back(self.size * 5 / 4),
            Native::AsLeft => Ok(()),
            Native::Empty | Native::Device => memory::back(self.size * 9 / 4),
        }
    }

    fn load_once(&self, readers: &mut Readers, path: &Path) -> Result<Loaded> {
        readers.load(self.load.reader, path, &self.tensors)
    }
}

fn speed(loaded: Loaded) -> f64 {
    loaded.bytes as f64 / 1e9 / loaded.time.as_secs_f64()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_resident_load_that_was_served_is_odd() {
        let passed = Work { passthrough_opens: 1, ..Work::default() };
        assert_eq!(Served::Resident.oddity(passed), None);
        assert!(Served::Resident.oddity(Work::default()).is_some());
        assert!(Served::Resident.oddity(Work { served_from_ram_bytes: 2 << 20, ..passed }).is_some());
        assert!(Served::Streamed.oddity(Work { source_read_bytes: 2 << 20, ..passed }).is_some());
        assert_eq!(Served::NewUnknown.oddity(Work { source_read_bytes: 2 << 20, ..passed }), None);
    }
}
