//! The default: every rule runs as a shadow, and the one that hits most rules.
//!
//! Shadows see the same uses and keep the same books as if they ruled, which costs them a few integers a block. `reuse`
//! rules at first, since it comes closest to the optimum on the traces of the suite. Another one takes over when it
//! would have saved clearly more, over a long time and also lately. Both conditions count: two caches that hold
//! different halves of a loop lead each other by up to a capacity of hits within every turn, which means nothing, and
//! a rule that was better in another workflow need not be better in this one.

use std::collections::BTreeSet;

use super::aged::Aged;
use super::blocks::Blocks;
use super::lirs::Lirs;
use super::lru::Lru;
use super::mru::Mru;
use super::policy::{Access, Policy};
use super::reuse::Reuse;
use crate::ids::FileId;

/// Capacities of traffic over which a lead must hold.
const LONG: f64 = 64.0;

/// Capacities of traffic that are lately.
const LATELY: f64 = 16.0;

/// A lead counts from this part of all that was read,
const CLEARLY: f64 = 0.03;

/// and over the long time only beyond so many capacities of hits. With one, chance made rules take over from each other
/// in random mixes, which cost up to a tenth of the hits; with four it did not, and a rule that misses a third of what
/// another hits still goes within some dozen capacities of traffic.
const BEYOND_CHANCE: f64 = 4.0;

const AGES: [u32; 5] = [1, 2, 4, 8, 16];

struct Shadow {
    policy: Box<dyn Policy>,
    saved: Sums,
}

/// What was saved or read, with the past fading.
#[derive(Clone, Copy, Default)]
struct Sums {
    long: f64,
    lately: f64,
}

impl Sums {
    fn add(&mut self, value: f64, fading: Sums) {
        self.long = self.long * fading.long + value;
        self.lately = self.lately * fading.lately + value;
    }
}

pub struct Auto {
    shadows: Vec<Shadow>,
    ruling: usize,
    capacity: u64,
    /// What all reads would have cost without a cache.
    demand: Sums,
    files: BTreeSet<FileId>,
    ignored: Vec<FileId>,
}

impl Auto {
    pub fn new() -> Auto {
        let mut policies: Vec<Box<dyn Policy>> = vec![Box::new(Reuse::new())];
        policies.extend(AGES.map(|k| Box::new(Aged::new(k)) as Box<dyn Policy>));
        policies.extend([Box::new(Mru::new()) as Box<dyn Policy>, Box::new(Lirs::new()), Box::new(Lru::new())]);
        let shadow = |policy| Shadow { policy, saved: Sums::default() };
        Auto {
            shadows: policies.into_iter().map(shadow).collect(),
            ruling: 0,
            capacity: 0,
            demand: Sums::default(),
            files: BTreeSet::new(),
            ignored: Vec::new(),
        }
    }

    /// The shadow that should rule instead, if any.
    fn better(&self, worth: f64) -> Option<usize> {
        let ruling = self.shadows[self.ruling].saved;
        let enough = Sums {
            long: ruling.long + CLEARLY * self.demand.long + BEYOND_CHANCE * self.capacity as f64 * worth,
            lately: ruling.lately + CLEARLY * self.demand.lately,
        };
        let clearly = |place: &usize| {
            let saved = self.shadows[*place].saved;
            saved.long > enough.long && saved.lately > enough.lately
        };
        // The first of equals.
        (0..self.shadows.len()).rev().filter(clearly).max_by(|a, b| {
            let long = |place: &usize| self.shadows[*place].saved.long;
            long(a).total_cmp(&long(b))
        })
    }
}

impl Policy for Auto {
    fn name(&self) -> String {
        format!("auto, now {}", self.shadows[self.ruling].policy.name())
    }

    fn touch(&mut self, access: &Access, changed: &mut Vec<FileId>) -> Blocks {
        let before = self.kept(access.file);
        self.files.insert(access.file);
        let worth = (1u64 << access.class.min(62)) as f64;
        let read = access.layout.weights(access.blocks) as f64;
        let capacities = read / self.capacity.max(1) as f64;
        let fading = Sums { long: (-capacities / LONG).exp(), lately: (-capacities / LATELY).exp() };
        self.demand.add(read * worth, fading);
        for (place, shadow) in self.shadows.iter_mut().enumerate() {
            self.ignored.clear();
            let changed = if place == self.ruling { &mut *changed } else { &mut self.ignored };
            let hit = shadow.policy.touch(access, changed);
            shadow.saved.add(access.layout.weights(hit) as f64 * worth, fading);
        }
        if let Some(better) = self.better(worth) {
            self.ruling = better;
            changed.extend(&self.files);
        }
        access.blocks.and(before)
    }

    fn kept(&self, file: FileId) -> Blocks {
        self.shadows[self.ruling].policy.kept(file)
    }

    fn set_capacity(&mut self, extents: u64, changed: &mut Vec<FileId>) {
        self.capacity = extents;
        for (place, shadow) in self.shadows.iter_mut().enumerate() {
            self.ignored.clear();
            let changed = if place == self.ruling { &mut *changed } else { &mut self.ignored };
            shadow.policy.set_capacity(extents, changed);
        }
    }

    fn reclass(&mut self, file: FileId, class: u8) {
        self.shadows.iter_mut().for_each(|shadow| shadow.policy.reclass(file, class));
    }

    fn forget(&mut self, file: FileId) {
        self.files.remove(&file);
        self.shadows.iter_mut().for_each(|shadow| shadow.policy.forget(file));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::residency::testing::access;

    #[test]
    fn a_rule_that_hits_clearly_more_takes_over_and_every_file_changes() {
        let mut auto = Auto::new();
        let mut changed = Vec::new();
        auto.set_capacity(96 * 2, &mut changed);
        // Each file is read three times in a row and never again, which LRU sees at the first time.
        let mut traffic = 1;
        for file in 1u64..400 {
            for _ in 0..3 {
                changed.clear();
                auto.touch(&access(file, 96, traffic), &mut changed);
                traffic += 96;
                if auto.ruling != 0 {
                    let known: BTreeSet<_> = changed.iter().copied().collect();
                    assert_eq!(known, auto.files);
                    assert_ne!(auto.name(), "auto, now reuse");
                    return;
                }
            }
        }
        panic!("reuse still rules");
    }
}
