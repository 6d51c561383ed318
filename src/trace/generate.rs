//! Traces as workflows make them, to choose and to test policies with. The same seed gives the same trace.
//!
//! A workflow loads its models one after another, each from front to back in runs of some hundred MiB, as loaders
//! read tensors. Sizes are those of current video workflows: text encoder, two diffusion models, VAE.

use std::ops::Range;

use super::event::{Event, What};
use super::random::Random;
use super::recorded::Trace;
use crate::ids::FileId;
use crate::residency::{RefetchCost, UseKind};
use crate::units::extent_count;

/// Bytes of a GB, as model sizes are given.
pub const GB: u64 = 1_000_000_000;

/// What is loaded, in gigabytes: the text encoder, the diffusion models, the VAE. 66 GB together.
pub const WORKFLOW: [u64; 4] = [11, 27, 27, 1];

/// Extents in the runs that a loader reads, about 200 MiB.
const RUN: u32 = 100;

/// A trace and where in it each pass begins.
#[derive(Clone, Debug, PartialEq)]
pub struct Generated {
    pub trace: Trace,
    pub passes: Vec<usize>,
}

impl Generated {
    /// The events from the beginning of this pass to the end.
    pub fn from_pass(&self, pass: usize) -> Range<usize> {
        self.passes[pass]..self.trace.events.len()
    }
}

/// Builds a trace load by load.
pub struct Generator {
    random: Random,
    sizes: Vec<u64>,
    events: Vec<Event>,
    passes: Vec<usize>,
    at_ms: u64,
    opens: u32,
    noise: bool,
    cost: RefetchCost,
}

impl Generator {
    /// With `noise`, other programs peek into headers, and hash every file every now and then.
    pub fn new(seed: u64, noise: bool) -> Generator {
        Generator {
            random: Random::new(seed),
            sizes: Vec::new(),
            events: Vec::new(),
            passes: Vec::new(),
            at_ms: 0,
            opens: 0,
            noise,
            cost: RefetchCost::from_bytes_per_second(7 * GB),
        }
    }

    /// Files added from now on come from a source of this speed.
    pub fn source(&mut self, bytes_per_second: u64) {
        self.cost = RefetchCost::from_bytes_per_second(bytes_per_second);
    }

    /// Adds a file of so many gigabytes.
    pub fn file(&mut self, gigabytes: u64) -> usize {
        let file = self.sizes.len();
        self.sizes.push(gigabytes * GB);
        self.push(What::File { file: FileId(file as u64), size: gigabytes * GB, cost: self.cost });
        file
    }

    pub fn files(&mut self, gigabytes: &[u64]) -> Vec<usize> {
        gigabytes.iter().map(|size| self.file(*size)).collect()
    }

    /// One run of a workflow: loads these files in this order.
    pub fn pass(&mut self, files: &[usize]) {
        self.passes.push(self.events.len());
        for &file in files {
            if self.noise && self.random.chance(50) {
                let peeked = self.random.below(self.sizes.len() as u64) as usize;
                self.open(peeked, UseKind::Unknown, UseKind::HeaderPeek, 0..1);
            }
            self.load(file, 0..extent_count(self.sizes[file]));
        }
        if self.noise && self.random.chance(15) {
            self.scan();
        }
    }

    fn load(&mut self, file: usize, extents: Range<u32>) {
        self.open(file, UseKind::Load, UseKind::Load, extents);
        self.at_ms += 5_000;
    }

    pub fn shuffled_pass(&mut self, files: &[usize]) {
        let mut files = files.to_vec();
        self.random.shuffle(&mut files);
        self.pass(&files);
    }

    /// Something reads every file once.
    pub fn scan(&mut self) {
        for file in 0..self.sizes.len() {
            let whole = 0..extent_count(self.sizes[file]);
            self.open(file, UseKind::Unknown, UseKind::Scan, whole);
        }
    }

    pub fn finish(self) -> Generated {
        Generated { trace: Trace { events: self.events }, passes: self.passes }
    }

    fn open(&mut self, file: usize, expected: UseKind, kind: UseKind, extents: Range<u32>) {
        self.opens += 1;
        let open = self.opens;
        self.push(What::Open { open, file: FileId(file as u64), kind: expected });
        for start in extents.clone().step_by(RUN as usize) {
            let run = start..(start + RUN).min(extents.end);
            // 2 MiB in a millisecond: about two gigabytes a second.
            self.at_ms += u64::from(run.end - run.start);
            self.push(What::Read { open, extents: run });
        }
        self.push(What::Close { open, kind });
    }

