//! Small files of each format, built byte by byte and independently of the parsers.

use super::cursor::ByteOrder;

/// Writes GGUF numbers in one byte order.
pub(super) struct GgufWriter {
    pub bytes: Vec<u8>,
    order: ByteOrder,
}

impl GgufWriter {
    pub fn new(order: ByteOrder, version: u32, tensors: u64, pairs: u64) -> Self {
        let mut writer = GgufWriter { bytes: b"GGUF".to_vec(), order };
        writer.u32(version);
        writer.u64(tensors);
        writer.u64(pairs);
        writer
    }

    pub fn u32(&mut self, value: u32) {
        let bytes = if self.order == ByteOrder::Little { value.to_le_bytes() } else { value.to_be_bytes() };
        self.bytes.extend(bytes);
    }

    pub fn u64(&mut self, value: u64) {
        let bytes = if self.order == ByteOrder::Little { value.to_le_bytes() } else { value.to_be_bytes() };
        self.bytes.extend(bytes);
    }

    pub fn string(&mut self, value: &str) {
        self.u64(value.len() as u64);
        self.bytes.extend(value.as_bytes());
    }

    pub fn pair_u32(&mut self, key: &str, value: u32) {
        self.string(key);
        self.u32(4);
        self.u32(value);
    }

    /// One pair of each metadata type, fixed and not, and arrays of strings and of arrays: 15 pairs.
    pub fn pairs_of_all_types(&mut self) {
        for (kind, width) in [(0, 1), (1, 1), (2, 2), (3, 2), (4, 4), (5, 4), (6, 4), (7, 1), (10, 8), (11, 8), (12, 8)]
        {
            self.string(&format!("key.{kind}"));
            self.u32(kind);
            self.bytes.extend(vec![0xff; width]);
        }
        self.string("a.string.of.17ch.");
        self.u32(8);
        self.string("GGUF");
        self.string("array.of.u16");
        self.u32(9);
        self.u32(2);
        self.u64(3);
        self.bytes.extend([1; 6]);
        self.string("tokens");
        self.u32(9);
        self.u32(8);
        self.u64(2);
        self.string("");
        self.string("token");
        self.string("nested");
        self.u32(9);
        self.u32(9);
        self.u64(2);
        for length in [0, 2] {
            self.u32(12);
            self.u64(length);
            self.bytes.extend(vec![7; 8 * length as usize]);
        }
    }

    pub fn tensor(&mut self, name: &str, shape: &[u64], kind: u32, offset: u64) {
        self.string(name);
        self.u32(shape.len() as u32);
        for dimension in shape {
            self.u64(*dimension);
        }
        self.u32(kind);
        self.u64(offset);
    }

    /// Pads to `alignment` and appends `data` bytes of tensor data.
    pub fn finish(mut self, alignment: usize, data: usize) -> Vec<u8> {
        let start = self.bytes.len().next_multiple_of(alignment);
        self.bytes.resize(start + data, 0xda);
        self.bytes
    }
}

/// A GGUF file with four tensors of 128, 36, 9 and 16 bytes, the third of a type that nobody knows, and with gaps.
pub(super) fn gguf(order: ByteOrder, version: u32, alignment: u32) -> Vec<u8> {
    let mut writer = GgufWriter::new(order, version, 4, 16);
    writer.pairs_of_all_types();
    writer.pair_u32("general.alignment", alignment);
    let step = u64::from(alignment).max(128);
    writer.tensor("unknown", &[3, 3], 999, 2 * step);
    writer.tensor("blk.0.ffn.weight", &[64], 2, step);
    writer.tensor("token_embd.weight", &[8, 2, 2], 0, 0);
    writer.tensor("last", &[8], 1, 2 * step + 9);
    writer.finish(alignment as usize, 2 * step as usize + 25)
}

/// How a zip is written.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum ZipKind {
    Plain,
    /// Sizes and offsets in 64 bit fields throughout, as `torch.save` writes large files.
    Wide,
}

/// A zip of stored members. Data starts at multiples of 64, by padding in the local headers only, as PyTorch has it.
pub(super) fn zip(kind: ZipKind, members: &[(&str, &[u8])]) -> Vec<u8> {
    let mut file = Vec::new();
    let mut directory = Vec::new();
    for (name, data) in members {
        let local = file.len() as u64;
        let unpadded = file.len() + 30 + name.len() + 4;
        let padding = unpadded.next_multiple_of(64) - unpadded;
        file.extend(b"PK\x03\x04");
        file.extend([0; 14]);
        file.extend((data.len() as u32).to_le_bytes());
        file.extend((data.len() as u32).to_le_bytes());
        file.extend((name.len() as u16).to_le_bytes());
        file.extend((padding as u16 + 4).to_le_bytes());
        file.extend(name.as_bytes());
        file.extend(b"FB");
        file.extend((padding as u16).to_le_bytes());
        file.extend(vec![b'Z'; padding]);
        file.extend(*data);

        let mut extra = b"XX\x02\x00??".to_vec();
        let length = data.len() as u64;
        let (length_32, local_32) = match kind {
            ZipKind::Plain => (length as u32, local as u32),
            ZipKind::Wide => {
                extra.extend(b"\x01\x00\x18\x00");
                extra.extend([length, length, local].iter().flat_map(|value| value.to_le_bytes()));
                (u32::MAX, u32::MAX)
            }
        };
        directory.extend(b"PK\x01\x02");
        directory.extend([0; 16]);
        directory.extend(length_32.to_le_bytes());
        directory.extend(length_32.to_le_bytes());
        directory.extend((name.len() as u16).to_le_bytes());
        directory.extend((extra.len() as u16).to_le_bytes());
        directory.extend([0; 10]);
        directory.extend(local_32.to_le_bytes());
        directory.extend(name.as_bytes());
        directory.extend(extra);
    }
    let start = file.len() as u64;
    let length = directory.len() as u64;
    let count = members.len() as u64;
    file.extend(directory);
    if kind == ZipKind::Wide {
        let end_64 = file.len() as u64;
        file.extend(b"PK\x06\x06");
        file.extend(44u64.to_le_bytes());
        file.extend([0; 12]);
        file.extend([count, count, length, start].iter().flat_map(|value| value.to_le_bytes()));
        file.extend(b"PK\x06\x07\x00\x00\x00\x00");
        file.extend(end_64.to_le_bytes());
        file.extend(1u32.to_le_bytes());
    }
    let wide = kind == ZipKind::Wide;
    let narrow = |value: u64| if wide { u32::MAX } else { value as u32 };
    let count = if wide { u16::MAX } else { count as u16 };
    file.extend(b"PK\x05\x06\x00\x00\x00\x00");
    file.extend(count.to_le_bytes());
    file.extend(count.to_le_bytes());
    file.extend(narrow(length).to_le_bytes());
    file.extend(narrow(start).to_le_bytes());
    file.extend([0; 2]);
    file
}

/// A safetensors file with this header and as many bytes of data.
pub(super) fn safetensors(header: &str, data: usize) -> Vec<u8> {
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header.as_bytes());
    file.resize(file.len() + data, 0xda);
    file
}
