//! Every reader in every mode: the first load, and the same again.

use super::modes::{Mode, Modes, Pass, Row, Shot};
use super::{Bench, Scenario};
use crate::data::Format;
use crate::error::Result;
use crate::readers::{Loader, Reader};
use crate::report::{Cell, Failed, Grid, GridRow, Outcome, Skipped, Unit};

const ALL: [Mode; 6] =
    [Mode::Native, Mode::NativeDropped, Mode::Passthrough, Mode::Streamed, Mode::Resident, Mode::Nobody];

const FOLDER_AND_MOUNT: [Mode; 3] = [Mode::Native, Mode::NativeDropped, Mode::Resident];

/// What is not to be seen from the numbers.
const MAPS: &str = "Of shared maps, and of what torch maps, a byte of each page is touched where it lies: nothing is \
                    copied, and what is measured is how fast pages come into sight. `safetensors, map` copies every tensor \
                    into memory that is new each time, as its package for numpy does, and `torch.load` reads into such \
                    memory: neither can be faster than the machine finds pages for it.";

/// Which readers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
    /// Those that programs use.
    Usual,
    /// Those with engines of their own, and one without to set them against.
    Engines,
}

impl Which {
    fn rows(self) -> Vec<Row> {
        let row = |title, loader, format| Row { title, reader: Reader::Python(loader), format };
        use Format::{Gguf, Safetensors, Torch};
        match self {
            Which::Usual => vec![
                row("aimdo", Loader::Aimdo, Safetensors),
                row("safetensors, map", Loader::Safetensors, Safetensors),
                row("safetensors, pread", Loader::SafetensorsPread, Safetensors),
                row("GGUF, shared map", Loader::Gguf, Gguf),
                row("llama.cpp's shared map", Loader::SharedMap, Gguf),
                row("SHA-256, 8 MiB reads", Loader::Hash, Safetensors),
                row("torch, safetensors", Loader::TorchSafetensors, Safetensors),
                row("torch.load", Loader::TorchZip, Torch),
            ],
            Which::Engines => vec![
                row("torch, safetensors", Loader::TorchSafetensors, Safetensors),
                row("fastsafetensors, no GDS", Loader::FastSafetensors, Safetensors),
                row("Run:ai streamer", Loader::RunaiStreamer, Safetensors),
                Row { title: "8 × 2 MiB pread", reader: Reader::Pread, format: Safetensors },
            ],
        }
    }

    fn modes(self) -> &'static [Mode] {
        match self {
            Which::Usual => &ALL,
            Which::Engines => &FOLDER_AND_MOUNT,
        }
    }

    pub fn run(self, bench: &mut Bench, scenario: &Scenario) -> Result<Vec<Outcome>> {
        if bench.readers.has(Reader::Python(Loader::TorchZip)).is_ok() {
            bench.make_for_torch()?;
        }
        let mut modes = Modes::new();
        let (mut cold, mut again, mut missing) = (Vec::new(), Vec::new(), Vec::new());
        for row in self.rows() {
            if let Some(reason) = bench.time_is_up() {
                let reason = format!("{}: {reason}", row.title);
                missing.push(Outcome::Skipped(Skipped { id: scenario.id, title: scenario.title, reason }));
                continue;
            }
            eprintln!("         {}", row.title);
            match measure(bench, &mut modes, self.modes(), &row) {
                Ok((first, second)) => {
                    cold.push(GridRow { name: row.title.to_owned(), cells: first });
                    again.push(GridRow { name: row.title.to_owned(), cells: second });
                }
                Err(error) => {
                    let reason = format!("{}: {error}", row.title);
                    eprintln!("         FAILED: {reason}");
                    missing.push(Outcome::Failed(Failed { id: scenario.id, title: scenario.title, reason }));
                }
            }
        }
        let is_cold = |mode: &Mode| *mode != Mode::NativeDropped;
        let note = "CPU is what the daemon used for a GB, its kernel time included. Each cell: median (least to most).";
        let grid = |id: &str, title: &str, is_again: bool, rows: Vec<GridRow>| {
            let shown = self.modes().iter().filter(|mode| is_again || is_cold(mode));
            let columns = shown.map(|mode| mode.title(is_again).to_owned()).collect();
            let (id, title) = (format!("{}-{id}", scenario.id), format!("{}: {title}", scenario.title));
            let notes = vec![note.to_owned(), MAPS.to_owned()];
            Outcome::Grid(Grid { id, title, unit: Unit::GigabytesPerSecond, columns, rows, notes })
        };
        let mut outcomes = vec![grid("cold", "cold", false, cold), grid("again", "loaded again", true, again)];
        outcomes.extend(missing);
        Ok(outcomes)
    }
}

/// The cells of one reader, cold and again.
fn measure(bench: &mut Bench, modes: &mut Modes, shown: &[Mode], row: &Row) -> Result<(Vec<Cell>, Vec<Cell>)> {
    let lacking: Vec<Option<String>> = shown.iter().map(|mode| modes.lacks(bench, *mode, row)).collect();
    let mut passes: Vec<Vec<Pass>> = shown.iter().map(|_| Vec::new()).collect();
    for _ in 0..bench.pairs {
        for (index, mode) in shown.iter().enumerate() {
            if lacking[index].is_none() {
                passes[index].push(modes.pass(bench, *mode, row)?);
            }
        }
    }
    let cell = |index: usize, shots: Vec<Shot>| match &lacking[index] {
        Some(reason) => Cell::Missing { reason: reason.clone() },
        None => cell(&shots),
    };
    let with_cold = (0..shown.len()).filter(|index| shown[*index] != Mode::NativeDropped);
    let cold =
        with_cold.map(|index| cell(index, passes[index].iter().filter_map(|pass| pass.cold).collect())).collect();
    let again = (0..shown.len()).map(|index| cell(index, passes[index].iter().map(|pass| pass.again).collect()));
    Ok((cold, again.collect()))
}

fn cell(shots: &[Shot]) -> Cell {
    let speeds = shots.iter().map(|shot| shot.loaded.bytes as f64 / 1e9 / shot.loaded.time.as_secs_f64()).collect();
    let cpu: Option<f64> = shots.iter().map(|shot| shot.cpu_seconds).sum();
    Cell::measured(speeds, cpu, shots.iter().map(|shot| shot.loaded.bytes).sum())
}