    fn push(&mut self, what: What) {
        self.events.push(Event { at_ms: self.at_ms, what });
    }
}

/// `passes` times the same workflow.
pub fn steady(seed: u64, noise: bool, passes: usize) -> Generated {
    let mut generator = Generator::new(seed, noise);
    let files = generator.files(&WORKFLOW);
    (0..passes).for_each(|_| generator.pass(&files));
    generator.finish()
}

/// As [`steady`], but in half of the passes the models come in another order.
pub fn jittered(seed: u64, noise: bool, passes: usize) -> Generated {
    let mut generator = Generator::new(seed, noise);
    let files = generator.files(&WORKFLOW);
    for _ in 0..passes {
        if generator.random.chance(50) {
            generator.shuffled_pass(&files);
        } else {
            generator.pass(&files);
        }
    }
    generator.finish()
}

/// `passes` times one workflow of 132 GB, then as often another.
pub fn switch(seed: u64, noise: bool, passes: usize) -> Generated {
    let mut generator = Generator::new(seed, noise);
    let a = generator.files(&[WORKFLOW, WORKFLOW].concat());
    let b = generator.files(&[WORKFLOW, WORKFLOW].concat());
    (0..passes).for_each(|_| generator.pass(&a));
    (0..passes).for_each(|_| generator.pass(&b));
    generator.finish()
}

/// Two workflows of 132 GB that share 66 GB, at random, the first in 70 of 100 passes: 198 GB in all.
pub fn mix(seed: u64, noise: bool, passes: usize) -> Generated {
    let mut generator = Generator::new(seed, noise);
    let shared = generator.files(&WORKFLOW);
    let a = [shared.clone(), generator.files(&WORKFLOW)].concat();
    let b = [shared, generator.files(&WORKFLOW)].concat();
    mixed(generator, &a, &b, passes)
}

/// Two workflows of 99 GB that share nothing, the first in 70 of 100 passes.
pub fn mix_apart(seed: u64, noise: bool, passes: usize) -> Generated {
    let mut generator = Generator::new(seed, noise);
    let a = generator.files(&[11, 27, 27, 1, 11, 22]);
    let b = generator.files(&[11, 27, 27, 1, 11, 22]);
    mixed(generator, &a, &b, passes)
}

fn mixed(mut generator: Generator, a: &[usize], b: &[usize], passes: usize) -> Generated {
    for _ in 0..passes {
        let workflow = if generator.random.chance(70) { a } else { b };
        generator.pass(workflow);
    }
    generator.finish()
}

/// `passes` times the same prompt, then as often with another seed only: the text encoder is not run any more.
pub fn seed_change(seed: u64, noise: bool, passes: usize) -> Generated {
    let mut generator = Generator::new(seed, noise);
    let files = generator.files(&[11, 27, 1]);
    (0..passes).for_each(|_| generator.pass(&files));
    (0..passes).for_each(|_| generator.pass(&files[1..]));
    generator.finish()
}

/// As [`seed_change`], with the text encoder in the same file, a checkpoint of 38 GB, as its first 11.
pub fn seed_change_in_checkpoint(seed: u64, noise: bool, passes: usize) -> Generated {
    let mut generator = Generator::new(seed, noise);
    let checkpoint = generator.file(38);
    let encoder = extent_count(11 * GB);
    for pass in 0..2 * passes {
        generator.pass(&[]);
        let from = if pass < passes { 0 } else { encoder };
        generator.load(checkpoint, from..extent_count(38 * GB));
    }
    generator.finish()
}

/// A workflow that gains a model (a LoRA, an upscaler, another checkpoint) every few passes.
pub fn growing(seed: u64, noise: bool, passes: usize) -> Generated {
    let mut generator = Generator::new(seed, noise);
    let mut files = generator.files(&WORKFLOW);
    for pass in 0..passes {
        if pass % 3 == 2 {
            let size = [1, 2, 7, 13][pass / 3 % 4];
            files.push(generator.file(size));
        }
        generator.pass(&files);
    }
    generator.finish()
}
