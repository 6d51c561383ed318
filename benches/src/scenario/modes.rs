//! The ways in which a folder is served to a reader: the folder itself, a file system that only passes on, and weightfs.

use std::path::{Path, PathBuf};

use crate::caches;
use crate::data::Format;
use crate::error::{BenchError, Doing, Result};
use crate::memory;
use crate::nobody::Nobody;
use crate::passthrough::{self, Passthrough};
use crate::readers::{Loaded, Loader, Reader};
use crate::weightfs::Work;

use super::Bench;

/// RAM for models where one is loaded.
const RAM: &str = "1G";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// The folder itself, and the page cache.
    Native,
    /// The same with the advice that ComfyUI gives by default: nothing of it is needed any more.
    NativeDropped,
    /// A FUSE file system that only passes on.
    Passthrough,
    /// weightfs, and the daemon answers each read.
    Streamed,
    /// weightfs as root has it.
    Resident,
    /// weightfs as a user without rights has it.
    Nobody,
}

impl Mode {
    pub fn title(self, again: bool) -> &'static str {
        match self {
            Mode::Native if again => "native, page cache",
            Mode::Native => "native",
            Mode::NativeDropped => "native, DONTNEED",
            Mode::Passthrough => "passthrough_ll",
            Mode::Streamed => "weightfs, streamed",
            Mode::Resident if again => "weightfs, resident",
            Mode::Resident => "weightfs",
            Mode::Nobody => "weightfs, no rights",
        }
    }
}

/// What is loaded, and how.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    pub title: &'static str,
    pub reader: Reader,
    pub format: Format,
}

/// A load that was timed, and what the daemon did for it.
#[derive(Clone, Copy, Debug)]
pub struct Shot {
    pub loaded: Loaded,
    pub cpu_seconds: Option<f64>,
}

/// The first load and one of the same again.
#[derive(Clone, Copy, Debug)]
pub struct Pass {
    pub cold: Option<Shot>,
    pub again: Shot,
}

/// What modes need that stays between samples.
pub struct Modes {
    passthrough: std::result::Result<PathBuf, String>,
    /// None until somebody asks for it.
    nobody: Option<std::result::Result<Nobody, String>>,
}

impl Modes {
    pub fn new() -> Self {
        Self { passthrough: passthrough::of_this_program(), nobody: None }
    }

    /// Why a reader cannot be used in a mode, if so.
    pub fn lacks(&mut self, bench: &mut Bench, mode: Mode, row: &Row) -> Option<String> {
        if let Err(reason) = bench.readers.has(row.reader) {
            return Some(reason);
        }
        match mode {
            Mode::Passthrough => self.passthrough.clone().err(),
            Mode::Nobody => match self.nobody(bench) {
                Ok(nobody) => nobody.reader().has(row.reader).err(),
                Err(error) => Some(error.to_string()),
            },
            _ => None,
        }
    }

    fn nobody(&mut self, bench: &Bench) -> Result<&mut Nobody> {
        let become_one = || {
            let place = bench.weightfs.mountpoint.with_file_name("nobody");
            Nobody::become_one(&bench.weightfs, &place, RAM, &bench.readers.interpreters())
                .map_err(|error| error.to_string())
        };
        self.nobody.get_or_insert_with(become_one).as_mut().map_err(|reason| BenchError::Unfit(reason.clone()))
    }

    /// Loads a model twice.
    pub fn pass(&mut self, bench: &mut Bench, mode: Mode, row: &Row) -> Result<Pass> {
        match mode {
            Mode::Native | Mode::NativeDropped => native(bench, mode, row),
            Mode::Passthrough => self.passed_on(bench, row),
            Mode::Streamed => mounted(bench, row, &["--no-passthrough"]),
            Mode::Resident => mounted(bench, row, &[]),
            Mode::Nobody => self.by_nobody(bench, row),
        }
    }

