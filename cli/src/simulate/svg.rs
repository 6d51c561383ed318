//! The plot as SVG: hit ratio over budget, a line for each policy and one for the optimum.

use std::fmt::Write;

use weightfs::trace::{Outcome, Row};
use weightfs::units::ByteSize;

const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 420.0;
/// Around the plot: top, right, bottom, left.
const MARGIN: [f64; 4] = [20.0, 150.0, 50.0, 60.0];

/// Told apart by readers who do not see red and green (Okabe and Ito, 2008).
const COLOURS: [&str; 6] = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9"];

pub fn draw(names: &[String], rows: &[Row]) -> String {
    let most = rows.iter().map(|row| row.budget).max().unwrap_or(1).max(1) as f64;
    let x = |bytes: u64| MARGIN[3] + bytes as f64 / most * (WIDTH - MARGIN[1] - MARGIN[3]);
    let y = |ratio: f64| HEIGHT - MARGIN[2] - ratio * (HEIGHT - MARGIN[0] - MARGIN[2]);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" font-family=\"sans-serif\" \
         font-size=\"12\">\n<rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"white\"/>\n"
    );
    // Writing to a String cannot fail.
    for percent in (0..=100).step_by(20) {
        let at = y(f64::from(percent) / 100.0);
        let (left, right) = (x(0), WIDTH - MARGIN[1]);
        let _ = writeln!(svg, "<path d=\"M{left:.1} {at:.1}H{right:.1}\" stroke=\"#ddd\"/>");
        let _ =
            writeln!(svg, "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{percent} %</text>", left - 8.0, at + 4.0);
    }
    for budget in rows.iter().step_by(rows.len().div_ceil(5).max(1)).map(|row| row.budget) {
        let (at, below) = (x(budget), HEIGHT - MARGIN[2] + 20.0);
        let _ =
            writeln!(svg, "<text x=\"{at:.1}\" y=\"{below:.1}\" text-anchor=\"middle\">{}</text>", ByteSize(budget));
    }
    let _ = writeln!(
        svg,
        "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">RAM; hits in percent of the bytes used</text>",
        x((most / 2.0) as u64),
        HEIGHT - 10.0
    );
    let mut line = |place: usize, name: &str, colour: &str, dashes: &str, outcome: &dyn Fn(&Row) -> Outcome| {
        let points: Vec<String> =
            rows.iter().map(|row| format!("{:.1},{:.1}", x(row.budget), y(outcome(row).hit_ratio()))).collect();
        let style = format!("stroke=\"{colour}\" stroke-width=\"2\" stroke-dasharray=\"{dashes}\"");
        let _ = writeln!(svg, "<polyline points=\"{}\" fill=\"none\" {style}/>", points.join(" "));
        let (left, at) = (WIDTH - MARGIN[1] + 15.0, MARGIN[0] + 10.0 + 20.0 * place as f64);
        let _ = writeln!(svg, "<path d=\"M{left:.1} {at:.1}h24\" {style}/>");
        let _ = writeln!(svg, "<text x=\"{:.1}\" y=\"{:.1}\">{name}</text>", left + 32.0, at + 4.0);
    };
    line(0, "optimum", "#444", "6 4", &|row| row.optimum);
    for (place, name) in names.iter().enumerate() {
        line(place + 1, name, COLOURS[place % COLOURS.len()], "none", &|row| row.policies[place]);
    }
    svg.push_str("</svg>\n");
    svg
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_policy_has_a_line_and_its_name() {
        let outcome = |hit| Outcome { hit, missed: 100 - hit, ..Outcome::default() };
        let row = |budget, hit| Row { budget, optimum: outcome(hit), policies: vec![outcome(hit / 2), outcome(0)] };
        let svg = draw(&["auto".into(), "lru".into()], &[row(1 << 30, 50), row(2 << 30, 100)]);
        assert_eq!(svg.matches("<polyline").count(), 3);
        assert!(
            svg.contains(">auto<") && svg.contains(">lru<") && svg.contains(">optimum<") && svg.contains(">1.0 GiB<")
        );
        // At twice the budget the optimum is at the top right.
        assert!(svg.contains("570.0,20.0\""), "{svg}");
        assert!(svg.ends_with("</svg>\n"));
    }
}
