//! Bars of text: how much of something is what.

/// Stands for bytes that are in RAM.
pub const RESIDENT: char = '█';
/// For bytes that are promised to stay.
pub const PINNED: char = '▓';
/// For bytes that only programs hold.
pub const HELD: char = '▒';
/// For bytes on their way.
pub const FILLING: char = '▒';
/// For the rest.
pub const EMPTY: char = '░';

/// How many of `width` cells `part` of `whole` takes, rounded down; one at least where there is anything.
pub fn cells(part: u64, whole: u64, width: u64) -> u64 {
    match whole {
        0 => 0,
        _ if part == 0 => 0,
        whole => ((u128::from(part.min(whole)) * u128::from(width) / u128::from(whole)) as u64).max(1),
    }
}

/// `width` cells: each part of `whole` in its own character, in order, and then emptiness.
pub fn bar(parts: &[(u64, char)], whole: u64, width: u64) -> String {
    let mut sum = 0u64;
    let ends: Vec<(u64, char)> = parts
        .iter()
        .map(|(bytes, mark)| {
            sum = sum.saturating_add(*bytes);
            (if *bytes == 0 { 0 } else { cells(sum, whole, width) }, *mark)
        })
        .collect();
    (0..width).map(|cell| ends.iter().find(|(end, _)| cell < *end).map_or(EMPTY, |(_, mark)| *mark)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_follow_each_other() {
        assert_eq!(bar(&[(25, PINNED), (50, RESIDENT)], 100, 8), "▓▓████░░");
        assert_eq!(bar(&[(0, PINNED), (100, RESIDENT)], 100, 4), "████");
        assert_eq!(bar(&[(1, RESIDENT)], 1000, 4), "█░░░");
        assert_eq!(bar(&[(0, RESIDENT)], 1000, 4), "░░░░");
        assert_eq!(bar(&[(5, RESIDENT)], 0, 4), "░░░░");
        assert_eq!(bar(&[(u64::MAX, RESIDENT), (u64::MAX, HELD)], u64::MAX, 2), "██");
    }

    #[test]
    fn all_but_a_little_is_not_all() {
        assert_eq!(bar(&[(99, RESIDENT)], 100, 10), "█████████░");
    }
}
