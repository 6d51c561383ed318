//! How a cost grows with what causes it.

use serde::Serialize;

use super::{Bar, Unit};
use crate::measure::Spread;

/// A family of curves over one quantity.
#[derive(Debug, Serialize)]
pub struct Growth {
    pub id: String,
    pub title: String,
    /// The quantity, with its unit.
    pub across: String,
    pub unit: Unit,
    pub lines: Vec<Line>,
    /// Why it grows as it does.
    pub explained: String,
    /// Of the exponents of the lines that are judged.
    pub bar: Option<Bar>,
    pub holds: Option<bool>,
}

#[derive(Debug, Serialize)]
pub struct Line {
    pub name: String,
    pub points: Vec<(f64, Spread)>,
    /// The power of the quantity with which the whole cost grows: 1 is linear, 0 is constant.
    pub exponent: Option<f64>,
    /// Whether the bar is for it.
    pub is_judged: bool,
}

/// Linear, and what measuring adds to that.
pub const LINEAR: Bar = Bar::AtMost(1.1);

impl Growth {
    /// The growth of costs that are each for the whole of the quantity.
    pub fn of(
        id: impl Into<String>,
        title: impl Into<String>,
        (across, unit): (&str, Unit),
        lines: Vec<Line>,
        explained: &str,
    ) -> Self {
        let worst = lines.iter().filter(|line| line.is_judged).filter_map(|line| line.exponent).reduce(f64::max);
        Self {
            id: id.into(),
            title: title.into(),
            across: across.to_owned(),
            unit,
            lines,
            explained: explained.to_owned(),
            bar: worst.map(|_| LINEAR),
            holds: worst.map(|worst| LINEAR.holds(worst)),
        }
    }
}

impl Line {
    /// `whole` makes of a point the cost of the whole quantity, whose growth is judged.
    pub fn of(
        name: impl Into<String>,
        points: Vec<(f64, Spread)>,
        is_judged: bool,
        whole: impl Fn(f64, f64) -> f64,
    ) -> Self {
        let costs: Vec<_> = points.iter().map(|(x, spread)| (*x, whole(*x, spread.median))).collect();
        Self { name: name.into(), points, exponent: exponent(&costs), is_judged }
    }
}

/// The slope of the line through the logarithms, by least squares. None where there are not two points above zero.
fn exponent(points: &[(f64, f64)]) -> Option<f64> {
    let logs: Vec<(f64, f64)> =
        points.iter().filter(|(x, y)| *x > 0.0 && *y > 0.0).map(|(x, y)| (x.ln(), y.ln())).collect();
    let count = logs.len() as f64;
    let mean = |of: fn(&(f64, f64)) -> f64| logs.iter().map(of).sum::<f64>() / count;
    let (middle, height) = (mean(|point| point.0), mean(|point| point.1));
    let spread: f64 = logs.iter().map(|(x, _)| (x - middle).powi(2)).sum();
    let slope = logs.iter().map(|(x, y)| (x - middle) * (y - height)).sum::<f64>() / spread;
    (logs.len() >= 2 && spread > 0.0).then_some(slope)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(of: impl Fn(f64) -> f64) -> Line {
        let points = [1.0, 10.0, 100.0].map(|x| (x, Spread::of(&[of(x)])));
        Line::of("l", points.to_vec(), true, |_, y| y)
    }

    #[test]
    fn exponents_are_those_of_the_law() {
        for (found, expected) in [(line(|x| 3.0 * x), 1.0), (line(|_| 5.0), 0.0), (line(|x| x * x), 2.0)] {
            assert!((found.exponent.unwrap() - expected).abs() < 1e-9, "{found:?}");
        }
        assert_eq!(exponent(&[(1.0, 1.0)]), None);
        assert_eq!(exponent(&[(1.0, 0.0), (2.0, 1.0), (2.0, 4.0)]), None);
    }

    #[test]
    fn the_worst_judged_line_decides() {
        let growth = |lines| Growth::of("i", "t", ("files", Unit::Milliseconds), lines, "").holds;
        assert_eq!(growth(vec![line(|x| x), line(|_| 1.0)]), Some(true));
        assert_eq!(growth(vec![line(|x| x), line(|x| x * x)]), Some(false));
        assert_eq!(growth(vec![Line { is_judged: false, ..line(|x| x * x) }]), None);
    }
}