    fn passed_on(&mut self, bench: &mut Bench, row: &Row) -> Result<Pass> {
        let program = self.passthrough.clone().map_err(BenchError::Unfit)?;
        let mountpoint = bench.weightfs.mountpoint.with_file_name("passthrough");
        let layout = bench.library.table(&bench.library.folder, row.format);
        let path = bench.library.table(&mountpoint, row.format);
        let mounted = Passthrough::mount(&program, &bench.library.folder, &mountpoint)?;
        prepare(&layout)?;
        let mut shot = || {
            let before = mounted.cpu_seconds()?;
            // The page cache keeps what it has: this is the file system at its best.
            let loaded = bench.readers.load_as(keeping(row.reader), &path, &layout)?;
            Ok(Shot { loaded, cpu_seconds: Some(mounted.cpu_seconds()? - before) })
        };
        Ok(Pass { cold: Some(shot()?), again: shot()? })
    }

    fn by_nobody(&mut self, bench: &mut Bench, row: &Row) -> Result<Pass> {
        let layout = bench.library.table(&bench.library.folder, row.format);
        let nobody = self.nobody(bench)?;
        let path = bench.library.table(nobody.mountpoint(), row.format);
        nobody.mount()?;
        let pass = (|| {
            prepare(&layout)?;
            let shot = |nobody: &mut Nobody| {
                let before = nobody.work()?;
                let loaded = nobody.reader().load(row.reader, &path, &layout)?;
                Ok::<_, BenchError>(shot_of(loaded, nobody.work()?.since(before)))
            };
            let cold = Some(shot(nobody)?);
            nobody.prefetch(&path)?;
            Ok(Pass { cold, again: shot(nobody)? })
        })();
        nobody.unmount()?;
        pass
    }
}

fn native(bench: &mut Bench, mode: Mode, row: &Row) -> Result<Pass> {
    let path = bench.library.table(&bench.library.folder, row.format);
    let mut load = |reader| {
        let loaded = bench.readers.load_as(reader, &path, &path)?;
        Ok::<_, BenchError>(Shot { loaded, cpu_seconds: None })
    };
    prepare(&path)?;
    if mode == Mode::Native {
        return Ok(Pass { cold: Some(load(keeping(row.reader))?), again: load(keeping(row.reader))? });
    }
    load(row.reader)?;
    // What a loader does that does it by itself, and has then done already.
    caches::drop_file(&path)?;
    Ok(Pass { cold: None, again: load(row.reader)? })
}

fn mounted(bench: &mut Bench, row: &Row, options: &[&str]) -> Result<Pass> {
    let weightfs = bench.weightfs.clone();
    weightfs.forget_history()?;
    let layout = bench.library.table(&bench.library.folder, row.format);
    let path = bench.library.table(&weightfs.mountpoint, row.format);
    let mounted = weightfs.mount(options)?;
    prepare(&layout)?;
    let mut shot = || {
        let before = mounted.work()?;
        let loaded = bench.readers.load_as(row.reader, &path, &layout)?;
        Ok::<_, BenchError>(shot_of(loaded, mounted.work()?.since(before)))
    };
    let cold = Some(shot()?);
    // Some readers are none for whom a model is kept: hashers are not.
    mounted.prefetch(std::slice::from_ref(&path))?;
    let again = shot()?;
    mounted.unmount()?;
    Ok(Pass { cold, again })
}

fn shot_of(loaded: Loaded, work: Work) -> Shot {
    Shot { loaded, cpu_seconds: Some(work.cpu_seconds) }
}

fn prepare(path: &Path) -> Result<()> {
    let size = std::fs::metadata(path).doing(|| format!("look at {}", path.display()))?.len();
    caches::drop_all()?;
    memory::back(size * 9 / 4)
}

/// The reader as it is where it does not have the page cache drop what it has read.
fn keeping(reader: Reader) -> Reader {
    match reader {
        Reader::Python(Loader::Aimdo) => Reader::Python(Loader::AimdoKeep),
        Reader::PreadAndDrop => Reader::Pread,
        _ => reader,
    }
}
