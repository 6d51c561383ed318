//! The results for people.

use std::fmt::Write;

use super::svg::{self, Curve, Group};
use super::{Bar, Cell, Comparison, Figure, Grid, Growth, Outcome, Relation, Results};
use crate::measure::Spread;

/// Where the plots lie, seen from the report.
pub const PLOTS: &str = "plots";

/// The report, and its plots by the names of their files.
pub struct Rendered {
    pub text: String,
    pub plots: Vec<(String, String)>,
}

pub fn render(results: &Results) -> Rendered {
    let mut text = String::from("# weightfs against the plain folder\n\n");
    let mut plots = Vec::new();
    if results.is_quick {
        line(
            &mut text,
            "> **Quick: small files and few pairs. This shows that everything runs, and says nothing of speed.**\n",
        );
    }
    head(&mut text, results);
    failures(&mut text, &results.outcomes);
    bars(&mut text, &results.outcomes);
    comparisons(&mut text, &results.outcomes);
    figures(&mut text, &results.outcomes);
    loops(&mut text, &results.outcomes, &mut plots);
    for outcome in &results.outcomes {
        match outcome {
            Outcome::Grid(found) => grid(&mut text, found, &mut plots),
            Outcome::Growth(found) => growth(&mut text, found, &mut plots),
            Outcome::Profile { title, text: profile, .. } => {
                line(&mut text, &format!("### Where the time goes: {title}\n\n```text\n{}\n```\n", profile.trim_end()));
            }
            _ => {}
        }
    }
    notes(&mut text, results);
    Rendered { text, plots }
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
    if let Some(disk) = &results.disk {
        let speed = spread(disk.gigabytes_per_second, 2);
        line("direct reads of 4 MiB from it, one after the other", format!("{speed} GB/s"));
    }
    if let Some(bytes) = results.throttle {
        let speed = bytes as f64 / 1e9;
        line(
            "loops",
            format!("both sides held to {speed:.2} GB/s by a control group, since the disk is not always as fast"),
        );
    }
    if let Some(limit) = &machine.fuse_pages_limit {
        line("largest FUSE request", format!("{limit} pages"));
    }
    let load = |load: Option<f64>| load.map_or("unknown".to_owned(), |load| format!("{load:.2}"));
    line("load average", format!("{} before, {} at the end", load(results.load_before), load(results.load_after)));
    line("options of each mount", format!("`{}`", results.options.join(" ")));
    line("Python", results.python.join("; "));
    let sizes = &results.sizes;
    line(
        "library",
        format!(
            "models of {:.2}, {:.2} and {:.2} GiB, {} small files",
            gib(sizes.large),
            gib(sizes.medium),
            gib(sizes.turn),
            sizes.small_files
        ),
    );
    line(
        "method",
        format!(
            "{} pairs, one side and the other in turn after one of each that is not counted; median (least to most); \
             the relation is the median of that of each pair. Before each cold sample the kernel's caches are dropped, \
             and as much memory as it will take is touched once and let go again, since a virtual machine pays for \
             memory that it had given back",
            results.pairs
        ),
    );
    line("time taken", format!("{:.0} s", results.seconds));
    for note in &results.daemon_notes {
        line("the daemon says", note.clone());
    }
    text.push('\n');
}

fn failures(text: &mut String, outcomes: &[Outcome]) {
    for outcome in outcomes {
        match outcome {
            Outcome::Failed(failed) => line(text, &format!("> **FAILED**: {}: {}\n", failed.title, failed.reason)),
            Outcome::Skipped(skipped) => {
                line(text, &format!("> **NOT MEASURED**: {}: {}\n", skipped.title, skipped.reason));
            }
            _ => {}
        }
    }
}

