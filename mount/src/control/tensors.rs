//! The tensors of a file, one by one, in groups and in components, and what of them is in RAM.

use std::collections::HashMap;
use std::ops::Range;
use std::path::Path;

use weightfs::control::{ComponentStatus, ControlError, GroupStatus, TensorStatus, Tensors};
use weightfs::format::{Component, Tensor, TensorMap, component};
use weightfs::store::bytes_within;

use super::Control;
use super::files::format_name;
use super::rights::Peer;

/// Tensors and groups that an answer has at most: an answer stays within some megabytes.
const MOST_TENSORS: usize = 20_000;
const MOST_GROUPS: usize = 5_000;

/// What a tensor adds to its group.
struct Count {
    size: u64,
    resident: u64,
    pinned: u64,
}

impl Control {
    pub fn tensors(&self, peer: &Peer, path: &Path) -> Result<Tensors, ControlError> {
        self.must_read(peer, path)?;
        let opened = self.places.open_to_keep(path)?;
        let generation = &opened.generation;
        let map = self.store.tensor_map(generation);
        let pinned = self.store.pinned(generation);
        let count = |tensor: &Tensor| Count {
            size: tensor.bytes.end - tensor.bytes.start,
            resident: generation.resident_within(&tensor.bytes),
            pinned: bytes_within(&tensor.bytes, generation.size, &pinned),
        };
        let (mut groups, mut components) = (Groups::default(), Vec::new());
        let mut tensors = Vec::new();
        for tensor in map.tensors() {
            let of_it = count(tensor);
            groups.add(group_of(&tensor.name), &of_it);
            add_to_component(&mut components, component(&tensor.name), &of_it);
            if tensors.len() < MOST_TENSORS {
                tensors.push(TensorStatus {
                    name: tensor.name.to_string(),
                    dtype: tensor.dtype.to_string(),
                    shape: tensor.shape.to_vec(),
                    offset: tensor.bytes.start,
                    size_bytes: of_it.size,
                    resident_bytes: of_it.resident,
                    pinned: of_it.size > 0 && of_it.pinned == of_it.size,
                });
            }
        }
        for part in &mut components {
            part.pattern = pattern_of(&map, part.name);
        }
        let header = map.header();
        Ok(Tensors {
            path: path.to_owned(),
            size_bytes: generation.size,
            header_bytes: header.end - header.start,
            format: format_name(map.format()),
            groups: groups.list,
            components,
            omitted: (map.tensors().len() - tensors.len()) as u64,
            tensors,
        })
    }

    /// Where the tensors of a part of a file lie. None where it has none.
    pub(super) fn component_ranges(map: &TensorMap, wanted: Component) -> Vec<Range<u64>> {
        let of_it = map.tensors().iter().filter(|tensor| component(&tensor.name) == wanted);
        of_it.map(|tensor| tensor.bytes.clone()).collect()
    }
}

/// The name that a tensor shares with its neighbours: up to the first number among its parts, that included; without
/// one, all but the last part.
fn group_of(name: &str) -> &str {
    let mut end = 0;
    for part in name.split('.') {
        let is_number = !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
        end += part.len();
        if is_number {
            return &name[..end];
        }
        end += 1;
    }
    name.rsplit_once('.').map_or(name, |(group, _)| group)
}

/// In the order in which they come first.
#[derive(Default)]
struct Groups {
    list: Vec<GroupStatus>,
    places: HashMap<String, usize>,
}

impl Groups {
    fn add(&mut self, name: &str, count: &Count) {
        let name = if self.list.len() < MOST_GROUPS || self.places.contains_key(name) { name } else { "others" };
        let place = *self.places.entry(name.to_owned()).or_insert(self.list.len());
        if place == self.list.len() {
            let name = name.to_owned();
            self.list.push(GroupStatus { name, tensors: 0, size_bytes: 0, resident_bytes: 0, pinned_bytes: 0 });
        }
        let group = &mut self.list[place];
        group.tensors += 1;
        group.size_bytes += count.size;
        group.resident_bytes += count.resident;
        group.pinned_bytes += count.pinned;
    }
}

fn add_to_component(components: &mut Vec<ComponentStatus>, name: Component, count: &Count) {
    let place = components.iter().position(|part| part.name == name).unwrap_or_else(|| {
        components.push(ComponentStatus { name, tensors: 0, size_bytes: 0, resident_bytes: 0, pattern: None });
        components.len() - 1
    });
    let part = &mut components[place];
    part.tensors += 1;
    part.size_bytes += count.size;
    part.resident_bytes += count.resident;
}

/// The longest beginning that all names of a part share and no other name has.
fn pattern_of(map: &TensorMap, part: Component) -> Option<String> {
    let (inside, outside): (Vec<_>, Vec<_>) =
        map.tensors().iter().map(|tensor| &*tensor.name).partition(|name| component(name) == part);
    let shared = inside.iter().copied().reduce(|shared, name| {
        let same = shared.char_indices().zip(name.chars()).find(|((_, a), b)| a != b);
        let end = same.map_or(shared.len().min(name.len()), |((end, _), _)| end);
        &shared[..end]
    })?;
    // Whole parts of names, which people can read.
    let shared = if inside.len() > 1 { &shared[..shared.rfind('.').map_or(0, |dot| dot + 1)] } else { shared };
    let exact = !outside.iter().any(|name| name.starts_with(shared)) && !shared.contains(['*', '?']);
    exact.then(|| format!("{shared}*"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_end_at_the_first_number() {
        assert_eq!(group_of("model.diffusion_model.input_blocks.1.0.weight"), "model.diffusion_model.input_blocks.1");
        assert_eq!(group_of("double_blocks.12.img.weight"), "double_blocks.12");
        assert_eq!(group_of("first_stage_model.decoder.conv_in.bias"), "first_stage_model.decoder.conv_in");
        assert_eq!([group_of("weight"), group_of(""), group_of("7"), group_of("a..b")], ["weight", "", "7", "a."]);
    }

    #[test]
    fn groups_are_bounded_and_count_everything() {
        let mut groups = Groups::default();
        for number in 0..MOST_GROUPS + 10 {
            groups.add(&format!("blocks.{number}"), &Count { size: 2, resident: 1, pinned: 0 });
        }
        assert_eq!((groups.list.len(), groups.list.last().unwrap().name.as_str()), (MOST_GROUPS + 1, "others"));
        assert_eq!(groups.list.iter().map(|group| group.size_bytes).sum::<u64>(), 2 * (MOST_GROUPS as u64 + 10));
    }
}
