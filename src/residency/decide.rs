//! The decisions: what to admit, and what makes room for it.

use std::ops::Range;
use std::time::Duration;

use super::engine::Residency;
use super::extents::ExtentSet;
use super::order::{Key, Standing, rank_of};
use super::types::{AdmitReason, Decision, EvictReason, UseKind, Victim};
use crate::ids::{ExtentIndex, FileId};
use crate::units::EXTENT_SIZE;

impl Residency {
    /// Extents are missed, or about to be: which to keep, and what to evict for them. `room` is what is free now, in
    /// bytes, less what fills under way will take. Record the use itself with [`Residency::touched`] once they are
    /// read; ask with the kind of use that is known, and classify early, since an unknown use displaces nothing.
    ///
    /// Every victim must be answered: see [`Residency::refused`].
    pub fn want(
        &mut self,
        id: FileId,
        extents: &[Range<ExtentIndex>],
        kind: UseKind,
        room: u64,
        now: Duration,
    ) -> Decision {
        let Some(file) = self.files.get(&id) else {
            let bypass = extents.iter().cloned().collect();
            return Decision { admit: ExtentSet::new(), bypass, evict: Vec::new(), reason: AdmitReason::WorthLess };
        };
        let missed = file.clip(extents).difference(&file.resident.difference(&file.leaving));
        let needed = self.needed(id, &missed);
        let guessed = needed.iter().fold(missed.clone(), |rest, (_, part)| rest.difference(part));
        if kind == UseKind::Load && (needed.is_empty() || !guessed.is_empty()) {
            self.used(id, &guessed, false, now);
        }
        let file = &self.files[&id];
        let pinned = file.pinned(&missed);
        let rest = missed.difference(&pinned);
        let mut asks = vec![(pinned, Standing::Pinned, AdmitReason::Pinned)];
        let mut decision = Decision {
            admit: ExtentSet::new(),
            bypass: ExtentSet::new(),
            evict: Vec::new(),
            reason: AdmitReason::WorthLess,
        };
        if matches!(kind, UseKind::HeaderPeek | UseKind::Scan) {
            decision.bypass = rest;
            decision.reason = AdmitReason::NotAUse;
        } else {
            let guessed = guessed.intersection(&rest);
            for (place, part) in needed {
                let standing = Standing::Queued { rank: rank_of(place) };
                asks.push((part.intersection(&rest), standing, AdmitReason::Queued));
            }
            let kept = guessed.intersection(&file.layout.spread(self.policy.kept(id)));
            let loose = guessed.difference(&kept);
            asks.push((kept, Standing::Kept, AdmitReason::Kept));
            asks.push((loose, Standing::Loose, AdmitReason::FreeRoom));
        }
        let mut free = room / EXTENT_SIZE;
        asks.retain(|(ask, ..)| !ask.is_empty());
        for (place, (ask, standing, reason)) in asks.into_iter().enumerate() {
            let granted = self.grant(ask, standing, &mut free, now, &mut decision);
            if place == 0 {
                decision.reason = match granted {
                    true if standing == Standing::Kept && decision.evict.is_empty() => AdmitReason::FreeRoom,
                    true => reason,
                    false if standing == Standing::Loose => AdmitReason::WorthLess,
                    false => AdmitReason::NothingToEvict,
                };
            }
        }
        decision
    }

    /// Admits as much of `ask` as `free` extents and what stands lower make room for; returns whether that was all.
    fn grant(
        &mut self,
        mut ask: ExtentSet,
        standing: Standing,
        free: &mut u64,
        now: Duration,
        decision: &mut Decision,
    ) -> bool {
        if ask.count() > *free {
            let victims = self.victims(ask.count() - *free, now, Some(standing));
            *free += victims.iter().map(Victim::bytes).sum::<u64>() / EXTENT_SIZE;
            decision.evict.extend(victims);
        }
        // The head, since the tail is what is evicted first.
        let admit = ask.take_head(*free);
        *free -= admit.count();
        admit.runs().iter().for_each(|run| decision.admit.insert(run.clone()));
        ask.runs().iter().for_each(|run| decision.bypass.insert(run.clone()));
        ask.is_empty()
    }

    /// What to evict to free `bytes`, in order: for the way from the high to the low watermark, or for a budget that
    /// shrinks. What clients hold and what is in use come last; pins are never named. Returns less than asked when
    /// nothing else may go.
    pub fn reclaim(&mut self, bytes: u64, now: Duration) -> Vec<Victim> {
        self.victims(bytes.div_ceil(EXTENT_SIZE), now, None)
    }

    /// As [`Residency::reclaim`], of what the policy does not keep and nobody holds or uses.
    pub fn trim(&mut self, bytes: u64, now: Duration) -> Vec<Victim> {
        self.victims(bytes.div_ceil(EXTENT_SIZE), now, Some(Standing::Kept))
    }

    /// As [`Residency::reclaim`], pins included: for when the machine is about to kill somebody.
    pub fn surrender(&mut self, bytes: u64, now: Duration) -> Vec<Victim> {
        let mut victims = self.reclaim(bytes, now);
        let mut missing = bytes.saturating_sub(victims.iter().map(Victim::bytes).sum()).div_ceil(EXTENT_SIZE);
        let ids: Vec<_> = self.pins().into_iter().map(|(id, _)| id).collect();
        for id in ids {
            let file = &self.files[&id];
            let part = file.pinned(&file.resident.difference(&file.leaving));
            missing -= self.take(id, part, missing, EvictReason::Pinned, &mut victims);
        }
        victims
    }

    /// Chooses victims of `extents` extents. With a newcomer's standing only what stands lower and is free to go;
    /// without one, whatever is not pinned.
    fn victims(&mut self, extents: u64, now: Duration, newcomer: Option<Standing>) -> Vec<Victim> {
        self.settle();
        let may_go = |key: &&Key| newcomer.is_none_or(|standing| !key.held && key.standing < standing);
        // Taking changes the order: first choose, then take.
        let (mut chosen, mut in_use) = (Vec::new(), Vec::new());
        let mut found = 0;
        for key in self.order.iter().take_while(may_go) {
            let file = &self.files[&key.file];
            if file.in_use(now) {
                in_use.push((*key, EvictReason::InUse));
                continue;
            }
            chosen.push((*key, key.reason(file)));
            found += key.part(file, self.policy.kept(key.file)).count();
            if found >= extents {
                break;
            }
        }
        // Marks of use hold against newcomers, not against a budget that is gone.
        if newcomer.is_none() {
            chosen.append(&mut in_use);
        }
        let mut missing = extents;
        let mut victims = Vec::new();
        for (key, reason) in chosen {
            let part = key.part(&self.files[&key.file], self.policy.kept(key.file));
            missing -= self.take(key.file, part, missing, reason, &mut victims);
        }
        victims
    }

    /// Takes the tail of `part`, at most `count` extents; returns how many.
    fn take(
        &mut self,
        id: FileId,
        mut part: ExtentSet,
        count: u64,
        reason: EvictReason,
        victims: &mut Vec<Victim>,
    ) -> u64 {
        let tail = part.take_tail(count);
        for run in tail.runs().iter().rev() {
            self.mark_leaving(id, run.clone());
            victims.push(Victim { file: id, extents: run.clone(), reason });
        }
        tail.count()
    }
}
