//! What goes wrong, and when.

use std::ops::Range;
use std::path::Path;

use parking_lot::Mutex;

use crate::data::Random;

/// What a request is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// Names and attributes.
    Look,
    /// Opening files.
    Open,
    Read,
    /// Writes, truncation, and making things durable.
    Write,
    /// Making, renaming and removing names.
    Change,
    /// Opening and reading directories.
    List,
}

/// How a request fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// With this errno.
    Errno(i32),
    /// A read gives at most this many bytes; zero looks like the end of the file.
    Short(usize),
    /// No answer until [`super::Hang`] is dropped; then the right one.
    Hang,
}

/// A fault and what it meets.
#[derive(Clone, Debug)]
pub struct Rule {
    ops: Vec<Op>,
    /// The end of the path; everything where it is empty.
    name: String,
    bytes: Option<Range<u64>>,
    fault: Fault,
    times: Option<u64>,
}

impl Rule {
    /// Meets every request of these kinds; of all kinds where there are none.
    pub fn on(ops: &[Op], fault: Fault) -> Rule {
        Rule { ops: ops.to_vec(), name: String::new(), bytes: None, fault, times: None }
    }

    /// Only files whose path ends so.
    #[must_use]
    pub fn of(mut self, name: &str) -> Rule {
        name.clone_into(&mut self.name);
        self
    }

    /// Only reads and writes that touch these bytes.
    #[must_use]
    pub fn at(mut self, bytes: Range<u64>) -> Rule {
        self.bytes = Some(bytes);
        self
    }

    /// Only so often.
    #[must_use]
    pub fn times(mut self, times: u64) -> Rule {
        self.times = Some(times);
        self
    }

    fn meets(&self, op: Op, path: &Path, bytes: &Range<u64>) -> bool {
        (self.ops.is_empty() || self.ops.contains(&op))
            && path.as_os_str().as_encoded_bytes().ends_with(self.name.as_bytes())
            && self.bytes.as_ref().is_none_or(|bad| bad.start < bytes.end && bytes.start < bad.end)
            && self.times != Some(0)
    }
}

#[derive(Default)]
struct State {
    rules: Vec<(u64, Rule)>,
    next: u64,
    random: Option<(Random, u64)>,
    injected: u64,
}

/// All rules of a file system. The first that meets a request counts.
#[derive(Default)]
pub struct Script(Mutex<State>);

impl Script {
    pub fn add(&self, rule: Rule) -> u64 {
        let mut state = self.0.lock();
        state.next += 1;
        let number = state.next;
        state.rules.push((number, rule));
        number
    }

    pub fn remove(&self, number: u64) {
        self.0.lock().rules.retain(|(known, _)| *known != number);
    }

    /// No rule, nothing at random.
    pub fn clear(&self) {
        let mut state = self.0.lock();
        state.rules.clear();
        state.random = None;
    }

    /// From here on one in `one_in` requests for bytes of a file fails in some way that a source can fail.
    pub fn at_random(&self, random: Random, one_in: u64) {
        self.0.lock().random = Some((random, one_in));
    }

    /// How many requests have failed so far.
    pub fn injected(&self) -> u64 {
        self.0.lock().injected
    }

    /// What happens to this request.
    pub fn fault(&self, op: Op, path: &Path, bytes: Range<u64>) -> Option<Fault> {
        let mut state = self.0.lock();
        let scripted = state.rules.iter_mut().find(|(_, rule)| rule.meets(op, path, &bytes)).map(|(_, rule)| {
            rule.times = rule.times.map(|times| times - 1);
            rule.fault
        });
        let fault = scripted.or_else(|| {
            let (random, one_in) = state.random.as_mut()?;
            let hit = op == Op::Read && random.chance(*one_in);
            hit.then(|| match random.below(8) {
                0..=3 => Fault::Short(random.below(bytes.end - bytes.start) as usize),
                4 => Fault::Errno(nix::libc::EAGAIN),
                5 => Fault::Errno(nix::libc::ESTALE),
                _ => Fault::Errno(nix::libc::EIO),
            })
        });
        state.injected += u64::from(fault.is_some());
        fault
    }
}
