//! Names with wildcards: `*` stands for any text, `?` for one byte.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Matches whole names, byte by byte. A name without wildcards matches itself.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Pattern(String);

impl Pattern {
    pub fn new(text: impl Into<String>) -> Pattern {
        Pattern(text.into())
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    pub fn has_wildcards(&self) -> bool {
        self.0.contains(['*', '?'])
    }

    /// Takes time in the product of the lengths at most, whatever the pattern.
    pub fn matches(&self, name: &[u8]) -> bool {
        let pattern = self.0.as_bytes();
        let (mut at, mut place) = (0, 0);
        // Where the last star stands, and how much of the name it takes: one more each time that the rest does not fit.
        let mut star = None;
        while at < name.len() {
            match pattern.get(place) {
                Some(b'*') => {
                    star = Some((place, at));
                    place += 1;
                }
                Some(byte) if *byte == b'?' || *byte == name[at] => {
                    place += 1;
                    at += 1;
                }
                _ => {
                    let Some((after, taken)) = star else { return false };
                    star = Some((after, taken + 1));
                    place = after + 1;
                    at = taken + 1;
                }
            }
        }
        pattern[place..].iter().all(|byte| *byte == b'*')
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// As the words say, without cleverness.
    fn plainly(pattern: &[u8], name: &[u8]) -> bool {
        match (pattern, name) {
            ([], _) => name.is_empty(),
            ([b'*', rest @ ..], _) => (0..=name.len()).any(|taken| plainly(rest, &name[taken..])),
            ([first, rest @ ..], [byte, more @ ..]) => (*first == b'?' || first == byte) && plainly(rest, more),
            _ => false,
        }
    }

    #[test]
    fn names_of_tensors_and_files() {
        let matches = |pattern: &str, name: &str| Pattern::new(pattern).matches(name.as_bytes());
        assert!(matches("cond_stage_model.*", "cond_stage_model.transformer.text_model.weight"));
        assert!(!matches("cond_stage_model.*", "model.cond_stage_model.x"));
        assert!(matches("*.safetensors", ".safetensors") && matches("flux?.gguf", "flux1.gguf"));
        assert!(!matches("*.safetensors", "a.safetensors.part") && !matches("", "a") && matches("**", ""));
    }

    proptest! {
        #[test]
        fn the_quick_way_is_the_plain_way(pattern in "[ab*?]{0,8}", name in "[ab]{0,10}") {
            prop_assert_eq!(Pattern::new(&*pattern).matches(name.as_bytes()), plainly(pattern.as_bytes(), name.as_bytes()));
        }
    }
}
