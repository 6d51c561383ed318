//! What `top` shows: no terminal, no daemon, no clock.

use std::cmp::Reverse;
use std::path::{Path, PathBuf};

use weightfs::control::{FileStatus, Files, Status, Totals};

use super::sample::Samples;

/// How long a word about what was done stays, in seconds.
const WORD_STAYS: f64 = 8.0;

#[derive(Clone, Debug, Default)]
pub struct State {
    pub link: Link,
    pub status: Option<Status>,
    pub samples: Samples,
    pub totals: Totals,
    /// As the daemon listed them.
    pub(super) files: Vec<FileStatus>,
    pub sort: Sort,
    /// Only files of which something is in RAM.
    pub resident_only: bool,
    /// What names must have in them, in lower case.
    pub filter: String,
    pub mode: Mode,
    pub selected: Option<PathBuf>,
    /// The first row that is seen.
    pub offset: usize,
    /// How many rows are seen.
    pub page: usize,
    /// What was done last, or what went wrong.
    pub word: Option<Word>,
    /// Seconds since the start.
    pub now: f64,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub enum Link {
    #[default]
    Connecting,
    Live,
    /// For the reason, since that second.
    Lost(String, f64),
}

#[derive(Clone, Debug, PartialEq)]
pub struct Word {
    pub text: String,
    pub failed: bool,
    pub at: f64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    #[default]
    Normal,
    /// The filter is being written.
    Filter,
    Help,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sort {
    #[default]
    Resident,
    Used,
    Size,
    Name,
}

impl Sort {
    pub fn next(self) -> Self {
        match self {
            Self::Resident => Self::Used,
            Self::Used => Self::Size,
            Self::Size => Self::Name,
            Self::Name => Self::Resident,
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::Resident => "in RAM",
            Self::Used => "used",
            Self::Size => "size",
            Self::Name => "name",
        }
    }
}

impl State {
    pub fn set_status(&mut self, status: Status) {
        self.samples.add(&status, self.now);
        self.status = Some(status);
        self.link = Link::Live;
    }

    pub fn set_files(&mut self, files: Files) {
        self.files = files.files;
        self.totals = files.totals;
        self.keep_in_view();
    }

    pub fn lose(&mut self, why: String) {
        let since = match self.link {
            Link::Lost(_, since) => since,
            _ => self.now,
        };
        self.link = Link::Lost(why, since);
    }

    pub fn say(&mut self, text: String, failed: bool) {
        self.word = Some(Word { text, failed, at: self.now });
    }

    pub fn pass(&mut self, now: f64) {
        self.now = now;
        if self.word.as_ref().is_some_and(|word| word.at + WORD_STAYS <= now) {
            self.word = None;
        }
    }

    /// As they are listed: filtered and in order.
    pub fn rows(&self) -> Vec<&FileStatus> {
        let wanted = |file: &&FileStatus| {
            self.filter.is_empty() || file.path.to_string_lossy().to_lowercase().contains(&self.filter)
        };
        let mut rows: Vec<&FileStatus> = self.files.iter().filter(wanted).collect();
        match self.sort {
            Sort::Name => rows.sort_by(|a, b| a.path.cmp(&b.path)),
            Sort::Resident => rows.sort_by_key(|file| (Reverse(file.resident_bytes + file.filling_bytes), &file.path)),
            Sort::Size => rows.sort_by_key(|file| (Reverse(file.size_bytes), &file.path)),
            Sort::Used => {
                let age = |file: &FileStatus| file.unused_seconds.unwrap_or(f64::INFINITY);
                rows.sort_by(|a, b| age(a).total_cmp(&age(b)).then_with(|| a.path.cmp(&b.path)));
            }
        }
        rows
    }

    /// The selected file, if it is listed.
    pub fn selection(&self) -> Option<&FileStatus> {
        let selected = self.selected.as_deref()?;
        self.rows().into_iter().find(|file| file.path == selected)
    }

    /// Where it is among the rows.
    pub fn position(&self) -> Option<usize> {
        let selected = self.selected.as_deref()?;
        self.rows().iter().position(|file| file.path == selected)
    }

    /// Selects the row that is `by` rows further down, as far as there are any. The first time, the first one.
    pub fn step(&mut self, by: isize) {
        let rows = self.rows();
        let Some(last) = rows.len().checked_sub(1) else { return };
        let to = self.position().map_or(0, |at| at.saturating_add_signed(by).min(last));
        self.selected = Some(rows[to].path.clone());
        self.keep_in_view();
    }

    pub fn keep_in_view(&mut self) {
        let count = self.rows().len();
        if let Some(at) = self.position() {
            self.offset = self.offset.clamp((at + 1).saturating_sub(self.page.max(1)), at);
        }
        self.offset = self.offset.min(count.saturating_sub(self.page));
    }

    /// The one folder that everything is mounted on, if it is one: names are shown from there.
    pub fn base(&self) -> Option<&Path> {
        match self.status.as_ref()?.mounts.as_slice() {
            [mount] => Some(&mount.mountpoint),
            _ => None,
        }
    }
}