/// Everything that is held to something, and whether it holds.
fn bars(text: &mut String, outcomes: &[Outcome]) {
    let rows: Vec<(bool, String)> = outcomes.iter().filter_map(bar_row).collect();
    if rows.is_empty() {
        return;
    }
    let held = rows.iter().filter(|(holds, _)| *holds).count();
    line(text, &format!("## Bars: {held} of {} hold\n", rows.len()));
    line(text, "| scenario | measured | bar | |");
    line(text, "|---|---|---|---|");
    rows.iter().for_each(|(_, row)| line(text, row));
    text.push('\n');
}

fn bar_row(outcome: &Outcome) -> Option<(bool, String)> {
    let (title, measured, bar, holds) = match outcome {
        Outcome::Compared(found) => {
            let (unit, digits) = relation_unit(found);
            let against = format!("{} to {}", found.sides.subject, found.sides.baseline);
            let measured = format!("{} {unit}, {against}", spread(found.relative, digits));
            (&found.title, measured, bar_text(found.bar?, unit, digits), found.holds?)
        }
        Outcome::Figure(Figure { title, unit, value, bar, holds, .. }) => {
            let digits = unit.digits();
            (title, format!("{value:.digits$} {}", unit.name()), bar_text((*bar)?, unit.name(), digits), (*holds)?)
        }
        Outcome::Growth(Growth { title, lines, bar, holds, .. }) => {
            let worst = lines.iter().filter(|line| line.is_judged).filter_map(|line| line.exponent);
            let measured = format!("grows with the power {:.2}", worst.reduce(f64::max)?);
            (title, measured, bar_text((*bar)?, "", 1), (*holds)?)
        }
        _ => return None,
    };
    let verdict = if holds { "holds" } else { "**missed**" };
    Some((holds, format!("| {title} | {measured} | {bar} | {verdict} |")))
}

fn comparisons(text: &mut String, outcomes: &[Outcome]) {
    let compared = |outcome: &Outcome| matches!(outcome, Outcome::Compared(_));
    if !outcomes.iter().any(compared) {
        return;
    }
    line(text, "## Side by side\n");
    line(text, "| scenario | native, or as named | weightfs, or as named | relation | daemon CPU s/GB |");
    line(text, "|---|---|---|---|---|");
    for outcome in outcomes {
        if let Outcome::Compared(comparison) = outcome {
            line(text, &row(comparison));
        }
    }
    text.push('\n');
}

fn row(comparison: &Comparison) -> String {
    let unit = comparison.unit;
    let (relation_unit, digits) = relation_unit(comparison);
    let more = if comparison.relation == Relation::Difference { " more" } else { "" };
    let side = |name: &str, usual: &str, found| {
        let name = if name == usual { String::new() } else { format!("{name}: ") };
        format!("{name}{} {}", spread(found, unit.digits()), unit.name())
    };
    format!(
        "| {} | {} | {} | {} {relation_unit}{more} | {} |",
        comparison.title,
        side(&comparison.sides.baseline, "native", comparison.native),
        side(&comparison.sides.subject, "weightfs", comparison.mount),
        spread(comparison.relative, digits),
        cpu(comparison),
    )
}

fn relation_unit(comparison: &Comparison) -> (&'static str, usize) {
    match comparison.relation {
        Relation::Ratio => ("×", 2),
        Relation::Difference => (comparison.unit.name(), comparison.unit.digits()),
    }
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
    line(text, "## Costs and single figures\n");
    line(text, "| what | value |");
    line(text, "|---|---|");
    for Figure { title, unit, value, .. } in figures {
        let digits = unit.digits();
        line(text, &format!("| {title} | {value:.digits$} {} |", unit.name()));
    }
    text.push('\n');
}

