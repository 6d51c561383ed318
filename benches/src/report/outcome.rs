//! Results of single scenarios, and the bars that they are held to.

use serde::Serialize;

use super::{Grid, Growth};
use crate::measure::Spread;
use crate::weightfs::Work;

#[derive(Debug, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Outcome {
    Compared(Comparison),
    Figure(Figure),
    Grid(Grid),
    Growth(Growth),
    /// Where the time of a scenario went that missed its bar.
    Profile {
        id: String,
        title: String,
        text: String,
    },
    Skipped(Skipped),
    Failed(Failed),
}

/// What stands on either side of a comparison.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Sides {
    pub baseline: String,
    pub subject: String,
}

impl Sides {
    pub fn of(baseline: impl Into<String>, subject: impl Into<String>) -> Self {
        Self { baseline: baseline.into(), subject: subject.into() }
    }
}

impl Default for Sides {
    fn default() -> Self {
        Self::of("native", "weightfs")
    }
}

/// A native side and a mount side, or what stands for them, in pairs.
#[derive(Debug, Serialize)]
pub struct Comparison {
    pub id: String,
    pub title: String,
    pub sides: Sides,
    pub unit: Unit,
    pub native: Spread,
    pub mount: Spread,
    /// Of each pair, mount to native.
    pub relation: Relation,
    pub relative: Spread,
    pub bar: Option<Bar>,
    pub holds: Option<bool>,
    /// One of each pair.
    pub native_samples: Vec<f64>,
    pub mount_samples: Vec<f64>,
    /// What the daemon did for each sample of the mount.
    pub work: Vec<Work>,
    pub notes: Vec<String>,
}

/// One value that has no native counterpart.
#[derive(Debug, Serialize)]
pub struct Figure {
    pub id: String,
    pub title: String,
    pub unit: Unit,
    pub value: f64,
    pub bar: Option<Bar>,
    pub holds: Option<bool>,
}

#[derive(Debug, Serialize)]
pub struct Skipped {
    pub id: &'static str,
    pub title: &'static str,
    pub reason: String,
}

/// A scenario that came to nothing. The others go on.
#[derive(Debug, Serialize)]
pub struct Failed {
    pub id: &'static str,
    pub title: &'static str,
    pub reason: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Unit {
    #[serde(rename = "GB/s")]
    GigabytesPerSecond,
    #[serde(rename = "ms")]
    Milliseconds,
    #[serde(rename = "MiB")]
    Mebibytes,
    #[serde(rename = "s")]
    Seconds,
    #[serde(rename = "times")]
    Times,
    #[serde(rename = "CPU s/GB")]
    CpuSecondsPerGigabyte,
    #[serde(rename = "%")]
    Percent,
    #[serde(rename = "µs")]
    Microseconds,
    #[serde(rename = "KiB")]
    Kibibytes,
}

impl Unit {
    pub fn name(self) -> &'static str {
        match self {
            Unit::GigabytesPerSecond => "GB/s",
            Unit::Milliseconds => "ms",
            Unit::Mebibytes => "MiB",
            Unit::Seconds => "s",
            Unit::Times => "times",
            Unit::CpuSecondsPerGigabyte => "CPU s/GB",
            Unit::Percent => "%",
            Unit::Microseconds => "µs",
            Unit::Kibibytes => "KiB",
        }
    }

    /// Places behind the point that say something.
    pub fn digits(self) -> usize {
        match self {
            Unit::GigabytesPerSecond | Unit::Milliseconds | Unit::Seconds | Unit::Kibibytes => 2,
            Unit::Mebibytes | Unit::Percent | Unit::Microseconds => 1,
            Unit::CpuSecondsPerGigabyte | Unit::Times => 3,
        }
    }
}

/// How the mount is set against the native side.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Relation {
    /// Mount divided by native.
    Ratio,
    /// Mount less native, in the unit of both.
    Difference,
}

/// What a result is held to.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Bar {
    AtLeast(f64),
    AtMost(f64),
}

impl Bar {
    pub fn holds(self, value: f64) -> bool {
        match self {
            Bar::AtLeast(bar) => value >= bar,
            Bar::AtMost(bar) => value <= bar,
        }
    }
}

