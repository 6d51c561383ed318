//! The table and the plot for the terminal.

use std::fmt::Write;

use weightfs::trace::{Outcome, Row};
use weightfs::units::ByteSize;

/// Characters of the longest bar.
const BAR: f64 = 40.0;

/// A table of what each policy comes to at each budget, and bars of the hit ratio of the first policy.
pub fn draw(used: u64, names: &[String], rows: &[Row]) -> String {
    let mut text = format!("{} are used at all.\n\n", ByteSize(used));
    let mut header = format!("{:>11}  {:>22}", "RAM", "optimum");
    names.iter().for_each(|name| _ = write!(header, "  {name:>22}"));
    // Writing to a String cannot fail.
    let _ = writeln!(text, "{header}");
    for row in rows {
        let _ = write!(text, "{:>11}  {:>22}", ByteSize(row.budget).to_string(), cell(&row.optimum));
        row.policies.iter().for_each(|outcome| _ = write!(text, "  {:>22}", cell(outcome)));
        text.push('\n');
    }
    let _ = writeln!(text, "\nHits, and what they save of reading the source. █ {}, ░ optimum:", names[0]);
    for row in rows {
        let cells = |outcome: &Outcome| (outcome.hit_ratio() * BAR).round() as usize;
        let (policy, optimum) = (cells(&row.policies[0]), cells(&row.optimum));
        let bar = "█".repeat(policy) + &"░".repeat(optimum.saturating_sub(policy));
        let _ = writeln!(text, "{:>11}  {bar}", ByteSize(row.budget).to_string());
    }
    text
}

fn cell(outcome: &Outcome) -> String {
    format!("{:.1} % {:>9.1} s", outcome.hit_ratio() * 100.0, outcome.seconds_saved)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_and_bars() {
        let outcome = |hit| Outcome { hit, missed: 100 - hit, seconds_saved: hit as f64, ..Outcome::default() };
        let row = |budget, optimum, auto| Row { budget, optimum: outcome(optimum), policies: vec![outcome(auto)] };
        let expected = "\
4.0 GiB are used at all.

        RAM                 optimum                    auto
    1.0 GiB       50.0 %      50.0 s       25.0 %      25.0 s
    2.0 GiB      100.0 %     100.0 s      100.0 %     100.0 s

Hits, and what they save of reading the source. █ auto, ░ optimum:
    1.0 GiB  ██████████░░░░░░░░░░
    2.0 GiB  ████████████████████████████████████████
";
        assert_eq!(draw(4 << 30, &["auto".into()], &[row(1 << 30, 50, 25), row(2 << 30, 100, 100)]), expected);
    }
}
