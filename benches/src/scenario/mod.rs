//! What is measured: a table of scenarios, and how each kind is run.

mod cost;
mod first_byte;
mod load;
mod table;
mod turns;
mod walk;

use std::collections::HashMap;
use std::path::PathBuf;

use crate::data::{Library, Model};
use crate::error::{BenchError, Doing, Result};
use crate::readers::{Reader, Readers, digest};
use crate::report::{Outcome, Skipped};
use crate::weightfs::Weightfs;

pub use load::{Load, Native, Served};
pub use table::all;

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
    Turns,
}

/// What every scenario needs.
pub struct Bench {
    pub weightfs: Weightfs,
    pub library: Library,
    pub readers: Readers,
    pub pairs: usize,
    digests: HashMap<Model, u64>,
}

impl Bench {
    pub fn new(weightfs: Weightfs, library: Library, readers: Readers, pairs: usize) -> Self {
        Self { weightfs, library, readers, pairs, digests: HashMap::new() }
    }

    /// Runs one scenario. A part of the machine that is missing skips it; anything else that fails ends the run.
    pub fn run(&mut self, scenario: &Scenario) -> Result<Vec<Outcome>> {
        if let Job::Load(load) = &scenario.job
            && let (Reader::Safetensors, Err(reason)) = (load.reader, &self.readers.python)
        {
            let skipped = Skipped { id: scenario.id, title: scenario.title, reason: reason.clone() };
            return Ok(vec![Outcome::Skipped(skipped)]);
        }
        match &scenario.job {
            Job::Load(load) => load.run(self, scenario),
            Job::Walk(walk) => walk.run(self, scenario),
            Job::FirstByte(first_byte) => first_byte.run(self, scenario),
            Job::Cost => cost::run(self, scenario),
            Job::Turns => turns::run(self, scenario),
        }
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
