//! The opens that ended last, over all files: whether something is walking through the library right now.

use std::collections::VecDeque;
use std::time::Duration;

use super::history::FileKey;
use super::kind::OpenKind;

/// A program looks over the library if the last opens of so many different files were all surveys, ...
const WALK_FILES: usize = 4;
/// ... none of them longer ago than this.
const WALK_WITHIN: Duration = Duration::from_secs(120);
/// More than the opens that a walk makes of `WALK_FILES` files.
const KEPT: usize = 32;

#[derive(Debug, Default)]
pub(super) struct Recent(VecDeque<Ended>);

#[derive(Debug)]
struct Ended {
    key: FileKey,
    kind: OpenKind,
    at: Duration,
}

impl Recent {
    pub fn push(&mut self, key: FileKey, kind: OpenKind, at: Duration) {
        if self.0.len() == KEPT {
            self.0.pop_front();
        }
        self.0.push_back(Ended { key, kind, at });
    }

    /// Whether other files than `key` are being surveyed one after the other.
    pub fn is_walk(&self, key: &FileKey, now: Duration) -> bool {
        let mut files: Vec<&FileKey> = Vec::with_capacity(WALK_FILES);
        for ended in self.0.iter().rev().filter(|ended| ended.key != *key) {
            if !ended.kind.is_survey() || now.saturating_sub(ended.at) > WALK_WITHIN {
                return false;
            }
            if !files.contains(&&ended.key) {
                files.push(&ended.key);
            }
            if files.len() == WALK_FILES {
                return true;
            }
        }
        false
    }

    /// Whether a peek at this file ended not longer than `within` ago.
    pub fn was_peeked(&self, key: &FileKey, now: Duration, within: Duration) -> bool {
        self.0.iter().rev().any(|ended| {
            ended.key == *key && ended.kind == OpenKind::HeaderPeek && now.saturating_sub(ended.at) <= within
        })
    }
}
