//! The index of a model that is split over several files: `model.safetensors.index.json` and its like.

use std::collections::HashMap;
use std::fmt;

use serde::Deserialize;
use serde::de::{self, Deserializer, MapAccess, Visitor};

use super::cursor::Cursor;
use super::error::{FormatError, TensorFault};
use super::{Bytes, MAX_HEADER, MAX_NAME, MAX_TENSORS};

const NAME: &str = "shard index";

/// Which shard file holds which tensor. Shard files lie in the index's own directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShardIndex {
    /// Sorted.
    files: Box<[Box<str>]>,
    /// Sorted by tensor name; the number is an index into `files`.
    tensors: Box<[(Box<str>, u32)]>,
}

impl ShardIndex {
    /// The names of the shard files, sorted, each once.
    pub fn files(&self) -> &[Box<str>] {
        &self.files
    }

    /// The name of the file that holds this tensor.
    pub fn file_of(&self, tensor: &str) -> Option<&str> {
        let index = self.tensors.binary_search_by(|(name, _)| (**name).cmp(tensor)).ok()?;
        Some(&self.files[self.tensors[index].1 as usize])
    }

    /// The tensors in the order of their names, each with the name of its file.
    pub fn tensors(&self) -> impl ExactSizeIterator<Item = (&str, &str)> {
        self.tensors.iter().map(|(name, file)| (&**name, &*self.files[*file as usize]))
    }
}

/// Whether a file of this name is a shard index.
pub fn is_shard_index_name(file_name: &str) -> bool {
    file_name.ends_with(".safetensors.index.json") || file_name.ends_with(".bin.index.json")
}

/// Reads a shard index. A file name that leads out of the directory is an error.
pub fn read_shard_index(source: &dyn Bytes) -> Result<ShardIndex, FormatError> {
    let size = source.size();
    if size > MAX_HEADER {
        return Err(FormatError::TooLarge { format: NAME, limit: MAX_HEADER, unit: "bytes" });
    }
    let json = serde_json::from_reader::<_, Document>(Cursor::new(source, 0..size, NAME));
    let WeightMap { files, mut tensors } = json
        .map_err(|error| match error.io_error_kind() {
            Some(kind) => FormatError::Read { offset: 0, length: size, source: kind.into() },
            None => FormatError::malformed(NAME, error.to_string()),
        })?
        .weight_map;
    let mut sorted: Vec<(Box<str>, u32)> = files.into_iter().collect();
    sorted.sort_unstable();
    let mut rank = vec![0; sorted.len()];
    for (place, (_, number)) in sorted.iter().enumerate() {
        rank[*number as usize] = place as u32;
    }
    tensors.sort_unstable();
    for pair in tensors.windows(2) {
        if pair[0].0 == pair[1].0 {
            return Err(FormatError::tensor(NAME, &pair[0].0, TensorFault::NamedTwice));
        }
    }
    for (name, file) in &mut tensors {
        *file = rank[*file as usize];
        if !is_plain(&sorted[*file as usize].0) {
            return Err(FormatError::tensor(NAME, name, TensorFault::BadFileName));
        }
    }
    Ok(ShardIndex { files: sorted.into_iter().map(|(name, _)| name).collect(), tensors: tensors.into() })
}

fn is_plain(name: &str) -> bool {
    !matches!(name, "" | "." | "..") && name.len() <= 255 && !name.contains(['/', '\\', '\0'])
}

#[derive(Deserialize)]
struct Document {
    weight_map: WeightMap,
}

/// File names are numbered as they come up.
struct WeightMap {
    files: HashMap<Box<str>, u32>,
    tensors: Vec<(Box<str>, u32)>,
}

impl<'de> Deserialize<'de> for WeightMap {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct WeightMapVisitor;

        impl<'de> Visitor<'de> for WeightMapVisitor {
            type Value = WeightMap;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of tensor names and file names")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<WeightMap, A::Error> {
                let mut result = WeightMap { files: HashMap::new(), tensors: Vec::new() };
                while let Some((tensor, file)) = map.next_entry::<Box<str>, Box<str>>()? {
                    if tensor.len() as u64 > MAX_NAME {
                        return Err(de::Error::custom(format_args!("a name of more than {MAX_NAME} bytes")));
                    }
                    if result.tensors.len() == MAX_TENSORS {
                        return Err(de::Error::custom(format_args!("more than {MAX_TENSORS} tensors")));
                    }
                    let next = result.files.len() as u32;
                    let number = *result.files.entry(file).or_insert(next);
                    result.tensors.push((tensor, number));
                }
                Ok(result)
            }
        }
        deserializer.deserialize_map(WeightMapVisitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(json: &str) -> Result<ShardIndex, FormatError> {
        read_shard_index(&json.as_bytes())
    }

    #[test]
    fn tensors_are_found_in_their_files() {
        let index = read(
            r#"{"metadata": {"total_size": 7, "more": [[{}]]}, "weight_map": {
                "b": "m-2.safetensors", "a": "m-1.safetensors", "c": "m-2.safetensors"}}"#,
        )
        .unwrap();
        assert_eq!(index.files(), ["m-1.safetensors".into(), "m-2.safetensors".into()]);
        let pairs: Vec<_> = index.tensors().collect();
        assert_eq!(pairs, [("a", "m-1.safetensors"), ("b", "m-2.safetensors"), ("c", "m-2.safetensors")]);
        assert_eq!(index.file_of("c"), Some("m-2.safetensors"));
        assert_eq!(index.file_of("d"), None);
    }

    #[test]
    fn names_that_lead_elsewhere_are_refused() {
        for name in ["../x", "/etc/passwd", "a/b", "..", ".", "", r"a\\b", r"a\u0000"] {
            let error = read(&format!(r#"{{"weight_map": {{"t": "{name}"}}}}"#)).unwrap_err();
            let expected = matches!(error, FormatError::Tensor { fault: TensorFault::BadFileName, .. });
            assert!(expected, "{name}: {error}");
        }
        read(r#"{"weight_map": {"t": "a..b"}}"#).unwrap();
    }

    #[test]
    fn what_is_no_index_is_refused() {
        let twice = r#"{"weight_map": {"t": "a", "t": "b"}}"#;
        let deep = format!(r#"{{"weight_map": {}1{}}}"#, "[".repeat(100_000), "]".repeat(100_000));
        for json in ["", "{}", "[]", r#"{"weight_map": {"t": 1}}"#, r#"{"weight_map": {}} x"#, twice, &deep] {
            assert!(read(json).is_err(), "{}", &json[..json.len().min(80)]);
        }
    }

    #[test]
    fn index_files_are_known_by_name() {
        assert!(is_shard_index_name("model.safetensors.index.json"));
        assert!(is_shard_index_name("diffusion_pytorch_model.fp16.safetensors.index.json"));
        assert!(is_shard_index_name("pytorch_model.bin.index.json"));
        assert!(!is_shard_index_name("model_index.json"));
    }
}
