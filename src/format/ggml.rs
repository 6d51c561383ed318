//! The element types of ggml, as GGUF numbers them: `enum ggml_type` in
//! <https://github.com/ggml-org/llama.cpp/blob/master/ggml/include/ggml.h>, sizes as in `gguf-py/gguf/constants.py`.

/// A type stores elements in blocks.
pub(super) struct GgmlType {
    pub id: u32,
    pub name: &'static str,
    /// Elements per block.
    pub block: u64,
    /// Bytes per block.
    pub bytes: u64,
}

const fn ggml(id: u32, name: &'static str, block: u64, bytes: u64) -> GgmlType {
    GgmlType { id, name, block, bytes }
}

/// Numbers that are not here were withdrawn (4, 5, 31-33, 36-38) or belong to forks, which give them several meanings.
const TYPES: [GgmlType; 34] = [
    ggml(0, "F32", 1, 4),
    ggml(1, "F16", 1, 2),
    ggml(2, "Q4_0", 32, 18),
    ggml(3, "Q4_1", 32, 20),
    ggml(6, "Q5_0", 32, 22),
    ggml(7, "Q5_1", 32, 24),
    ggml(8, "Q8_0", 32, 34),
    ggml(9, "Q8_1", 32, 40),
    ggml(10, "Q2_K", 256, 84),
    ggml(11, "Q3_K", 256, 110),
    ggml(12, "Q4_K", 256, 144),
    ggml(13, "Q5_K", 256, 176),
    ggml(14, "Q6_K", 256, 210),
    ggml(15, "Q8_K", 256, 292),
    ggml(16, "IQ2_XXS", 256, 66),
    ggml(17, "IQ2_XS", 256, 74),
    ggml(18, "IQ3_XXS", 256, 98),
    ggml(19, "IQ1_S", 256, 50),
    ggml(20, "IQ4_NL", 32, 18),
    ggml(21, "IQ3_S", 256, 110),
    ggml(22, "IQ2_S", 256, 82),
    ggml(23, "IQ4_XS", 256, 136),
    ggml(24, "I8", 1, 1),
    ggml(25, "I16", 1, 2),
    ggml(26, "I32", 1, 4),
    ggml(27, "I64", 1, 8),
    ggml(28, "F64", 1, 8),
    ggml(29, "IQ1_M", 256, 56),
    ggml(30, "BF16", 1, 2),
    ggml(34, "TQ1_0", 256, 54),
    ggml(35, "TQ2_0", 256, 66),
    ggml(39, "MXFP4", 32, 17),
    ggml(40, "NVFP4", 64, 36),
    ggml(41, "Q1_0", 128, 18),
];

pub(super) fn by_id(id: u32) -> Option<&'static GgmlType> {
    TYPES.binary_search_by_key(&id, |known| known.id).ok().map(|index| &TYPES[index])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_are_found_by_number() {
        assert!(TYPES.is_sorted_by(|a, b| a.id < b.id));
        for known in &TYPES {
            assert_eq!(by_id(known.id).map(|found| found.name), Some(known.name));
        }
        for unknown in [4, 5, 31, 38, 43, u32::MAX] {
            assert!(by_id(unknown).is_none(), "{unknown}");
        }
    }
}
