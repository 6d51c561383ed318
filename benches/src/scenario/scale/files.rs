//! Folders of more and more models, each opened once for its header.

use std::time::Instant;

use super::{Curves, Folder, RUNS, as_it_is, milliseconds, numbered};
use crate::caches;
use crate::data::sparse;
use crate::error::{Doing, Result};
use crate::readers::first_bytes;
use crate::report::{Figure, Outcome, Unit};
use crate::scenario::{Bench, Scenario, walk};

/// Of a model: large enough to be kept, and no larger.
const SIZE: u64 = 1 << 20;

/// What is read of each: a header, as a look at a model's names does.
const HEADER: usize = 4096;

pub fn run(bench: &mut Bench, counts: &[u64], scenario: &Scenario) -> Result<Vec<Outcome>> {
    let folder = Folder::make(bench)?;
    let weightfs = &folder.weightfs;
    let mut curves = Curves::default();
    let mut buffer = vec![1; HEADER];
    let mut made = 0;
    for count in counts.iter().copied() {
        for index in made..count {
            let path = numbered(folder.path(), index);
            if let Some(parent) = path.parent() {
                std::fs::create_dir_all(parent).doing(|| format!("make {}", parent.display()))?;
            }
            sparse::write(&path, SIZE)?;
        }
        made = count;
        folder.settle();
        let mut open_all = |root: &std::path::Path| -> Result<f64> {
            let start = Instant::now();
            for index in 0..count {
                first_bytes(&numbered(root, index), 0, &mut buffer)?;
            }
            Ok(milliseconds(start))
        };
        let walk = |root: &std::path::Path| -> Result<f64> {
            let start = Instant::now();
            walk::count(root)?;
            Ok(milliseconds(start))
        };
        for _ in 0..RUNS {
            caches::drop_all()?;
            curves.add("native, walk", count, walk(&weightfs.source)?);
            curves.add("native, open", count, open_all(&weightfs.source)?);
            weightfs.forget_history()?;
            caches::drop_all()?;
            let start = Instant::now();
            let mounted = weightfs.mount(&[])?;
            curves.add("weightfs, start", count, milliseconds(start));
            let before = mounted.memory()?.own();
            curves.add("weightfs, walk", count, walk(&weightfs.mountpoint)?);
            curves.add("weightfs, open", count, open_all(&weightfs.mountpoint)?);
            let grown = mounted.memory()?.own().saturating_sub(before);
            curves.add("weightfs, memory", count, grown as f64 / 1024.0);
            mounted.unmount()?;
            let start = Instant::now();
            let mounted = weightfs.mount(&[])?;
            curves.add("weightfs, start with history", count, milliseconds(start));
            mounted.unmount()?;
        }
    }
    let most = made as f64;
    let growth = |what, lines: &[&str], explained| curves.growth(scenario, what, lines, (as_it_is, explained));
    let figure = |id: &str, title: String, unit, value| {
        Outcome::Figure(Figure::of(format!("{}-{id}", scenario.id), title, unit, value, None))
    };
    let each = |curve: &str| 1e3 * curves.last(curve) / most;
    Ok(vec![
        growth(
            ("walk", "walk and stat of a folder, first", "files", Unit::Milliseconds),
            &["native, walk", "weightfs, walk"],
            "A walk asks for each name once, on either side. Through the mount each costs one request more than it costs \
             the folder, whatever the number of the others: names are found by hash.",
        ),
        growth(
            ("open", "open, first 4 KiB and close of every model", "files", Unit::Milliseconds),
            &["native, open", "weightfs, open"],
            "An open through the mount is a lookup, an open and a read by the daemon, each on its own. What is known of \
             other files is not looked at.",
        ),
        growth(
            ("memory", "memory of the daemon for the files that it knows", "files", Unit::Kibibytes),
            &["weightfs, memory"],
            "An inode, a name and what was learned of a model, for each that the kernel has not forgotten. The first \
             points have what the daemon takes once, for its threads.",
        ),
        growth(
            ("start", "from the start of the program to the mount that answers", "files", Unit::Milliseconds),
            &["weightfs, start", "weightfs, start with history"],
            "The source is not walked over: what is in it is looked at when it is asked for. What was learned before is \
             read as a whole.",
        ),
        figure(
            "open-native",
            format!("native: an open and 4 KiB, one of {most}"),
            Unit::Microseconds,
            each("native, open"),
        ),
        figure(
            "open-each",
            format!("weightfs: an open and 4 KiB, one of {most}"),
            Unit::Microseconds,
            each("weightfs, open"),
        ),
        figure(
            "known-each",
            format!("memory of the daemon for a file that it knows, one of {most}"),
            Unit::Kibibytes,
            curves.last("weightfs, memory") / most,
        ),
    ])
}
