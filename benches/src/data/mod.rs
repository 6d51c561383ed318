//! The library that is measured: made once into a directory, and found there again.

mod gguf;
mod model;
pub mod sparse;

use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

pub use model::execution_order;

use crate::error::{Doing, Result};

/// Longer than a file must have been left alone for to be kept in RAM.
pub const SETTLE: Duration = Duration::from_secs(3);

const MANIFEST: &str = "made.json";

/// Moves with what is written below, so that a library of another version is not taken for this one.
const LAYOUT: u32 = 4;

/// Files in one folder of the small ones.
const FOLDER: usize = 100;

/// How much of everything. Bytes and counts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sizes {
    pub large: u64,
    pub medium: u64,
    /// Of each of three that are read in turn.
    pub turn: u64,
    /// Of those that every reader loads in every way.
    pub table: u64,
    pub first_byte_files: usize,
    pub first_byte_size: u64,
    pub small_files: usize,
}

impl Sizes {
    pub const FULL: Self = Self {
        large: 800 << 20,
        medium: 512 << 20,
        turn: 200 << 20,
        table: 128 << 20,
        first_byte_files: 64,
        first_byte_size: 4 << 20,
        small_files: 20_000,
    };
    pub const QUICK: Self = Self {
        large: 192 << 20,
        medium: 96 << 20,
        turn: 96 << 20,
        table: 64 << 20,
        first_byte_files: 16,
        first_byte_size: 4 << 20,
        small_files: 1_000,
    };
}

/// What a library says of itself once it is complete.
#[derive(PartialEq, Eq, Serialize, Deserialize)]
struct Made {
    layout: u32,
    sizes: Sizes,
}

/// One of the large files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Model {
    Large,
    Medium,
}

impl Model {
    fn name(self) -> &'static str {
        match self {
            Model::Large => "models/large.safetensors",
            Model::Medium => "models/medium.safetensors",
        }
    }
}

/// How a model is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    Safetensors,
    Gguf,
    /// Written by torch itself, where there is one.
    Torch,
}

#[derive(Debug)]
pub struct Library {
    /// The folder that is mounted.
    pub folder: PathBuf,
    pub sizes: Sizes,
}

impl Library {
    /// Uses what is in `folder` if that was made with the same sizes, and makes it anew if not.
    pub fn make(folder: &Path, sizes: &Sizes) -> Result<Self> {
        let library = Self { folder: folder.to_owned(), sizes: sizes.clone() };
        let manifest = folder.join(MANIFEST);
        let made = fs::read(&manifest).ok().and_then(|text| serde_json::from_slice::<Made>(&text).ok());
        let wanted = Made { layout: LAYOUT, sizes: sizes.clone() };
        if made.as_ref() == Some(&wanted) {
            return Ok(library);
        }
        eprintln!("making the library in {}", folder.display());
        if folder.exists() {
            fs::remove_dir_all(folder).doing(|| format!("remove {}", folder.display()))?;
        }
        library.write()?;
        let text = serde_json::to_vec(&wanted).doing(|| "describe the library".to_owned())?;
        fs::write(&manifest, text).doing(|| format!("write {}", manifest.display()))?;
        rustix::fs::sync();
        std::thread::sleep(SETTLE);
        Ok(library)
    }

    fn write(&self) -> Result<()> {
        for (seed, name, size) in
            [(1, Model::Large.name(), self.sizes.large), (2, Model::Medium.name(), self.sizes.medium)]
        {
            model::write(&folder_for(&self.folder.join(name))?, size, seed)?;
        }
        model::write(&folder_for(&self.table(&self.folder, Format::Safetensors))?, self.sizes.table, 2_000_000)?;
        gguf::write(&folder_for(&self.table(&self.folder, Format::Gguf))?, self.sizes.table, 2_000_001)?;
        for (seed, path) in (1_000_000..).zip(self.turns(&self.folder)) {
            model::write(&folder_for(&path)?, self.sizes.turn, seed)?;
        }
        for (seed, path) in (3..).zip(self.first_byte_files(&self.folder)) {
            model::write(&folder_for(&path)?, self.sizes.first_byte_size, seed)?;
        }
        for index in 0..self.sizes.small_files {
            let path = self.folder.join(format!("small/{:04}/{index:06}.json", index / FOLDER));
            let text = format!("{{\"name\": \"model {index}\", \"base\": \"none\"}}\n");
            fs::write(folder_for(&path)?, text).doing(|| format!("write {}", path.display()))?;
        }
        Ok(())
    }

    /// A model, by its path in the library or in a mount of it.
    pub fn model(&self, root: &Path, model: Model) -> PathBuf {
        root.join(model.name())
    }

    /// A model of the size that every reader loads.
    pub fn table(&self, root: &Path, format: Format) -> PathBuf {
        root.join("table").join(match format {
            Format::Safetensors => "model.safetensors",
            Format::Gguf => "model.gguf",
            Format::Torch => "model.pt",
        })
    }

    /// Models of one size, to be read in turn.
    pub fn turns(&self, root: &Path) -> Vec<PathBuf> {
        (0..3).map(|index| root.join(format!("turns/{index}.safetensors"))).collect()
    }

    /// Files to open once each.
    pub fn first_byte_files(&self, root: &Path) -> Vec<PathBuf> {
        (0..self.sizes.first_byte_files).map(|index| root.join(format!("many/{index:04}.safetensors"))).collect()
    }

    /// The folder to walk over.
    pub fn small(&self, root: &Path) -> PathBuf {
        root.join("small")
    }

    /// Where the tensors of a model lie, in the order in which a forward pass wants them.
    pub fn tensors(&self, model: Model) -> Result<Vec<Range<u64>>> {
        execution_order(&self.folder.join(model.name()))
    }

    pub fn remove(&self) -> Result<()> {
        fs::remove_dir_all(&self.folder).doing(|| format!("remove {}", self.folder.display()))
    }
}

fn folder_for(path: &Path) -> Result<PathBuf> {
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent).doing(|| format!("make {}", parent.display()))?;
    }
    Ok(path.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_is_found_again_and_made_anew_for_other_sizes() {
        let place = tempfile::tempdir().unwrap();
        let folder = place.path().join("library");
        let sizes = Sizes {
            large: 8 << 20,
            medium: 4 << 20,
            turn: 2 << 20,
            table: 2 << 20,
            first_byte_files: 2,
            first_byte_size: 2 << 20,
            small_files: 101,
        };
        let library = Library::make(&folder, &sizes).unwrap();
        let large = library.model(&folder, Model::Large);
        let size = fs::metadata(&large).unwrap().len();
        assert!(size.abs_diff(sizes.large) < sizes.large / 4, "{size}");
        assert!(fs::read_dir(library.small(&folder)).unwrap().count() == 2);
        let changed = |path| fs::metadata(path).unwrap().modified().unwrap();
        let before = changed(&large);
        Library::make(&folder, &sizes).unwrap();
        assert_eq!(changed(&large), before);
        Library::make(&folder, &Sizes { small_files: 1, ..sizes }).unwrap();
        assert_ne!(changed(&large), before);
        library.remove().unwrap();
        assert!(!folder.exists());
    }
}
