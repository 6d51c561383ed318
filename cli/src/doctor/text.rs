//! The report for people: by what was looked at, a line a check, and what follows from it.

use std::fmt::Write;

use weightfs::control::{Check, CheckState};

use super::Report;
use crate::output::figures::plain;
use crate::output::paint::Paint;

/// `fixable` checks could be mended by `--fix`.
pub fn draw(report: &Report, fixable: usize, paint: Paint) -> String {
    let mut text = String::new();
    let mut subjects: Vec<Option<&str>> = vec![None];
    for check in &report.checks {
        if !subjects.contains(&check.subject.as_deref()) {
            subjects.push(check.subject.as_deref());
        }
    }
    let width = report.checks.iter().map(|check| check.name.chars().count()).max().unwrap_or(0);
    for subject in subjects {
        let checks: Vec<&Check> = report.checks.iter().filter(|check| check.subject.as_deref() == subject).collect();
        if checks.is_empty() {
            continue;
        }
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{}", paint.bold(&plain(subject.unwrap_or("This machine"))));
        for check in checks {
            one(&mut text, check, width, paint);
        }
        text.push('\n');
    }
    for done in &report.mended {
        let _ = writeln!(text, "{} {}", paint.good("mended"), plain(done));
    }
    for error in &report.not_mended {
        let _ = writeln!(text, "{} {}", paint.bad("not mended"), plain(error));
    }
    let _ = writeln!(text, "{}", summary(report, fixable));
    text
}

fn one(text: &mut String, check: &Check, width: usize, paint: Paint) {
    let mark = match check.state {
        CheckState::Ok => paint.good("ok  "),
        CheckState::Warn => paint.warn("warn"),
        CheckState::Bad => paint.bad("bad "),
        CheckState::Unknown => paint.dim("?   "),
    };
    let _ = writeln!(text, "  {mark}  {:<width$}  {}", plain(&check.name), plain(&check.found));
    for (what, words) in [("costs", &check.costs), ("mend", &check.mend)] {
        if let Some(words) = words {
            let _ = writeln!(text, "        {:<width$}  {} {}", "", paint.dim(&format!("{what:<5}")), plain(words));
        }
    }
}

fn summary(report: &Report, fixable: usize) -> String {
    let count = |state| report.checks.iter().filter(|check| check.state == state).count();
    let (bad, warn) = (count(CheckState::Bad), count(CheckState::Warn));
    let all = report.checks.len();
    let fix = match fixable {
        0 => "",
        _ => "; 'weightfs doctor --fix' mends what can be mended safely",
    };
    match (bad, warn) {
        (0, 0) => format!("All is well ({all} checks)."),
        (0, warn) => format!("It works; {warn} of {all} checks found something that costs{fix}."),
        (bad, _) => format!("{bad} of {all} checks found what has to be mended{fix}."),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weightfs_mount::doctor::Finding;

    #[test]
    fn the_report_names_the_price_and_the_way_out() {
        let findings = [
            Finding::ok("fuse", "Linux 6.18"),
            Finding::warn("request-size", "1.0 MiB at a time").costs("slower").mend("sysctl x=1"),
            Finding::ok("links", "none leads out").on("/srv/models"),
            Finding::unknown("speed", "no file\x1b[2J").on("/srv/models"),
        ];
        let checks = findings.into_iter().map(|finding| finding.check).collect();
        let mut report = Report { checks, mended: vec!["loaded fuse".into()], not_mended: Vec::new() };
        let expected = "\
This machine
  ok    fuse          Linux 6.18
  warn  request-size  1.0 MiB at a time
                      costs slower
                      mend  sysctl x=1

/srv/models
  ok    links         none leads out
  ?     speed         no file\u{fffd}[2J

mended loaded fuse
It works; 1 of 4 checks found something that costs; 'weightfs doctor --fix' mends what can be mended safely.
";
        assert_eq!(draw(&report, 1, Paint::PLAIN), expected);
        report.checks.truncate(1);
        assert!(draw(&report, 0, Paint::PLAIN).ends_with("All is well (1 checks).\n"));
    }
}
