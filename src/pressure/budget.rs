//! The control law of the budget: give way at once, come back slowly.
//!
//! The arena may grow until what is available to everyone else has come down to the reserve. Falling under it shrinks
//! the budget within the same call, and a little further than needed, so that small changes around the mark do not
//! evict extent after extent; growing waits until things have been calm and then goes step by step, since a program
//! that freed its memory often wants it back. A reserve smaller than what other caches leave free makes them and the
//! arena push each other out, which is what the default is chosen by.

use std::fmt;
use std::time::Duration;

use super::cgroup::GroupBound;
use super::psi::Psi;
use crate::units::ByteSize;

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// Changes smaller than this change nothing.
const HYSTERESIS: u64 = 256 * MIB;

/// After shrinking the budget does not grow for so long.
const CALM: Duration = Duration::from_secs(5);

/// The most that it grows in a second: what a fast disk can fill in that time, and no more.
const GROWTH_PER_SECOND: u64 = GIB;

/// Others wait for memory so often (percent of time) that the arena does not grow, though enough seems to be free.
const STALLS_SOME: f64 = 10.0;

/// Nothing gets done so often that the arena shrinks, though enough seems to be free.
const STALLS_FULL: f64 = 10.0;

/// The part of the arena that goes in a second while nothing gets done.
const STALL_STEP: f64 = 1.0 / 16.0;

/// So near to the limit, or stalled so often, the kernel is about to kill somebody.
const CRITICAL_PART: u64 = 16;
const CRITICAL_FULL: f64 = 50.0;

/// The part of a group's limit that is left free in it, if that is less than the reserve.
const GROUP_RESERVE_PART: u64 = 10;

/// What is left free for others by default: 10 % of RAM, at least 2 and at most 10 GB, which is what ComfyUI keeps
/// free, and 2 GiB beyond it.
pub fn default_reserve(total: u64) -> u64 {
    (total / 10).clamp(2_000_000_000, 10_000_000_000) + 2 * GIB
}

/// What was asked for, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The most that the arena may hold.
    pub ram: u64,
    /// What stays available to others.
    pub reserve: u64,
}

/// How things are now, in bytes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sample {
    /// What the machine could give without swapping.
    pub available: u64,
    /// The tightest control group, if any is limited.
    pub group: Option<GroupBound>,
    /// `None` where the kernel does not measure it.
    pub psi: Option<Psi>,
    /// What the arena occupies, client-held bytes included.
    pub arena: u64,
    pub pinned: u64,
}

/// What the budget is bounded by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BudgetReason {
    /// What was asked for.
    Ram,
    /// The reserve for the rest of the machine.
    Machine,
    /// The limit of a control group.
    Group,
    /// Others are waiting for memory.
    Stalls,
    /// On its way up.
    Growing,
    /// It would be less, but so much is pinned.
    Pins,
    /// The machine is about to kill somebody: pins are given up too.
    Emergency,
}

/// The budget over time. Times are since one fixed point on a clock that never goes back.
#[derive(Clone, Debug)]
pub struct Budget {
    limits: Limits,
    last: Option<Last>,
}

#[derive(Clone, Copy, Debug)]
struct Last {
    bytes: u64,
    reason: BudgetReason,
    at: Duration,
    shrunk: Option<Duration>,
}

impl Budget {
    pub fn new(limits: Limits) -> Budget {
        Budget { limits, last: None }
    }

    /// The most that the arena may hold from now on, in bytes.
    pub fn limit(&mut self, ram: u64) {
        self.limits.ram = ram;
    }

    /// The budget from now on, in bytes. Call it a few times a second.
    pub fn update(&mut self, sample: &Sample, now: Duration) -> u64 {
        let (ceiling, reason) = self.ceiling(sample);
        let mut next = match self.last {
            None => Last { bytes: ceiling, reason, at: now, shrunk: None },
            Some(last) => follow(last, ceiling, reason, sample, now),
        };
        // Even the arena's own bound gives no more than was asked for.
        let pinned = sample.pinned.min(self.limits.ram);
        if next.bytes < pinned {
            if self.critical(sample) {
                next.reason = BudgetReason::Emergency;
            } else {
                next.bytes = pinned;
                next.reason = BudgetReason::Pins;
            }
        }
        self.last = Some(next);
        next.bytes
    }

    /// Why it is what it is; `None` before the first update.
    pub fn reason(&self) -> Option<BudgetReason> {
        self.last.map(|last| last.reason)
    }

