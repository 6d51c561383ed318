//! Models of any size that take next to nothing of the disk: a header, and tensors of zeros that were never written.

use std::fs::File;
use std::io::Write;
use std::path::Path;

use crate::error::{Doing, Result};

/// The largest tensor.
const TENSOR: u64 = 64 << 20;

/// Writes a safetensors model whose tensors have `size` bytes together.
pub fn write(path: &Path, size: u64) -> Result<()> {
    let what = || format!("write {}", path.display());
    let tensors: serde_json::Map<String, serde_json::Value> = (0..size.div_ceil(TENSOR))
        .map(|index| {
            let (start, end) = (index * TENSOR, ((index + 1) * TENSOR).min(size));
            let tensor = serde_json::json!({"dtype": "U8", "shape": [end - start], "data_offsets": [start, end]});
            (format!("blocks.{index}.weight"), tensor)
        })
        .collect();
    let header = serde_json::to_vec(&tensors).doing(what)?;
    let mut file = File::create(path).doing(what)?;
    file.write_all(&(header.len() as u64).to_le_bytes()).doing(what)?;
    file.write_all(&header).doing(what)?;
    file.set_len(8 + header.len() as u64 + size).doing(what)
}

#[cfg(test)]
mod tests {
    use super::*;
    use safetensors::SafeTensors;

    #[test]
    fn a_sparse_model_is_a_model() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("m.safetensors");
        write(&path, TENSOR + 5).unwrap();
        let bytes = std::fs::read(&path).unwrap();
        let model = SafeTensors::deserialize(&bytes).unwrap();
        assert_eq!((model.len(), model.tensor("blocks.1.weight").unwrap().data().len()), (2, 5));
    }
}
