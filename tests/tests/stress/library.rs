//! The files of the stress test, and what may be seen in each at any moment.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::RwLock;
use std::sync::atomic::{AtomicU64, Ordering};

use weightfs_tests::Mount;
use weightfs_tests::data::Random;
use weightfs_tests::mount::unique;
use weightfs_tests::pages::{self, PAGE};

pub const FILES: u64 = 24;

/// How a file comes to its next generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Habit {
    /// A new file is renamed over it. Every open file and mapping sees one generation, whole.
    Replaced,
    /// Opened with O_TRUNC and written again, while others read. A reader may find it short, and pages of several
    /// generations, but no page older than its open.
    Rewritten,
    /// Written in place at the same size, while nobody reads.
    Overwritten,
}

/// One name and its generations.
pub struct Model {
    pub id: u64,
    pub habit: Habit,
    mount: PathBuf,
    source: PathBuf,
    /// The generation whose writing was last begun, and the one that was last closed.
    begun: AtomicU64,
    closed: AtomicU64,
    /// Held by writers; by readers only where truncation would end a mapping, or two generations share a page.
    pub lock: RwLock<()>,
}

pub struct Library {
    pub models: Vec<Model>,
}

impl Library {
    pub fn create(mount: &Mount, source: &Path) -> Library {
        let models = (0..FILES).map(|id| Model::create(id, mount.path(), source)).collect();
        Library { models }
    }

    pub fn pick(&self, random: &mut Random) -> &Model {
        random.pick(&self.models)
    }

    pub fn delete(&self, mount: &Mount) {
        for entry in fs::read_dir(mount.path()).expect("list").map(|entry| entry.expect("entry")) {
            fs::remove_file(entry.path()).expect("unlink");
        }
    }
}

impl Model {
    fn create(id: u64, mount: &Path, source: &Path) -> Model {
        let name = format!("{id}.{}", ["safetensors", "gguf", "ckpt"][(id / 3 % 3) as usize]);
        let model = Model {
            id,
            habit: [Habit::Replaced, Habit::Rewritten, Habit::Overwritten][(id % 3) as usize],
            mount: mount.join(&name),
            source: source.join(&name),
            begun: AtomicU64::new(1),
            closed: AtomicU64::new(1),
            lock: RwLock::new(()),
        };
        let bytes = pages::write(id, 1, 0, model.pages_of(1) as usize);
        fs::write(&model.source, bytes).expect("write");
        model
    }

    pub fn path(&self) -> &Path {
        &self.mount
    }

    /// The size of a generation in pages: around the edges of an extent, and a few MiB.
    pub fn pages_of(&self, generation: u64) -> u64 {
        const SIZES: [u64; 8] = [1, 300, 511, 512, 513, 1300, 2049, 2300];
        let turn = if self.habit == Habit::Overwritten { self.id / 3 } else { self.id / 3 + generation };
        SIZES[(turn % 8) as usize]
    }

    /// The oldest generation that an open from now on may show.
    pub fn oldest(&self) -> u64 {
        self.closed.load(Ordering::SeqCst)
    }

    /// The newest generation that anybody may have seen by now.
    pub fn newest(&self) -> u64 {
        self.begun.load(Ordering::SeqCst)
    }

    /// Writes the next generation, through the mount or (every fourth time) behind it.
    pub fn write_next(&self, random: &mut Random) -> io::Result<()> {
        let _alone = self.lock.write().expect("no thread panicked");
        let path = if random.chance(4) { &self.source } else { &self.mount };
        let generation = self.begun.fetch_add(1, Ordering::SeqCst) + 1;
        let count = self.pages_of(generation);
        let chunks = (0..count).step_by(256).map(|first| {
            let bytes = pages::write(self.id, generation, first, (count - first).min(256) as usize);
            (first * PAGE as u64, bytes)
        });
        match self.habit {
            Habit::Replaced => {
                let temporary = path.with_file_name(format!(".tmp{}", unique()));
                let mut file = OpenOptions::new().write(true).create_new(true).open(&temporary)?;
                // As safetensors saves: first the full length, then the bytes, then the name.
                file.set_len(count * PAGE as u64)?;
                chunks.into_iter().try_for_each(|(_, bytes)| file.write_all(&bytes))?;
                drop(file);
                fs::rename(&temporary, path)?;
            }
            Habit::Rewritten => {
                let mut file = OpenOptions::new().write(true).create(true).truncate(true).open(path)?;
                chunks.into_iter().try_for_each(|(_, bytes)| file.write_all(&bytes))?;
            }
            Habit::Overwritten => {
                let file = OpenOptions::new().read(true).write(true).open(path)?;
                chunks.into_iter().try_for_each(|(offset, bytes)| file.write_all_at(&bytes, offset))?;
            }
        }
        self.closed.store(generation, Ordering::SeqCst);
        Ok(())
    }

    /// Checks pages that were read from an open that was made when `oldest` was the oldest: each of this file, in its
    /// place, and of a generation that may be seen. Returns the generations seen, the lowest and the highest.
    ///
    /// # Errors
    /// What is wrong, in words.
    pub fn check(&self, oldest: u64, first: u64, bytes: &[u8]) -> Result<Option<(u64, u64)>, String> {
        let newest = self.newest();
        let mut seen: Option<(u64, u64)> = None;
        for (index, page) in bytes.chunks_exact(PAGE).enumerate() {
            let place = first + index as u64;
            let fault = |what: String| {
                format!("file {} ({:?}), page {place}, generations {oldest}..={newest}: {what}", self.id, self.habit)
            };
            let label = pages::read(page).map_err(&fault)?;
            if label.file != self.id || label.page != place {
                return Err(fault(format!("it is another page: {label:?}")));
            }
            if !(oldest..=newest).contains(&label.generation) {
                return Err(fault(format!("it is of generation {}", label.generation)));
            }
            let (low, high) = seen.unwrap_or((label.generation, label.generation));
            seen = Some((low.min(label.generation), high.max(label.generation)));
        }
        if let Some((low, high)) = seen
            && low != high
            && self.habit != Habit::Rewritten
        {
            return Err(format!("file {} ({:?}): one read saw the generations {low} to {high}", self.id, self.habit));
        }
        Ok(seen)
    }

    /// The length that an open file shows, in pages.
    pub fn length(file: &File) -> io::Result<u64> {
        Ok(file.metadata()?.len() / PAGE as u64)
    }
}
