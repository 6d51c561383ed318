//! Does steps to a mount and to a plain folder and compares what they give.
//!
//! One difference is allowed, and is what weightfs promises: who has a file open while others change it in place may
//! go on to see the content of when it was opened, or any that came after. Open files that this is true for carry the
//! list of these contents.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

use rustix::io::Errno;
use weightfs_tests::Pair;
use weightfs_tests::compare::outcome;
use weightfs_tests::data::{Random, same_bytes};
use weightfs_tests::pages::PAGE;
use weightfs_tests::system::{let_files_settle, wait_until};

use crate::step::{Given, How, OnFile, OnName, Step, read_full};

/// The time after which a change behind the mount must show, and what a busy machine may add.
const SOON: Duration = Duration::from_millis(2500);

/// More open files than this are closed again, and more contents of one file than this are not kept.
const MOST: usize = 8;

struct Open {
    plain: File,
    mount: File,
    how: How,
    /// Every content since the open, once somebody else changed the file; else empty.
    contents: Vec<Vec<u8>>,
}

impl Open {
    fn inode(&self) -> u64 {
        self.plain.metadata().expect("stat").ino()
    }
}

pub struct Driver {
    pair: Pair,
    random: Random,
    open: Vec<Open>,
    steps: Steps,
}

/// What was done; printed if it fails.
struct Steps(Vec<Step>);

impl Driver {
    pub fn new(pair: Pair, random: Random) -> Driver {
        pair.both("mkdir", |root| outcome(fs::create_dir(root.join("sub"))));
        Driver { pair, random, open: Vec::new(), steps: Steps(Vec::new()) }
    }

    /// Does `count` random steps.
    pub fn run(&mut self, count: usize) {
        for index in 0..count {
            let settle = index % (count / 4).max(1) == count / 8;
            let step = if settle { Step::Settle } else { Step::any(&mut self.random, self.open.len()) };
            self.steps.0.push(step.clone());
            self.apply(&step);
            if index % 50 == 49 {
                self.check_trees();
            }
        }
    }

    /// Closes everything, compares all that is there, and unmounts.
    pub fn finish(mut self) {
        self.open.clear();
        self.check_trees();
        self.pair.stop();
    }

    fn check_trees(&self) {
        let trees = || {
            (weightfs_tests::compare::tree(self.pair.plain()), weightfs_tests::compare::tree(self.pair.mount().path()))
        };
        // Behind the mount something may have changed a moment ago.
        if !wait_until(SOON, || trees().0 == trees().1) {
            self.pair.check_trees("the steps so far");
        }
    }

    fn apply(&mut self, step: &Step) {
        match step {
            Step::Open { name, how } => self.open(name, *how),
            Step::Close { slot } => drop(self.open.swap_remove(*slot)),
            Step::OnFile { slot, act } => self.on_file(*slot, act),
            Step::OnName(act) => {
                let changed = act.changes_in_place().and_then(|name| self.inode_of(name));
                self.before_change(changed, false);
                compare(act.apply(self.pair.plain()), act.apply(self.pair.mount().path()));
                self.after_change(changed);
            }
            Step::Behind(act) => {
                if !self.pair.plain().join(act.name()).exists() {
                    return;
                }
                let changed = self.inode_of(act.name());
                self.before_change(changed, true);
                compare(act.apply(self.pair.plain()), act.apply(self.pair.source()));
                self.after_change(changed);
                let whole = OnName::ReadWhole { name: act.name() };
                compare(whole.apply(self.pair.plain()), whole.apply(self.pair.mount().path()));
            }
            Step::Stat { name } => self.agree_soon(name, |root| {
                outcome(fs::metadata(root.join(name))).map(|found| (found.len(), found.mode(), found.nlink()))
            }),
            Step::List => self.agree_soon("the list", |root| {
                let names = |folder: &Path| {
                    fs::read_dir(folder)
                        .expect("list")
                        .map(|entry| entry.expect("entry").file_name())
                        .collect::<Vec<_>>()
                };
                let mut all = [names(root), names(&root.join("sub"))].concat();
                all.sort();
                all
            }),
            Step::Settle => {
                let_files_settle();
                for name in crate::step::NAMES {
                    let whole = OnName::ReadWhole { name };
                    compare(whole.apply(self.pair.plain()), whole.apply(self.pair.mount().path()));
                }
            }
        }
    }

    fn agree_soon<T: PartialEq + std::fmt::Debug>(&self, what: &str, look: impl Fn(&Path) -> T) {
        if !wait_until(SOON, || look(self.pair.plain()) == look(self.pair.mount().path())) {
            self.pair.same(what, look);
        }
    }

