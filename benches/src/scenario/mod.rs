//! What is measured: a table of scenarios, and how each kind is run.

mod cost;
mod faults;
mod fio;
mod first_byte;
mod instances;
mod load;
mod modes;
mod restart;
mod scale;
mod table;
mod table_of_readers;
mod turns;
mod walk;

use std::collections::HashMap;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Instant;

use crate::data::{Format, Library, Model};
use crate::error::{BenchError, Doing, Result};
use crate::machine;
use crate::passthrough;
use crate::profile::Watch;
use crate::readers::{Readers, digest};
use crate::report::{Outcome, Skipped};
use crate::weightfs::Weightfs;

pub use load::{Load, Native, Served};
pub use table::{Length, all};

fn misses_bar(outcome: &Outcome) -> bool {
    match outcome {
        Outcome::Compared(comparison) => comparison.holds == Some(false),
        Outcome::Figure(figure) => figure.holds == Some(false),
        _ => false,
    }
}

/// Writes a checkpoint of so many bytes, of tensors of 16 MiB.
const MAKE_CHECKPOINT: &str = "import sys, torch; torch.save({f'blocks.{i}.weight': torch.randn(8 << 20).half() \
                               for i in range(max(1, int(sys.argv[2]) >> 24))}, sys.argv[1])";

/// A scenario, by which name it can be chosen, and what it is.
#[derive(Clone, Copy, Debug)]
pub struct Scenario {
    pub id: &'static str,
    pub title: &'static str,
    pub job: Job,
}

#[derive(Clone, Copy, Debug)]
pub enum Job {
    Load(Load),
    Walk(walk::Walk),
    FirstByte(first_byte::FirstByte),
    Cost,
    Turns(turns::Loop),
    WorkerKilled,
    ClientKilled,
    Instances(instances::Before),
    Faults,
    Readers(table_of_readers::Which),
    Scale(scale::Scale),
}

/// What every scenario needs.
pub struct Bench {
    pub weightfs: Weightfs,
    pub library: Library,
    pub readers: Readers,
    pub pairs: usize,
    /// Bytes a second that both sides of a loop are held to.
    pub throttle: Option<u64>,
    /// Whether a scenario that misses its bar shows where its time went.
    pub profiles: bool,
    /// Nothing is begun after that.
    pub until: Option<Instant>,
    watch: Rc<Watch>,
    digests: HashMap<Model, u64>,
}

impl Bench {
    pub fn new(weightfs: Weightfs, library: Library, readers: Readers, pairs: usize) -> Self {
        Self {
            weightfs,
            library,
            readers,
            pairs,
            throttle: None,
            profiles: false,
            until: None,
            watch: Rc::default(),
            digests: HashMap::new(),
        }
    }

    /// Why nothing more is to be begun, if so.
    pub fn time_is_up(&self) -> Option<String> {
        let is_up = self.until.is_some_and(|until| Instant::now() >= until);
        is_up.then(|| "the time was up: --minutes gives more".to_owned())
    }

    /// Runs one scenario. A part of the machine that is missing skips it.
    pub fn run(&mut self, scenario: &Scenario) -> Result<Vec<Outcome>> {
        if let Some(reason) = self.lacks(&scenario.job) {
            return Ok(vec![Outcome::Skipped(Skipped { id: scenario.id, title: scenario.title, reason })]);
        }
        let mut found = self.measure(scenario)?;
        if self.profiles && found.iter().any(misses_bar) {
            found.extend(self.profile(scenario)?);
        }
        Ok(found)
    }

    /// Runs a scenario once more for what takes its time.
    fn profile(&mut self, scenario: &Scenario) -> Result<Option<Outcome>> {
        let pairs = std::mem::replace(&mut self.pairs, 1);
        self.watch.begin();
        let measured = self.measure(scenario);
        let seen = self.watch.end();
        self.pairs = pairs;
        measured?;
        let (id, title) = (format!("{}-profile", scenario.id), scenario.title.to_owned());
        Ok(seen.map(|text| Outcome::Profile { id, title, text }))
    }

    fn measure(&mut self, scenario: &Scenario) -> Result<Vec<Outcome>> {
        match &scenario.job {
            Job::Load(load) => load.run(self, scenario),
            Job::Walk(walk) => walk.run(self, scenario),
            Job::FirstByte(first_byte) => first_byte.run(self, scenario),
            Job::Cost => cost::run(self, scenario),
            Job::Turns(turns) => turns.run(self, scenario),
            Job::WorkerKilled => restart::worker(self, scenario),
            Job::ClientKilled => restart::client(self, scenario),
            Job::Instances(before) => instances::run(self, *before, scenario),
            Job::Faults => faults::run(self, scenario),
            Job::Readers(which) => which.run(self, scenario),
            Job::Scale(scale) => scale.run(self, scenario),
        }
    }

    fn lacks(&mut self, job: &Job) -> Option<String> {
        match job {
            Job::Load(Load { native: Native::Device, .. }) => fio::lacks(),
            Job::Load(Load { read_ahead: Some(kib), .. })
                if machine::read_ahead_kib(&self.weightfs.source) == Some(*kib) =>
            {
                Some("this machine is set so already".to_owned())
            }
            Job::Load(load) => self.readers.has(load.reader).err(),
            Job::Walk(walk::Walk { through: walk::Through::Passthrough, .. }) => {
                let files = self.library.sizes.small_files as u64;
                passthrough::of_this_program().and_then(|_| passthrough::can_hold(files)).err()
            }
            _ => None,
        }
    }

    /// Has torch write a checkpoint, once.
    fn make_for_torch(&self) -> Result<()> {
        let path = self.library.table(&self.library.folder, Format::Torch);
        if path.exists() {
            return Ok(());
        }
        let made = self.readers.interpreters().iter().any(|interpreter| {
            let mut command = std::process::Command::new(interpreter);
            command.args(["-c", MAKE_CHECKPOINT]).arg(&path).arg(self.library.sizes.table.to_string());
            command.stderr(std::process::Stdio::null()).status().is_ok_and(|status| status.success())
        });
        std::thread::sleep(crate::data::SETTLE);
        if made { Ok(()) } else { Err(BenchError::Unfit("torch cannot write a checkpoint".to_owned())) }
    }

    fn native(&self, model: Model) -> PathBuf {
        self.library.model(&self.library.folder, model)
    }

    fn through_mount(&self, model: Model) -> PathBuf {
        self.library.model(&self.weightfs.mountpoint, model)
    }

    fn size(&self, model: Model) -> Result<u64> {
        let path = self.native(model);
        Ok(std::fs::metadata(&path).doing(|| format!("look at {}", path.display()))?.len())
    }

    /// Compares a model as the mount gives it now with the folder's.
    fn verify(&mut self, model: Model) -> Result<()> {
        let native = match self.digests.get(&model) {
            Some(known) => *known,
            None => {
                let native = digest(&self.native(model))?;
                self.digests.insert(model, native);
                native
            }
        };
        let path = self.through_mount(model);
        if digest(&path)? == native { Ok(()) } else { Err(BenchError::WrongBytes(path)) }
    }
}
