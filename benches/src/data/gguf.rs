//! A model as llama.cpp keeps it: GGUF version 3 with tensors of half precision.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use super::model::next;
use crate::error::{Doing, Result};

const VERSION: u32 = 3;
const STRING: u32 = 8;
const F16: u32 = 1;
const ALIGNMENT: u64 = 32;

/// Columns of a tensor, of two bytes each.
const WIDTH: u64 = 2048;
const TENSOR: u64 = 16 << 20;

/// Writes a model of about `size` bytes.
pub fn write(path: &Path, size: u64, seed: u64) -> Result<()> {
    let what = || format!("write {}", path.display());
    let count = (size / TENSOR).max(1);
    let mut header = Vec::new();
    header.extend_from_slice(b"GGUF");
    header.extend_from_slice(&VERSION.to_le_bytes());
    header.extend_from_slice(&count.to_le_bytes());
    header.extend_from_slice(&1u64.to_le_bytes());
    string(&mut header, "general.architecture");
    header.extend_from_slice(&STRING.to_le_bytes());
    string(&mut header, "llama");
    for index in 0..count {
        string(&mut header, &format!("blk.{index}.ffn_up.weight"));
        header.extend_from_slice(&2u32.to_le_bytes());
        header.extend_from_slice(&WIDTH.to_le_bytes());
        header.extend_from_slice(&(TENSOR / 2 / WIDTH).to_le_bytes());
        header.extend_from_slice(&F16.to_le_bytes());
        header.extend_from_slice(&(index * TENSOR).to_le_bytes());
    }
    header.resize(header.len().next_multiple_of(ALIGNMENT as usize), 0);
    let mut file = BufWriter::with_capacity(1 << 20, File::create(path).doing(what)?);
    file.write_all(&header).doing(what)?;
    let mut state = seed;
    for _ in 0..count * TENSOR / 8 {
        file.write_all(&next(&mut state).to_le_bytes()).doing(what)?;
    }
    file.flush().doing(what)
}

fn string(into: &mut Vec<u8>, text: &str) {
    into.extend_from_slice(&(text.len() as u64).to_le_bytes());
    into.extend_from_slice(text.as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use weightfs::format::{Format, read};

    #[test]
    fn it_is_what_it_says() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("m.gguf");
        write(&path, 2 * TENSOR, 1).unwrap();
        let bytes = std::fs::read(&path).unwrap();
        let map = read(&bytes.as_slice()).unwrap();
        assert_eq!((map.format(), map.tensors().len(), map.data_bytes()), (Format::Gguf, 2, 2 * TENSOR));
    }
}