/// Loops larger than memory: who finds how much of them there.
fn loops(text: &mut String, outcomes: &[Outcome], plots: &mut Vec<(String, String)>) {
    const KINDS: [(&str, &str); 4] = [
        ("hits-native", "page cache"),
        ("hits", "weightfs"),
        ("hits-min", "knowing the future (MIN)"),
        ("hits-lru", "least recently used"),
    ];
    let value = |id: &str| {
        outcomes.iter().find_map(|outcome| match outcome {
            Outcome::Figure(figure) if figure.id == id => Some(figure.value),
            _ => None,
        })
    };
    let times = ["1.25", "1.5", "2", "3"];
    let names = times.map(|times| format!("{times} × the memory"));
    let groups: Vec<Group<'_>> = times
        .iter()
        .zip(&names)
        .map(|(times, name)| Group {
            name,
            values: KINDS.iter().map(|(kind, _)| value(&format!("loop-{times}-{kind}"))).collect(),
        })
        .filter(|group| group.values.iter().any(Option::is_some))
        .collect();
    if !groups.is_empty() {
        let kinds = KINDS.map(|(_, name)| name.to_owned());
        let title = "loops: hits in percent of the bytes that are loaded";
        let drawn = svg::bars(&capital(title), "%", &kinds, &groups);
        plot(text, "loops", title, drawn, plots);
    }
}

fn grid(text: &mut String, grid: &Grid, plots: &mut Vec<(String, String)>) {
    line(text, &format!("## {}, in {}\n", capital(&grid.title), grid.unit.name()));
    line(text, &format!("| reader | {} |", grid.columns.join(" | ")));
    line(text, &format!("|---{}|", "|---".repeat(grid.columns.len())));
    let mut reasons: Vec<String> = Vec::new();
    for row in &grid.rows {
        let cells: Vec<String> = row
            .cells
            .iter()
            .map(|cell| match cell {
                Cell::Measured { spread: found, cpu_per_gigabyte, .. } => {
                    let cpu = cpu_per_gigabyte.map_or(String::new(), |cpu| format!("<br>CPU {cpu:.2}"));
                    format!("{}{cpu}", spread(*found, grid.unit.digits()))
                }
                Cell::Missing { reason } => {
                    if !reasons.contains(reason) {
                        reasons.push(reason.clone());
                    }
                    "–".to_owned()
                }
            })
            .collect();
        line(text, &format!("| {} | {} |", row.name, cells.join(" | ")));
    }
    text.push('\n');
    grid.notes.iter().for_each(|note| line(text, &format!("{note}\n")));
    reasons.iter().for_each(|reason| line(text, &format!("– **not measured**: {reason}\n")));
    let groups: Vec<Group<'_>> = grid
        .rows
        .iter()
        .map(|row| Group { name: &row.name, values: row.cells.iter().map(Cell::median).collect() })
        .collect();
    let drawn = svg::bars(&capital(&grid.title), grid.unit.name(), &grid.columns, &groups);
    plot(text, &grid.id, &grid.title, drawn, plots);
}

fn growth(text: &mut String, growth: &Growth, plots: &mut Vec<(String, String)>) {
    line(text, &format!("## {}\n", capital(&growth.title)));
    let curves: Vec<Curve<'_>> = growth
        .lines
        .iter()
        .map(|line| Curve {
            name: &line.name,
            points: line.points.iter().map(|(x, found)| [*x, found.median, found.min, found.max]).collect(),
        })
        .collect();
    let drawn = svg::curves(&capital(&growth.title), &growth.across, growth.unit.name(), &curves);
    plot(text, &growth.id, &growth.title, drawn, plots);
    line(text, &format!("{}\n", growth.explained));
    line(text, &format!("| {} | {} |", growth.across, growth.unit.name()));
    line(text, "|---|---|");
    for curve in &growth.lines {
        let points: Vec<String> = curve
            .points
            .iter()
            .map(|(x, found)| format!("{x}: {:.digits$}", found.median, digits = growth.unit.digits()))
            .collect();
        let exponent = curve.exponent.map_or(String::new(), |exponent| format!(", power {exponent:.2}"));
        line(text, &format!("| {}{exponent} | {} |", curve.name, points.join(", ")));
    }
    text.push('\n');
}

