//! Plots as SVG: curves over logarithmic axes, and bars side by side.

use std::fmt::Write;

const WIDTH: f64 = 760.0;
const HEIGHT: f64 = 400.0;
/// Around a plot: top, right, bottom, left.
const MARGIN: [f64; 4] = [40.0, 220.0, 50.0, 75.0];

/// Told apart by readers who do not see red and green (Okabe and Ito, 2008).
const COLOURS: [&str; 7] = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#444444"];

const BAR: f64 = 11.0;
const BAR_GAP: f64 = 16.0;

/// A curve: its name, and x, middle, least and most of each point.
pub struct Curve<'a> {
    pub name: &'a str,
    pub points: Vec<[f64; 4]>,
}

/// Draws curves over two logarithmic axes. Points at or below zero have no place there and are left out.
pub fn curves(title: &str, across: &str, up: &str, curves: &[Curve<'_>]) -> String {
    let points =
        || curves.iter().flat_map(|curve| curve.points.iter().filter(|point| point[0] > 0.0 && point[1] > 0.0));
    let xs = Axis::of(points().map(|point| point[0]), (MARGIN[3], WIDTH - MARGIN[1]));
    let ys = Axis::of(points().flat_map(|point| [point[1], point[3]]), (HEIGHT - MARGIN[2], MARGIN[0]));
    let mut svg = begin(title, HEIGHT);
    for at in ys.decades() {
        let (y, left, right) = (ys.place(at), MARGIN[3], WIDTH - MARGIN[1]);
        add(&mut svg, format_args!("<path d=\"M{left:.1} {y:.1}H{right:.1}\" stroke=\"#ddd\"/>"));
        text(&mut svg, (left - 8.0, y + 4.0), "end", &number(at));
    }
    let mut marks: Vec<f64> = points().map(|point| point[0]).collect();
    marks.sort_by(f64::total_cmp);
    marks.dedup();
    for at in marks {
        text(&mut svg, (xs.place(at), HEIGHT - MARGIN[2] + 18.0), "middle", &number(at));
    }
    text(&mut svg, ((MARGIN[3] + WIDTH - MARGIN[1]) / 2.0, HEIGHT - 10.0), "middle", across);
    text(&mut svg, (8.0, MARGIN[0] - 12.0), "start", up);
    for (index, curve) in curves.iter().enumerate() {
        let colour = COLOURS[index % COLOURS.len()];
        let shown: Vec<_> = curve.points.iter().filter(|point| point[0] > 0.0 && point[1] > 0.0).collect();
        let places: Vec<String> =
            shown.iter().map(|point| format!("{:.1},{:.1}", xs.place(point[0]), ys.place(point[1]))).collect();
        add(
            &mut svg,
            format_args!(
                "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>",
                places.join(" ")
            ),
        );
        for point in shown {
            let (x, low, high) = (xs.place(point[0]), ys.place(point[2].max(ys.least)), ys.place(point[3]));
            add(&mut svg, format_args!("<path d=\"M{x:.1} {low:.1}V{high:.1}\" stroke=\"{colour}\"/>"));
            add(
                &mut svg,
                format_args!("<circle cx=\"{x:.1}\" cy=\"{:.1}\" r=\"3\" fill=\"{colour}\"/>", ys.place(point[1])),
            );
        }
        legend(&mut svg, index, curve.name);
    }
    svg.push_str("</svg>\n");
    svg
}

/// A group of bars: its name, and a value for each kind of bar that has one.
pub struct Group<'a> {
    pub name: &'a str,
    pub values: Vec<Option<f64>>,
}

/// Draws bars from the left, a group below the other.
pub fn bars(title: &str, unit: &str, kinds: &[String], groups: &[Group<'_>]) -> String {
    let most =
        groups.iter().flat_map(|group| group.values.iter().flatten()).fold(0.0, |most: f64, value| most.max(*value));
    let tall = kinds.len() as f64 * BAR + BAR_GAP;
    let height = (MARGIN[0] + tall * groups.len() as f64 + 30.0).max(MARGIN[0] + 20.0 * kinds.len() as f64 + 30.0);
    let left = 190.0;
    let wide = |value: f64| if most > 0.0 { value / most * (WIDTH - MARGIN[1] - left - 45.0) } else { 0.0 };
    let mut svg = begin(title, height);
    for (place, group) in groups.iter().enumerate() {
        let top = MARGIN[0] + place as f64 * tall;
        text(&mut svg, (left - 8.0, top + tall / 2.0 - 4.0), "end", group.name);
        for (index, value) in group.values.iter().enumerate() {
            let Some(value) = value else { continue };
            let (y, width, colour) = (top + index as f64 * BAR, wide(*value), COLOURS[index % COLOURS.len()]);
            add(
                &mut svg,
                format_args!(
                    "<rect x=\"{left:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{:.1}\" fill=\"{colour}\"/>",
                    BAR - 1.0
                ),
            );
            add(
                &mut svg,
                format_args!(
                    "<text x=\"{:.1}\" y=\"{:.1}\" font-size=\"9\">{}</text>",
                    left + width + 4.0,
                    y + 8.5,
                    number(*value)
                ),
            );
        }
    }
    for (index, kind) in kinds.iter().enumerate() {
        legend(&mut svg, index, kind);
    }
    text(&mut svg, (left, height - 10.0), "start", unit);
    svg.push_str("</svg>\n");
    svg
}

fn begin(title: &str, height: f64) -> String {
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height:.0}\" font-family=\"sans-serif\" \
         font-size=\"12\">\n<rect width=\"{WIDTH}\" height=\"{height:.0}\" fill=\"white\"/>\n"
    );
    add(&mut svg, format_args!("<text x=\"8\" y=\"16\" font-size=\"14\">{}</text>", escape(title)));
    svg
}

