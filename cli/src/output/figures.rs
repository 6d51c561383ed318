//! Figures and names as people read them, in one form wherever they are shown.

use std::path::Path;

use weightfs::units::ByteSize;

/// Rounded down, so that 100 % is all of it. None of nothing.
pub fn percent(part: u64, whole: u64) -> Option<u128> {
    (u128::from(part) * 100).checked_div(u128::from(whole))
}

/// A time that has passed.
pub fn time(seconds: f64) -> String {
    match seconds {
        short if short < 120.0 => format!("{short:.0} s"),
        middle if middle < 7200.0 => format!("{:.0} min", middle / 60.0),
        long if long < 172_800.0 => format!("{:.0} h", long / 3600.0),
        days => format!("{:.0} d", days / 86_400.0),
    }
}

pub fn rate(bytes_per_second: u64) -> String {
    format!("{}/s", ByteSize(bytes_per_second))
}

pub fn files(count: u64) -> String {
    if count == 1 { "1 file".to_owned() } else { format!("{count} files") }
}

/// A daemon's words and the names of folders are not trusted with the terminal.
pub fn plain(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

pub fn shown(path: &Path) -> String {
    plain(&path.to_string_lossy())
}

/// The end of `text` in at most `width` characters: of a path that is the part that tells files apart.
pub fn tail(text: &str, width: usize) -> String {
    let count = text.chars().count();
    if count <= width {
        return text.to_owned();
    }
    let kept = width.saturating_sub(1);
    std::iter::once('…').chain(text.chars().skip(count - kept)).take(width).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_the_unit_that_fits() {
        let shown = [0.4, 119.0, 240.0, 7200.0, 172_800.0].map(time);
        assert_eq!(shown, ["0 s", "119 s", "4 min", "2 h", "2 d"]);
    }

    #[test]
    fn the_end_of_a_path_is_kept() {
        assert_eq!(tail("loras/a", 7), "loras/a");
        assert_eq!(tail("loras/a.b", 7), "…as/a.b");
        assert_eq!(tail("abc", 1), "…");
        assert_eq!(tail("abc", 0), "");
        assert_eq!(percent(1, 0), None);
        assert_eq!(percent(u64::MAX, u64::MAX), Some(100));
    }
}
