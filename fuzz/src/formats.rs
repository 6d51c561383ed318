//! Headers of model files.

use weightfs::format::{self, MAX_TENSORS, TensorMap};

/// Whatever the file says: tensors lie in it, in order, and do not overlap; memory stays in proportion.
fn is_sound(map: &TensorMap, bytes: &[u8]) {
    assert_eq!(map.size(), bytes.len() as u64);
    assert!(map.header().end <= map.size());
    assert!(map.tensors().len() <= MAX_TENSORS);
    let mut before = 0;
    for (index, tensor) in map.tensors().iter().enumerate() {
        assert!(before <= tensor.bytes.start && tensor.bytes.start <= tensor.bytes.end, "{:?}", tensor.bytes);
        before = tensor.bytes.end;
        if !tensor.bytes.is_empty() {
            assert_eq!(map.at(tensor.bytes.start), Some(index));
        }
    }
    assert!(before <= map.size());
    assert!(map.heap_bytes() <= 4096 + 64 * bytes.len(), "{} bytes for {}", map.heap_bytes(), bytes.len());
}

fn read(bytes: &[u8]) {
    if let Ok(map) = format::read(&bytes) {
        is_sound(&map, bytes);
    }
}

pub fn safetensors(bytes: &[u8]) {
    read(bytes);
    // Any text as a header of the length that it has.
    let whole = [&(bytes.len() as u64).to_le_bytes(), bytes, &[0; 256]].concat();
    read(&whole);
}

pub fn gguf(bytes: &[u8]) {
    read(&[b"GGUF", bytes].concat());
}

pub fn torch_zip(bytes: &[u8]) {
    read(&[b"PK\x03\x04", bytes].concat());
}

pub fn shard_index(bytes: &[u8]) {
    let Ok(index) = format::read_shard_index(&bytes) else { return };
    assert!(index.files().is_sorted());
    for file in index.files() {
        assert!(!file.is_empty() && !file.contains('/') && **file != *"." && **file != *"..", "{file} leads elsewhere");
    }
    for (tensor, file) in index.tensors() {
        assert_eq!(index.file_of(tensor), Some(file));
    }
}
