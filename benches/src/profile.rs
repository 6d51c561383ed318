//! What all processors do while a sample is taken: perf, with its clock where there are no hardware counters.

use std::cell::{Cell, RefCell};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{SigSet, Signal, kill};
use nix::unistd::Pid;

/// Samples a second.
const RATE: &str = "4999";

/// What takes less than this many percent is not listed.
const LIMIT: &str = "2";

/// Has perf write down what it has.
const STOP: Signal = Signal::SIGINT;

/// How long that may take.
const PATIENCE: Duration = Duration::from_secs(20);

/// How long perf takes to begin.
const START: Duration = Duration::from_millis(400);

/// Looks at what a scenario measures of weightfs, if it is told to.
#[derive(Debug, Default)]
pub struct Watch {
    is_on: Cell<bool>,
    seen: RefCell<Option<String>>,
}

impl Watch {
    /// Does what is measured, and looks at it.
    pub fn over<T>(&self, work: impl FnOnce() -> T) -> T {
        let recording = if self.is_on.get() { Recording::start() } else { None };
        let done = work();
        if let Some(recording) = recording {
            *self.seen.borrow_mut() = recording.stop();
        }
        done
    }

    /// Looks from now on.
    pub fn begin(&self) {
        self.is_on.set(true);
    }

    /// Looks no more. Gives what was seen last.
    pub fn end(&self) -> Option<String> {
        self.is_on.set(false);
        self.seen.take()
    }
}

/// A recording that goes on.
struct Recording {
    perf: Child,
    data: PathBuf,
}

impl Recording {
    /// Looks at everything from now on. None where perf is missing or may not.
    fn start() -> Option<Self> {
        let data = std::env::temp_dir().join(format!("weightfs-bench-{}.perf", std::process::id()));
        let mut perf = Command::new("perf");
        perf.args(["record", "-q", "-a", "-F", RATE, "-o"]).arg(&data);
        // This program keeps the signal to itself, and what it starts would keep it as well: perf must hear it.
        let mut signal = SigSet::empty();
        signal.add(STOP);
        signal.thread_unblock().ok()?;
        let started = perf.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        signal.thread_block().ok()?;
        let perf = started.ok()?;
        std::thread::sleep(START);
        Some(Self { perf, data })
    }

    /// The functions that took most of the time, by program. None where perf could not look.
    fn stop(mut self) -> Option<String> {
        kill(Pid::from_raw(self.perf.id() as i32), STOP).ok()?;
        let asked = Instant::now();
        while self.perf.try_wait().ok()?.is_none() {
            if asked.elapsed() > PATIENCE {
                return None;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
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
    use super::{Watch, shorten};

    #[test]
    fn nothing_is_looked_at_unasked() {
        let watch = Watch::default();
        assert_eq!((watch.over(|| 7), watch.end()), (7, None));
    }

    #[test]
    fn lines_of_perf_are_shortened() {
        assert_eq!(shorten("   2.83%  reader   [k] copy_page     -      -  "), "2.83% reader [k] copy_page");
    }
}
