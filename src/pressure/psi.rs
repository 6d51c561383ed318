//! Pressure stall information: `/proc/pressure/memory` and `memory.pressure` of a cgroup, since Linux 4.20.

use super::ParseError;

/// The part of the last ten seconds, in percent, for which tasks waited for memory.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Psi {
    /// At least one task waited.
    pub some: f64,
    /// All of them did, and nothing got done.
    pub full: f64,
}

/// Parses `some avg10=0.00 avg60=0.00 avg300=0.00 total=0` and the like (Documentation/accounting/psi.rst).
pub fn parse_psi(text: &str) -> Result<Psi, ParseError> {
    let field = |name: &'static str| {
        let avg10 = |line: &str| {
            let mut words = line.split_whitespace();
            (words.next() == Some(name)).then(|| words.find_map(|word| word.strip_prefix("avg10=")?.parse().ok()))?
        };
        let value: Option<f64> = text.lines().find_map(avg10);
        value.filter(|value| (0.0..=100.0).contains(value)).ok_or(ParseError { file: "memory pressure", field: name })
    };
    Ok(Psi { some: field("some")?, full: field("full")? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_real_thing() {
        let text =
            "some avg10=12.50 avg60=1.00 avg300=0.00 total=123\nfull avg10=3.25 avg60=0.50 avg300=0.00 total=99\n";
        assert_eq!(parse_psi(text), Ok(Psi { some: 12.5, full: 3.25 }));
    }

    #[test]
    fn nonsense_is_refused() {
        for text in ["", "some avg10=nan\nfull avg10=1", "some avg10=101\nfull avg10=0", "some avg60=1\nfull avg60=1"] {
            assert!(parse_psi(text).is_err(), "{text}");
        }
    }
}