    /// The most that everything allows now.
    fn ceiling(&self, sample: &Sample) -> (u64, BudgetReason) {
        let Limits { ram, reserve } = self.limits;
        let beyond = |available: u64, reserve: u64| sample.arena.saturating_add(available).saturating_sub(reserve);
        let machine = (beyond(sample.available, reserve), BudgetReason::Machine);
        let group = sample.group.map(|group| {
            let reserve = reserve.min(group.limit / GROUP_RESERVE_PART);
            (beyond(group.available, reserve), BudgetReason::Group)
        });
        let bounds = [Some((ram, BudgetReason::Ram)), Some(machine), group];
        bounds.into_iter().flatten().min_by_key(|(bytes, _)| *bytes).expect("one bound is always there")
    }

    fn critical(&self, sample: &Sample) -> bool {
        sample.available < self.limits.reserve / CRITICAL_PART
            || sample.group.is_some_and(|group| {
                group.available < self.limits.reserve.min(group.limit / GROUP_RESERVE_PART) / CRITICAL_PART
            })
            || sample.psi.is_some_and(|psi| psi.full >= CRITICAL_FULL)
    }
}

fn follow(last: Last, ceiling: u64, reason: BudgetReason, sample: &Sample, now: Duration) -> Last {
    let elapsed = now.saturating_sub(last.at).as_secs_f64();
    let psi = sample.psi.unwrap_or_default();
    if ceiling < last.bytes {
        // The limit that was asked for does not wobble.
        let margin = if reason == BudgetReason::Ram { 0 } else { HYSTERESIS };
        return Last { bytes: ceiling.saturating_sub(margin), reason, at: now, shrunk: Some(now) };
    }
    if psi.full >= STALLS_FULL {
        let held = sample.arena.min(last.bytes);
        let bytes = held.saturating_sub((held as f64 * STALL_STEP * elapsed.min(1.0)) as u64);
        return Last { bytes, reason: BudgetReason::Stalls, at: now, shrunk: Some(now) };
    }
    let calm = last.shrunk.is_none_or(|shrunk| now.saturating_sub(shrunk) >= CALM) && psi.some < STALLS_SOME;
    // Once on its way up it goes all the way.
    let growing = last.reason == BudgetReason::Growing;
    let worthwhile = growing || reason == BudgetReason::Ram || ceiling - last.bytes >= 2 * HYSTERESIS;
    if !calm || !worthwhile || ceiling == last.bytes {
        let reason = if growing { reason } else { last.reason };
        return Last { at: now, reason, ..last };
    }
    let target = if reason == BudgetReason::Ram { ceiling } else { ceiling.saturating_sub(HYSTERESIS) };
    let step = (GROWTH_PER_SECOND as f64 * elapsed.min(1.0)) as u64;
    match target.saturating_sub(last.bytes) {
        rest if rest <= step => Last { bytes: target.max(last.bytes), reason, at: now, ..last },
        _ => Last { bytes: last.bytes + step, reason: BudgetReason::Growing, at: now, ..last },
    }
}