fn plot(text: &mut String, id: &str, title: &str, drawn: String, plots: &mut Vec<(String, String)>) {
    let name = format!("{id}.svg");
    line(text, &format!("![{}]({PLOTS}/{name})\n", capital(title)));
    plots.push((name, drawn));
}

fn notes(text: &mut String, results: &Results) {
    line(text, "## Notes\n");
    for outcome in &results.outcomes {
        if let Outcome::Compared(comparison) = outcome {
            for note in &comparison.notes {
                line(text, &format!("- {}: {note}", comparison.title));
            }
        }
    }
    let taken: Vec<String> = results.scenarios.iter().map(|ran| format!("{} {:.0} s", ran.id, ran.seconds)).collect();
    line(text, &format!("- time taken: {}", taken.join(", ")));
}

fn bar_text(bar: Bar, unit: &str, digits: usize) -> String {
    let (sign, value) = match bar {
        Bar::AtLeast(value) => ("≥", value),
        Bar::AtMost(value) => ("≤", value),
    };
    format!("{sign} {value:.digits$} {unit}").trim_end().to_owned()
}

fn spread(spread: Spread, digits: usize) -> String {
    format!("{:.digits$} ({:.digits$}–{:.digits$})", spread.median, spread.min, spread.max)
}

fn capital(title: &str) -> String {
    let mut letters = title.chars();
    letters.next().map_or(String::new(), |first| first.to_uppercase().chain(letters).collect())
}

fn gib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 30)
}

fn line(text: &mut String, line: &str) {
    writeln!(text, "{line}").expect("a String takes what is written to it");
}

#[cfg(test)]
mod tests {
    use super::super::{GridRow, Sample, Sides, Unit};
    use super::*;

    fn compared(bar: Option<Bar>) -> Comparison {
        let pairs = [(Sample::of(2.0), Sample::of(1.0)), (Sample::of(2.0), Sample::of(3.0))];
        Comparison::of("i", "title", Unit::GigabytesPerSecond, (Relation::Ratio, bar), &pairs)
    }

    #[test]
    fn a_bar_says_whether_it_holds() {
        let row = |bar| bar_row(&Outcome::Compared(compared(Some(bar)))).unwrap();
        let (holds, text) = row(Bar::AtLeast(1.0));
        assert!(holds && text.contains("| 1.00 (0.50–1.50) ×, weightfs to native | ≥ 1.00 × | holds |"), "{text}");
        let (holds, text) = row(Bar::AtMost(0.9));
        assert!(!holds && text.contains("| ≤ 0.90 × | **missed** |"), "{text}");
        assert!(bar_row(&Outcome::Compared(compared(None))).is_none());
    }

    #[test]
    fn sides_are_named_where_they_are_not_the_usual_ones() {
        let row = row(&compared(None).between(Sides::of("fio", "weightfs")));
        assert!(row.contains("| fio: 2.00 (2.00–2.00) GB/s | 2.00 (1.00–3.00) GB/s |"), "{row}");
    }

    #[test]
    fn what_is_missing_from_a_grid_is_said() {
        let (mut text, mut plots) = (String::new(), Vec::new());
        let missing = Cell::Missing { reason: "no torch".to_owned() };
        let cells = vec![Cell::measured(vec![1.0], Some(0.5), 1_000_000_000), missing];
        let rows = vec![GridRow { name: "aimdo".to_owned(), cells }];
        let columns = ["native".to_owned(), "weightfs".to_owned()].to_vec();
        let (id, title) = ("g".to_owned(), "cold loads".to_owned());
        let found = Grid { id, title, unit: Unit::GigabytesPerSecond, columns, rows, notes: Vec::new() };
        grid(&mut text, &found, &mut plots);
        assert!(text.contains("| aimdo | 1.00 (1.00–1.00)<br>CPU 0.50 | – |"), "{text}");
        assert!(text.contains("**not measured**: no torch") && text.contains("(plots/g.svg)"), "{text}");
        assert_eq!(plots[0].0, "g.svg");
    }
}