/// One sample of a side, and for the mount what the daemon did meanwhile.
#[derive(Clone, Debug)]
pub struct Sample {
    pub value: f64,
    pub work: Option<Work>,
    /// What was not as the scenario wants it.
    pub oddity: Option<String>,
}

impl Sample {
    pub fn of(value: f64) -> Self {
        Self { value, work: None, oddity: None }
    }
}

impl Comparison {
    pub fn of(
        id: impl Into<String>,
        title: impl Into<String>,
        unit: Unit,
        (relation, bar): (Relation, Option<Bar>),
        pairs: &[(Sample, Sample)],
    ) -> Self {
        let native_samples: Vec<f64> = pairs.iter().map(|(native, _)| native.value).collect();
        let mount_samples: Vec<f64> = pairs.iter().map(|(_, mount)| mount.value).collect();
        let relate = |(native, mount): (&f64, &f64)| match relation {
            Relation::Ratio => mount / native,
            Relation::Difference => mount - native,
        };
        let relative = Spread::of(&native_samples.iter().zip(&mount_samples).map(relate).collect::<Vec<_>>());
        Self {
            id: id.into(),
            title: title.into(),
            sides: Sides::default(),
            unit,
            native: Spread::of(&native_samples),
            mount: Spread::of(&mount_samples),
            relation,
            relative,
            bar,
            holds: bar.map(|bar| bar.holds(relative.median)),
            native_samples,
            mount_samples,
            work: pairs.iter().filter_map(|(_, mount)| mount.work).collect(),
            notes: oddities(pairs),
        }
    }

    /// The same, between others than a plain folder and a mount of it.
    pub fn between(self, sides: Sides) -> Self {
        Self { sides, ..self }
    }
}

impl Figure {
    pub fn of(id: impl Into<String>, title: impl Into<String>, unit: Unit, value: f64, bar: Option<Bar>) -> Self {
        Self { id: id.into(), title: title.into(), unit, value, bar, holds: bar.map(|bar| bar.holds(value)) }
    }
}

/// Each oddity once, with how many samples had it.
fn oddities(pairs: &[(Sample, Sample)]) -> Vec<String> {
    let mut counted: Vec<(&str, usize)> = Vec::new();
    for oddity in pairs.iter().flat_map(|(native, mount)| [native, mount]).filter_map(|sample| sample.oddity.as_deref())
    {
        match counted.iter_mut().find(|(known, _)| *known == oddity) {
            Some((_, count)) => *count += 1,
            None => counted.push((oddity, 1)),
        }
    }
    counted.into_iter().map(|(oddity, count)| format!("{count} of {} pairs: {oddity}", pairs.len())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs(values: &[(f64, f64)]) -> Vec<(Sample, Sample)> {
        values.iter().map(|(native, mount)| (Sample::of(*native), Sample::of(*mount))).collect()
    }

    #[test]
    fn pairs_are_related_before_their_median_is_taken() {
        let pairs = pairs(&[(1.0, 2.0), (10.0, 5.0), (4.0, 4.0)]);
        let bar = Some(Bar::AtLeast(1.0));
        let ratio = Comparison::of("i", "t", Unit::GigabytesPerSecond, (Relation::Ratio, bar), &pairs);
        assert_eq!(ratio.relative, Spread { median: 1.0, min: 0.5, max: 2.0 });
        assert_eq!(ratio.holds, Some(true));
        let bar = Some(Bar::AtMost(-0.5));
        let difference = Comparison::of("i", "t", Unit::Milliseconds, (Relation::Difference, bar), &pairs);
        assert_eq!((difference.relative.median, difference.holds), (0.0, Some(false)));
    }

    #[test]
    fn what_was_odd_is_said_once() {
        let mut pairs = pairs(&[(1.0, 1.0), (1.0, 1.0), (1.0, 1.0)]);
        pairs[0].0.oddity = Some("cold".to_owned());
        pairs[2].0.oddity = Some("cold".to_owned());
        pairs[2].1.oddity = Some("streamed".to_owned());
        assert_eq!(oddities(&pairs), ["2 of 3 pairs: cold", "1 of 3 pairs: streamed"]);
    }
}
