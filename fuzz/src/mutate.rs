//! Small changes of known inputs, by a seed: what can be had of a fuzzing engine without one.

/// Numbers (splitmix64, Steele et al. 2014).
pub struct Random(pub u64);

impl Random {
    fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, end: usize) -> usize {
        (self.number() % end.max(1) as u64) as usize
    }
}

/// Lengths, offsets and counts at which something may overflow.
const EDGES: [u64; 12] = [
    0,
    1,
    0x7f,
    0xff,
    0xffff,
    0x7fff_ffff,
    0xffff_ffff,
    0x1_0000_0000,
    1 << 62,
    i64::MAX as u64,
    u64::MAX - 7,
    u64::MAX,
];

/// `input` with one to eight changes; `other` is another input of the same kind.
pub fn mutate(random: &mut Random, input: &[u8], other: &[u8]) -> Vec<u8> {
    let mut bytes = input.to_vec();
    for _ in 0..=random.below(8) {
        change(random, &mut bytes, other);
    }
    bytes.truncate(64 << 10);
    bytes
}

fn change(random: &mut Random, bytes: &mut Vec<u8>, other: &[u8]) {
    let at = random.below(bytes.len() + 1);
    match random.below(9) {
        0 if at < bytes.len() => bytes[at] ^= 1 << random.below(8),
        1 if at < bytes.len() => bytes[at] = random.below(256) as u8,
        2 => {
            let (edge, width) = (EDGES[random.below(EDGES.len())].to_le_bytes(), [1, 2, 4, 8][random.below(4)]);
            let end = bytes.len().min(at + width);
            bytes[at..end].copy_from_slice(&edge[..end - at]);
        }
        3 => drop(bytes.drain(at..)),
        4 => {
            let end = bytes.len().min(at + 1 + random.below(16));
            drop(bytes.drain(at..end));
        }
        5 => {
            let count = 1 + random.below(16);
            let byte = random.below(256) as u8;
            drop(bytes.splice(at..at, std::iter::repeat_n(byte, count)));
        }
        6 => {
            let from = random.below(other.len() + 1);
            let end = other.len().min(from + 1 + random.below(64));
            drop(bytes.splice(at..at, other[from..end].iter().copied()));
        }
        7 => {
            let end = bytes.len().min(at + 1 + random.below(64));
            let again = bytes[at..end].to_vec();
            drop(bytes.splice(at..at, again));
        }
        _ => {
            // A digit of a number in a text.
            let digit = b"0123456789-.e"[random.below(13)];
            if let Some(found) = bytes[at..].iter_mut().find(|byte| byte.is_ascii_digit()) {
                *found = digit;
            }
        }
    }
}
