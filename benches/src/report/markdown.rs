//! The results for people.

use std::fmt::Write;

use super::{Bar, Comparison, Figure, Outcome, Relation, Results, Unit};
use crate::measure::Spread;

pub fn render(results: &Results) -> String {
    let mut text = String::from("# weightfs against the plain folder\n\n");
    head(&mut text, results);
    comparisons(&mut text, &results.outcomes);
    figures(&mut text, &results.outcomes);
    notes(&mut text, &results.outcomes);
    text
}

fn head(text: &mut String, results: &Results) {
    let machine = &results.machine;
    let mut line = |name: &str, value: String| line(text, &format!("- {name}: {value}"));
    line("version", results.version.clone());
    line(
        "machine",
        format!("{}, {} cores, {:.0} GiB", machine.processor, machine.processors, gib(machine.memory_bytes)),
    );
    line("kernel", machine.kernel.clone());
    let storage = &machine.storage;
    let rotational = match storage.rotational {
        Some(true) => ", said to rotate",
        Some(false) => ", said not to rotate",
        None => "",
    };
    line("storage", format!("{} on {}{rotational}", storage.file_system, storage.device));
    if let Some(limit) = &machine.fuse_pages_limit {
        line("largest FUSE request", format!("{limit} pages"));
    }
    let load = |load: Option<f64>| load.map_or("unknown".to_owned(), |load| format!("{load:.2}"));
    line("load average", format!("{} before, {} at the end", load(results.load_before), load(results.load_after)));
    line("options of each mount", format!("`{}`", results.options.join(" ")));
    line("Python", results.python.clone().unwrap_or_else(|| "none".to_owned()));
    let sizes = &results.sizes;
    line(
        "library",
        format!(
            "models of {:.2} and {:.2} GiB, {} small files",
            gib(sizes.large),
            gib(sizes.medium),
            sizes.small_files
        ),
    );
    line(
        "method",
        format!(
            "{} pairs, native and mount in turn after one of each that is not counted; median (least to most); the \
             relation is the median of that of each pair",
            results.pairs
        ),
    );
    line("time taken", format!("{:.0} s", results.seconds));
    for note in &results.daemon_notes {
        line("the daemon says", note.clone());
    }
    text.push('\n');
}

fn comparisons(text: &mut String, outcomes: &[Outcome]) {
    let compared = |outcome: &Outcome| matches!(outcome, Outcome::Compared(_));
    if !outcomes.iter().any(compared) {
        return;
    }
    line(text, "| scenario | native | weightfs | relation | bar | daemon CPU s/GB |");
    line(text, "|---|---|---|---|---|---|");
    for outcome in outcomes {
        if let Outcome::Compared(comparison) = outcome {
            line(text, &row(comparison));
        }
    }
    text.push('\n');
}

fn row(comparison: &Comparison) -> String {
    let unit = comparison.unit;
    let relative = match comparison.relation {
        Relation::Ratio => format!("{} ×", spread(comparison.relative, 2)),
        Relation::Difference => format!("{} {} more", spread(comparison.relative, digits(unit)), unit.name()),
    };
    let (relation_unit, bar_digits) = match comparison.relation {
        Relation::Ratio => ("×", 2),
        Relation::Difference => (unit.name(), digits(unit)),
    };
    format!(
        "| {} | {} {name} | {} {name} | {relative} | {} | {} |",
        comparison.title,
        spread(comparison.native, digits(unit)),
        spread(comparison.mount, digits(unit)),
        bar_text(comparison.bar, comparison.holds, relation_unit, bar_digits),
        cpu(comparison),
        name = unit.name(),
    )
}

/// CPU of the daemon for what it served itself; for what it did not serve there are no gigabytes to divide by.
fn cpu(comparison: &Comparison) -> String {
    let seconds: f64 = comparison.work.iter().map(|work| work.cpu_seconds).sum();
    let served: u64 = comparison.work.iter().map(|work| work.served()).sum();
    match served {
        0 if comparison.work.is_empty() => "".to_owned(),
        0 => format!("{seconds:.2} s in all, nothing served"),
        _ => format!("{:.3}", seconds / (served as f64 / 1e9)),
    }
}

fn figures(text: &mut String, outcomes: &[Outcome]) {
    let figures: Vec<&Figure> = outcomes
        .iter()
        .filter_map(|outcome| match outcome {
            Outcome::Figure(figure) => Some(figure),
            _ => None,
        })
        .collect();
    if figures.is_empty() {
        return;
    }
    line(text, "| cost | value | bar |");
    line(text, "|---|---|---|");
    for Figure { title, unit, value, bar, holds, .. } in figures {
        let digits = digits(*unit);
        let bar = bar_text(*bar, *holds, unit.name(), digits);
        line(text, &format!("| {title} | {value:.digits$} {} | {bar} |", unit.name()));
    }
    text.push('\n');
}

fn notes(text: &mut String, outcomes: &[Outcome]) {
    for outcome in outcomes {
        match outcome {
            Outcome::Skipped(skipped) => line(text, &format!("- {}: skipped, {}", skipped.title, skipped.reason)),
            Outcome::Compared(comparison) => {
                for note in &comparison.notes {
                    line(text, &format!("- {}: {note}", comparison.title));
                }
            }
            Outcome::Figure(_) => {}
        }
    }
}

fn bar_text(bar: Option<Bar>, holds: Option<bool>, unit: &str, digits: usize) -> String {
    let (sign, value) = match bar {
        Some(Bar::AtLeast(value)) => ("≥", value),
        Some(Bar::AtMost(value)) => ("≤", value),
        None => return String::new(),
    };
    let verdict = if holds == Some(true) { "holds" } else { "**missed**" };
    format!("{sign} {value:.digits$} {unit}: {verdict}")
}

fn spread(spread: Spread, digits: usize) -> String {
    format!("{:.digits$} ({:.digits$}–{:.digits$})", spread.median, spread.min, spread.max)
}

fn digits(unit: Unit) -> usize {
    match unit {
        Unit::GigabytesPerSecond | Unit::Milliseconds | Unit::Seconds | Unit::Times => 2,
        Unit::Mebibytes => 1,
        Unit::CpuSecondsPerGigabyte => 3,
    }
}

fn gib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 30)
}

fn line(text: &mut String, line: &str) {
    writeln!(text, "{line}").expect("a String takes what is written to it");
}

#[cfg(test)]
mod tests {
    use super::super::Sample;
    use super::*;

    #[test]
    fn a_row_says_whether_the_bar_holds() {
        let pairs = [(Sample::of(2.0), Sample::of(1.0)), (Sample::of(2.0), Sample::of(3.0))];
        let of =
            |bar| row(&Comparison::of("i", "title", Unit::GigabytesPerSecond, (Relation::Ratio, Some(bar)), &pairs));
        let row = of(Bar::AtLeast(1.0));
        assert!(row.contains("| 1.00 (0.50–1.50) × | ≥ 1.00 ×: holds |"), "{row}");
        assert!(of(Bar::AtMost(0.9)).contains("≤ 0.90 ×: **missed**"));
    }
}
