//! What the last opens of each file came to, and so what to expect of the next one.
//!
//! Loads repeat: a workflow loads the same files, in the same order of tensors, run after run. Surveys do not: whoever
//! walks over the library, to hash it or to read its headers, must not make anyone fill RAM with it. Between the two
//! stand the libraries that open a file once for its header and again for its data.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::ids::SourceIdentity;

use super::kind::{Facts, OpenKind, PEEK_LIMIT};
use super::order::Order;
use super::recent::Recent;

/// How many files are remembered. Those whose last open ended first are forgotten first.
pub const MAX_FILES: usize = 50_000;
/// How many runs all learned orders together may have: 8 MiB.
const MAX_RUNS: usize = 1 << 20;
/// The share of either that goes when it is exceeded, so that this is rare.
const DROP_SHARE: usize = 16;

const KEPT_OPENS: usize = 6;
/// A file that was loaded is expected to be loaded again until so many surveys followed.
const FORGIVEN_SURVEYS: usize = 3;
/// Two scans of one content within this time are the work of a program that loads by reading from end to end.
const SCAN_AGAIN: Duration = Duration::from_secs(3600);
/// The second open of a library that opens twice follows the first within this time.
const OPEN_AGAIN: Duration = Duration::from_secs(1);

/// Devices whose speed is remembered. Those of network file systems get another number with each mount.
const MAX_DEVICES: usize = 64;

const VERSION: u32 = 1;

/// One content of a file under one name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct FileKey {
    pub identity: SourceIdentity,
    /// A hash of the path relative to the source folder; the same on every machine.
    pub path_hash: u64,
}

/// What an open is expected to come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expectation {
    WholeLoad,
    Peek,
    Unknown,
}

/// Another open of the same file that has not ended.
#[derive(Clone, Copy, Debug)]
pub struct LiveOpen {
    /// Since the epoch.
    pub opened: Duration,
    pub facts: Facts,
}

/// The history of all files. Times are since the epoch.
#[derive(Debug, Default)]
pub struct History {
    files: HashMap<FileKey, FileHistory>,
    recent: Recent,
    /// Counts the opens recorded; the order of the last ones says who is forgotten first.
    clock: u64,
    runs: usize,
    /// What devices have delivered, in bytes per second, by their numbers.
    speeds: BTreeMap<u64, u64>,
}

#[derive(Debug, Default)]
struct FileHistory {
    /// The last ones, the latest at the end, `None` before there were so many.
    opens: [Option<PastOpen>; KEPT_OPENS],
    order: Option<Order>,
    used: u64,
}

/// Whole seconds keep fifty thousand histories small.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct PastOpen {
    second: u32,
    kind: OpenKind,
}

impl FileKey {
    pub fn new(identity: SourceIdentity, relative_path: &[u8]) -> Self {
        // FNV-1a: stable over versions and machines, unlike the hashes of the standard library.
        let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3);
        FileKey { identity, path_hash: relative_path.iter().fold(0xcbf2_9ce4_8422_2325, step) }
    }
}

impl History {
    /// Takes in an open that has ended, and with a whole load the order in which it read. Says whether the open counts
    /// as a use of the file: a survey does not, unless it is a scan that keeps coming back.
    pub fn record(&mut self, key: FileKey, kind: OpenKind, order: Option<Order>, now: Duration) -> bool {
        self.recent.push(key, kind, now);
        self.clock += 1;
        let file = self.files.entry(key).or_default();
        file.used = self.clock;
        file.opens.rotate_left(1);
        file.opens[KEPT_OPENS - 1] = Some(PastOpen { second: now.as_secs() as u32, kind });
        let is_use = !kind.is_survey() || kind == OpenKind::HashScan && file.is_loaded_by_scans(now);
        if kind.is_load() && order.is_some() {
            self.runs -= file.order.as_ref().map_or(0, Order::run_count);
            self.runs += order.as_ref().map_or(0, Order::run_count);
            file.order = order;
        }
        self.forget();
        is_use
    }

    /// What to expect of an open of `key` that has come as far as `open` says, while `others` of the same file last.
    /// Worth asking when a file is opened and again at the first reads of its data.
    pub fn expect(&self, key: &FileKey, open: &Facts, others: &[LiveOpen], now: Duration) -> Expectation {
        let file = self.files.get(key);
        let walk = self.recent.is_walk(key, now);
        let is_loaded = !walk && file.is_some_and(|file| file.is_loaded(now));
        if is_loaded {
            return Expectation::WholeLoad;
        }
        if open.data_read > 0 {
            // Few bytes, or bytes from front to back, are what walks are made of.
            let like_the_walk =
                walk && (open.data_read <= PEEK_LIMIT || open.front_to_back && open.mapped != Some(true));
            let loads = !open.looks_like_scan() && !like_the_walk;
            return if loads { Expectation::WholeLoad } else { Expectation::Unknown };
        }
        let peeked = |other: &LiveOpen| other.facts.data_read == 0 && now.saturating_sub(other.opened) <= OPEN_AGAIN;
        if !walk && (others.iter().any(peeked) || self.recent.was_peeked(key, now, OPEN_AGAIN)) {
            return Expectation::WholeLoad;
        }
        match file {
            Some(file) if file.latest().all(|past| past.kind == OpenKind::HeaderPeek) => Expectation::Peek,
            _ => Expectation::Unknown,
        }
    }