fn legend(svg: &mut String, index: usize, name: &str) {
    let (left, at) = (WIDTH - MARGIN[1] + 15.0, MARGIN[0] + 8.0 + 18.0 * index as f64);
    let colour = COLOURS[index % COLOURS.len()];
    add(svg, format_args!("<path d=\"M{left:.1} {at:.1}h18\" stroke=\"{colour}\" stroke-width=\"4\"/>"));
    text(svg, (left + 24.0, at + 4.0), "start", name);
}

fn text(svg: &mut String, (x, y): (f64, f64), anchor: &str, words: &str) {
    add(svg, format_args!("<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{}</text>", escape(words)));
}

fn add(svg: &mut String, line: std::fmt::Arguments<'_>) {
    writeln!(svg, "{line}").expect("a String takes what is written to it");
}

fn escape(words: &str) -> String {
    words.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

/// Short: three digits that matter.
fn number(value: f64) -> String {
    match value.abs() {
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}").trim_end_matches(".0").to_owned(),
        size if size >= 0.01 => format!("{value:.2}").trim_end_matches('0').trim_end_matches('.').to_owned(),
        _ => format!("{value:.0e}"),
    }
}

/// A logarithmic axis from whole decades to whole decades, or as far as there are values.
struct Axis {
    least: f64,
    most: f64,
    from: f64,
    to: f64,
}

impl Axis {
    fn of(values: impl Iterator<Item = f64>, (from, to): (f64, f64)) -> Self {
        let (least, most) =
            values.filter(|value| *value > 0.0).fold((f64::MAX, 0.0f64), |(a, b), value| (a.min(value), b.max(value)));
        let (least, most) = if most > 0.0 { (least, most) } else { (1.0, 10.0) };
        // Without this a single value would have no place.
        let most = if most / least < 1.01 { least * 10.0 } else { most };
        Self { least: least * 0.9, most: most * 1.1, from, to }
    }

    fn place(&self, value: f64) -> f64 {
        let part = (value / self.least).ln() / (self.most / self.least).ln();
        self.from + part * (self.to - self.from)
    }

    /// 1, 2 and 5 of each decade that is shown; of many decades, 1 alone.
    fn decades(&self) -> Vec<f64> {
        let (first, last) = (self.least.log10().floor() as i32, self.most.log10().ceil() as i32);
        let steps: &[f64] = if last - first > 3 { &[1.0] } else { &[1.0, 2.0, 5.0] };
        let all = (first..=last).flat_map(|power| steps.iter().map(move |step| step * 10f64.powi(power)));
        all.filter(|value| (self.least..=self.most).contains(value)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn curves_keep_their_order_and_their_names() {
        let rising = Curve { name: "a <b>", points: vec![[1.0, 1.0, 1.0, 1.0], [100.0, 10.0, 9.0, 11.0]] };
        let empty = Curve { name: "none", points: vec![[1.0, 0.0, 0.0, 0.0]] };
        let svg = curves("t", "files", "ms", &[rising, empty]);
        assert_eq!((svg.matches("<polyline").count(), svg.matches("<circle").count()), (2, 2));
        assert!(svg.contains(">a &lt;b&gt;<") && svg.contains(">none<") && svg.ends_with("</svg>\n"));
    }

    #[test]
    fn equal_ratios_are_equal_distances() {
        let axis = Axis { least: 1.0, most: 100.0, from: 0.0, to: 200.0 };
        assert_eq!([1.0, 10.0, 100.0].map(|value| axis.place(value).round()), [0.0, 100.0, 200.0]);
        assert_eq!(axis.decades(), [1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0]);
    }

    #[test]
    fn the_longest_bar_is_the_largest_value_and_missing_ones_have_none() {
        let groups = [
            Group { name: "g", values: vec![Some(2.0), None] },
            Group { name: "h", values: vec![Some(1.0), Some(0.5)] },
        ];
        let svg = bars("t", "GB/s", &["x".to_owned(), "y".to_owned()], &groups);
        assert_eq!(svg.matches("<rect x").count(), 3);
        assert!(svg.contains("width=\"305.0\"") && svg.contains("width=\"152.5\""), "{svg}");
    }

    #[test]
    fn numbers_are_short() {
        assert_eq!([1234.5, 12.0, 1.5, 2.0, 0.25, 0.001].map(number), ["1234", "12", "1.5", "2", "0.25", "1e-3"]);
    }
}