impl fmt::Display for BudgetReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hysteresis = ByteSize(HYSTERESIS);
        match self {
            BudgetReason::Ram => f.write_str("as much as --ram allows"),
            BudgetReason::Machine => write!(f, "the reserve for other programs bounds it, within {hysteresis}"),
            BudgetReason::Group => write!(f, "the memory limit of its control group bounds it, within {hysteresis}"),
            BudgetReason::Stalls => f.write_str("other programs are waiting for memory"),
            BudgetReason::Growing => f.write_str("memory became free, and it is growing again"),
            BudgetReason::Pins => f.write_str("memory is short, but so much is pinned: unpin something to give way"),
            BudgetReason::Emergency => f.write_str("the machine is out of memory: pins are given up"),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LIMITS: Limits = Limits { ram: 48 * GIB, reserve: 8 * GIB };

    fn sample(available: u64, arena: u64) -> Sample {
        Sample { available, group: None, psi: None, arena, pinned: 0 }
    }

    fn at(seconds: f64) -> Duration {
        Duration::from_secs_f64(seconds)
    }

    #[test]
    fn the_default_reserve_is_what_comfyui_keeps_free_and_two_more() {
        assert_eq!(default_reserve(16 * GIB), 2_000_000_000 + 2 * GIB);
        assert_eq!(default_reserve(64 * GIB), 64 * GIB / 10 + 2 * GIB);
        assert_eq!(default_reserve(512 * GIB), 10_000_000_000 + 2 * GIB);
    }

    #[test]
    fn it_gives_way_at_once_and_comes_back_slowly() {
        let mut budget = Budget::new(LIMITS);
        assert_eq!(budget.update(&sample(60 * GIB, 0), at(0.0)), 48 * GIB);
        assert_eq!(budget.reason(), Some(BudgetReason::Ram));
        // Another program takes 10 GiB.
        assert_eq!(budget.update(&sample(2 * GIB, 48 * GIB), at(0.3)), 42 * GIB - HYSTERESIS);
        assert_eq!(budget.reason(), Some(BudgetReason::Machine));
        // It goes away: nothing happens for a while, then a GiB a second.
        let calm = |budget: &mut Budget, second: f64| budget.update(&sample(20 * GIB, 42 * GIB), at(second));
        assert_eq!(calm(&mut budget, 1.0), 42 * GIB - HYSTERESIS);
        assert_eq!(calm(&mut budget, 5.2), 42 * GIB - HYSTERESIS);
        assert_eq!(calm(&mut budget, 6.2), 43 * GIB - HYSTERESIS);
        assert_eq!(budget.reason(), Some(BudgetReason::Growing));
        assert_eq!((7..20).map(|second| calm(&mut budget, f64::from(second) + 0.2)).last(), Some(48 * GIB));
    }

    #[test]
    fn small_changes_around_the_reserve_change_nothing() {
        let mut budget = Budget::new(LIMITS);
        budget.update(&sample(40 * GIB, 0), at(0.0));
        let settled = budget.update(&sample(8 * GIB - 1, 32 * GIB), at(1.0));
        for second in 2..60 {
            let wobble = if second % 2 == 0 { 0 } else { 200 * MIB };
            assert_eq!(budget.update(&sample(8 * GIB + wobble, settled + 50 * MIB), at(f64::from(second))), settled);
        }
    }

    #[test]
    fn pins_hold_until_the_machine_is_about_to_kill_somebody() {
        let mut budget = Budget::new(LIMITS);
        let pinned = |available| Sample { pinned: 20 * GIB, ..sample(available, 20 * GIB) };
        assert_eq!(budget.update(&pinned(4 * GIB), at(0.0)), 20 * GIB);
        assert_eq!(budget.reason(), Some(BudgetReason::Pins));
        assert!(budget.update(&pinned(100 * MIB), at(0.3)) < 13 * GIB);
        assert_eq!(budget.reason(), Some(BudgetReason::Emergency));
    }

    #[test]
    fn a_group_bounds_it_with_a_reserve_of_its_own_size() {
        let mut budget = Budget::new(LIMITS);
        let group = Some(GroupBound { limit: 10 * GIB, available: 9 * GIB });
        assert_eq!(budget.update(&Sample { group, ..sample(60 * GIB, 0) }, at(0.0)), 8 * GIB);
        assert_eq!(budget.reason(), Some(BudgetReason::Group));
    }

    #[test]
    fn stalls_shrink_it_and_keep_it_from_growing() {
        let mut budget = Budget::new(LIMITS);
        budget.update(&sample(60 * GIB, 0), at(0.0));
        let stalled = |some, full| Sample { psi: Some(Psi { some, full }), ..sample(30 * GIB, 32 * GIB) };
        assert_eq!(budget.update(&stalled(40.0, 20.0), at(1.0)), 30 * GIB);
        assert_eq!(budget.update(&stalled(20.0, 0.0), at(60.0)), 30 * GIB);
        assert_eq!(budget.update(&stalled(0.0, 0.0), at(61.0)), 31 * GIB);
    }

    proptest! {
        #[test]
        fn it_keeps_its_bounds(steps in prop::collection::vec(
            (0u64..64, 0u64..50, 0u64..50, prop::option::of((1u64..64, 0u64..64)), 0.0f64..60.0, 0u64..3000), 1..60)
        ) {
            let mut budget = Budget::new(LIMITS);
            let (mut now, mut before) = (Duration::ZERO, None::<u64>);
            for (available, arena, pinned, group, full, elapsed) in steps {
                now += Duration::from_millis(elapsed);
                let group = group.map(|(limit, available)| GroupBound {
                    limit: limit * GIB,
                    available: available.min(limit) * GIB,
                });
                let sample = Sample {
                    available: available * GIB,
                    group,
                    psi: Some(Psi { some: full, full }),
                    arena: arena * GIB,
                    pinned: pinned * GIB,
                };
                let bytes = budget.update(&sample, now);
                let pins = sample.pinned.min(LIMITS.ram);
                let (ceiling, _) = budget.ceiling(&sample);
                prop_assert!(bytes <= LIMITS.ram);
                prop_assert!(bytes <= ceiling.max(pins));
                prop_assert!(bytes >= pins || budget.critical(&sample));
                if let Some(before) = before {
                    prop_assert!(bytes <= (before + GROWTH_PER_SECOND).max(pins));
                }
                before = Some(bytes);
            }
        }
    }
}
