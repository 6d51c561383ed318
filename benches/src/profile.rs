//! What all processors do while a sample is taken: perf, with its clock where there are no hardware counters.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// Samples a second.
const RATE: &str = "4999";

/// What takes less than this many percent is not listed.
const LIMIT: &str = "2";

/// How long perf takes to begin.
const START: Duration = Duration::from_millis(400);

/// A recording that goes on.
pub struct Recording {
    perf: Child,
    data: PathBuf,
}

impl Recording {
    /// Looks at everything from now on. None where perf is missing or may not.
    pub fn start() -> Option<Self> {
        let data = std::env::temp_dir().join(format!("weightfs-bench-{}.perf", std::process::id()));
        let mut perf = Command::new("perf");
        perf.args(["record", "-q", "-a", "-F", RATE, "-o"]).arg(&data);
        let perf = perf.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().ok()?;
        std::thread::sleep(START);
        Some(Self { perf, data })
    }

    /// The functions that took most of the time, by program. None where perf could not look.
    pub fn stop(mut self) -> Option<String> {
        kill(Pid::from_raw(self.perf.id() as i32), Signal::SIGINT).ok()?;
        self.perf.wait().ok()?;
        let mut report = Command::new("perf");
        report
            .args(["report", "--stdio", "-q", "--sort", "comm,symbol", "--percent-limit", LIMIT, "-i"])
            .arg(&self.data);
        let output = report.stderr(Stdio::null()).output().ok()?;
        let text = String::from_utf8_lossy(&output.stdout);
        let lines: Vec<String> = text.lines().map(shorten).filter(|line| !line.is_empty()).collect();
        (!lines.is_empty()).then(|| lines.join("\n"))
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        // Stopped or not: neither the process nor its file stays.
        let _ = self.perf.kill();
        let _ = self.perf.wait();
        let _ = std::fs::remove_file(&self.data);
    }
}

/// Without the columns that say nothing, and the space around them.
fn shorten(line: &str) -> String {
    let words: Vec<&str> = line.split_whitespace().filter(|word| *word != "-").collect();
    words.join(" ")
}

#[cfg(test)]
mod tests {
    use super::shorten;

    #[test]
    fn lines_of_perf_are_shortened() {
        assert_eq!(shorten("   2.83%  reader   [k] copy_page     -      -  "), "2.83% reader [k] copy_page");
    }
}