    fn inode_of(&self, name: &str) -> Option<u64> {
        fs::metadata(self.pair.plain().join(name)).ok().map(|found| found.ino())
    }

    fn open(&mut self, name: &str, how: How) {
        let mut options = OpenOptions::new();
        options.read(true).write(!matches!(how, How::Read | How::Append)).append(how == How::Append);
        options.create(how == How::Create).create_new(how == How::CreateNew);
        let [plain, mount] =
            [self.pair.plain(), self.pair.mount().path()].map(|root| outcome(options.open(root.join(name))));
        match (plain, mount) {
            (Ok(plain), Ok(mount)) => {
                let [a, b] = [&plain, &mount].map(|file| file.metadata().expect("stat").len());
                assert_eq!(a, b, "the length that a new open file shows");
                self.open.push(Open { plain, mount, how, contents: Vec::new() });
            }
            (plain, mount) => assert_eq!(plain.map(drop), mount.map(drop), "open"),
        }
        if self.open.len() > MOST {
            let slot = self.random.below(self.open.len() as u64) as usize;
            self.open.swap_remove(slot);
        }
    }

    fn on_file(&mut self, slot: usize, act: &OnFile) {
        let open = &self.open[slot];
        if !open.contents.is_empty() {
            // Only reading has one right answer here, and it is one of several.
            if let OnFile::Read { offset, len } = act {
                check_against_all(open, *offset, *len);
            }
            return;
        }
        let changed = (act.changes() && open.how != How::Read).then(|| open.inode());
        self.before_change(changed, false);
        let open = &self.open[slot];
        compare(act.apply(&open.plain), act.apply(&open.mount));
        if changed.is_some() && open.how == How::ReadWrite {
            let all = OnFile::Read { offset: 0, len: 16 << 20 };
            compare(all.apply(&open.plain), all.apply(&open.mount));
        }
        // Which may close others, so that the slots are different ones.
        self.after_change(changed);
    }

    /// Notes the content that those who have this file open may go on to see. Who writes sees every change that is
    /// made through the mount, and only those.
    fn before_change(&mut self, inode: Option<u64>, behind: bool) {
        for open in &mut self.open {
            if Some(open.inode()) == inode && open.contents.is_empty() && (behind || open.how == How::Read) {
                open.contents.push(content(&open.plain));
            }
        }
    }

    fn after_change(&mut self, inode: Option<u64>) {
        for open in &mut self.open {
            if Some(open.inode()) == inode && !open.contents.is_empty() {
                open.contents.push(content(&open.plain));
            }
        }
        self.open.retain(|open| open.contents.len() <= MOST);
    }
}

impl Drop for Steps {
    fn drop(&mut self) {
        if std::thread::panicking() {
            println!("the last of {} steps:", self.0.len());
            let first = self.0.len().saturating_sub(60);
            self.0.iter().enumerate().skip(first).for_each(|(index, step)| println!("{index}: {step:?}"));
        }
    }
}

fn content(file: &File) -> Vec<u8> {
    let mut bytes = vec![0; file.metadata().expect("stat").len() as usize];
    read_full(file, &mut bytes, 0).expect("read");
    bytes
}

fn compare(expected: Given, found: Given) {
    match (expected, found) {
        (Ok((number, bytes)), Ok((found_number, found_bytes))) => {
            assert_eq!(number, found_number, "what it gives");
            assert_eq!(same_bytes(&bytes, &found_bytes, 0), Ok(()), "the bytes it gives");
        }
        (expected, found) => {
            let short = |given: Given| given.map(|(number, _)| number);
            assert_eq!(short(expected), short(found), "the plain folder and the mount differ");
        }
    }
}

/// Every page that is read must be that of one of the contents since the open.
fn check_against_all(open: &Open, offset: u64, len: usize) {
    let mut found = vec![0; len];
    let n = match read_full(&open.mount, &mut found, offset) {
        Ok(n) => n,
        // An append-only or write-only file, which nobody can read.
        Err(Errno::BADF) => return,
        Err(error) => panic!("reading a file that was changed gives {error}"),
    };
    let mut at = 0;
    while at < n {
        let from = offset as usize + at;
        let to = (from / PAGE + 1) * PAGE;
        let piece = &found[at..n.min(at + to - from)];
        let is_of = |content: &Vec<u8>| content.get(from..from + piece.len()).is_some_and(|right| right == piece);
        assert!(open.contents.iter().any(is_of), "the page at {from} is of no content since the open");
        at += piece.len();
    }
}