    /// The order in which the last whole load read the file.
    pub fn order(&self, key: &FileKey) -> Option<&Order> {
        self.files.get(key)?.order.as_ref()
    }

    /// What the last open of a file came to that did more than look at its header.
    pub fn last_kind(&self, key: &FileKey) -> Option<OpenKind> {
        self.files.get(key)?.latest().map(|past| past.kind).find(|kind| *kind != OpenKind::HeaderPeek)
    }

    /// Takes in what a device delivers, in bytes per second; true where that is clearly news.
    pub fn record_speed(&mut self, device: u64, speed: u64) -> bool {
        let known = self.speeds.get(&device).copied();
        if known.is_some_and(|known| known.abs_diff(speed) <= known / 8) {
            return false;
        }
        if known.is_none() && self.speeds.len() >= MAX_DEVICES {
            self.speeds.pop_first();
        }
        self.speeds.insert(device, speed);
        true
    }

    /// Bytes per second that a device has delivered, as far as is known. A number may stand for another device by now.
    pub fn speed(&self, device: u64) -> Option<u64> {
        self.speeds.get(&device).copied()
    }

    /// How many files are remembered.
    pub fn len(&self) -> usize {
        self.files.len()
    }

    pub fn is_empty(&self) -> bool {
        self.files.is_empty()
    }

    fn forget(&mut self) {
        if self.files.len() > MAX_FILES {
            let mut used: Vec<u64> = self.files.values().map(|file| file.used).collect();
            let (_, limit, _) = used.select_nth_unstable(MAX_FILES / DROP_SHARE);
            self.files.retain(|_, file| file.used > *limit);
            self.runs = self.files.values().filter_map(|file| file.order.as_ref()).map(Order::run_count).sum();
        }
        if self.runs > MAX_RUNS {
            let mut files: Vec<_> = self.files.values_mut().filter(|file| file.order.is_some()).collect();
            files.sort_unstable_by_key(|file| file.used);
            for file in files {
                if self.runs <= MAX_RUNS - MAX_RUNS / DROP_SHARE {
                    break;
                }
                self.runs -= file.order.take().map_or(0, |order| order.run_count());
            }
        }
    }
}

impl FileHistory {
    /// The latest first.
    fn latest(&self) -> impl Iterator<Item = PastOpen> {
        self.opens.iter().rev().copied().flatten()
    }

    fn is_loaded(&self, now: Duration) -> bool {
        self.latest().take(FORGIVEN_SURVEYS).any(|past| past.kind.is_load()) || self.is_loaded_by_scans(now)
    }

    /// Whether two scans came within `SCAN_AGAIN` of each other, the second of them lately.
    fn is_loaded_by_scans(&self, now: Duration) -> bool {
        let within = SCAN_AGAIN.as_secs() as u32;
        let mut later = now.as_secs() as u32;
        let scans = self.latest().filter(|past| past.kind == OpenKind::HashScan).take(2);
        let mut count = 0;
        for scan in scans {
            if later.saturating_sub(scan.second) > within {
                return false;
            }
            later = scan.second;
            count += 1;
        }
        count == 2
    }
}

/// The saved form, the file that was used last at the end.
#[derive(Serialize, Deserialize)]
struct Saved {
    version: u32,
    files: Vec<SavedFile>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    speeds: BTreeMap<u64, u64>,
}

#[derive(Serialize, Deserialize)]
struct SavedFile {
    #[serde(flatten)]
    key: FileKey,
    opens: Vec<PastOpen>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    order: Option<Order>,
}

impl Serialize for History {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut files: Vec<_> = self.files.iter().collect();
        files.sort_unstable_by_key(|(_, file)| file.used);
        let save = |(key, file): (&FileKey, &FileHistory)| SavedFile {
            key: *key,
            opens: file.opens.into_iter().flatten().collect(),
            order: file.order.clone(),
        };
        let files = files.into_iter().map(save).collect();
        Saved { version: VERSION, files, speeds: self.speeds.clone() }.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for History {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let Saved { version, files, speeds } = Saved::deserialize(deserializer)?;
        if version != VERSION {
            let message = format!("a history of version {version}, and this program knows {VERSION}: delete it");
            return Err(de::Error::custom(message));
        }
        let mut history = History::default();
        speeds.into_iter().for_each(|(device, speed)| _ = history.record_speed(device, speed));
        let surplus = files.len().saturating_sub(MAX_FILES);
        for SavedFile { key, opens, order } in files.into_iter().skip(surplus) {
            history.clock += 1;
            let mut file = FileHistory { order, used: history.clock, ..FileHistory::default() };
            for (slot, open) in file.opens.iter_mut().rev().zip(opens.into_iter().rev()) {
                *slot = Some(open);
            }
            history.runs += file.order.as_ref().map_or(0, Order::run_count);
            if let Some(twice) = history.files.insert(key, file) {
                history.runs -= twice.order.as_ref().map_or(0, Order::run_count);
            }
        }
        history.forget();
        Ok(history)
    }
}

#[cfg(test)]
#[path = "history_tests.rs"]
mod tests;
