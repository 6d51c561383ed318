//! Progress on standard error, where somebody watches.

use std::io::{self, IsTerminal};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// One line that says what goes on; gone when this value is.
pub struct Spinner(ProgressBar);

impl Spinner {
    /// Silent unless `wanted` and standard error is a terminal.
    pub fn on_stderr(wanted: bool) -> Self {
        if !wanted || !io::stderr().is_terminal() {
            return Self(ProgressBar::hidden());
        }
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
        bar.set_style(ProgressStyle::with_template("{spinner} {wide_msg}").expect("a template that is right"));
        bar.enable_steady_tick(Duration::from_millis(120));
        Self(bar)
    }

    pub fn say(&self, what: &str) {
        self.0.set_message(what.to_owned());
    }
}

impl Drop for Spinner {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

/// How far a known number of bytes is: a bar with the rate and the time to go.
pub struct Transfer(ProgressBar);

impl Transfer {
    /// Silent unless `wanted` and standard error is a terminal.
    pub fn on_stderr(wanted: bool, bytes: u64) -> Self {
        if !wanted || !io::stderr().is_terminal() {
            return Self(ProgressBar::hidden());
        }
        let bar = ProgressBar::with_draw_target(Some(bytes), ProgressDrawTarget::stderr());
        let template =
            "{percent:>3} % {bar:30} {binary_bytes} of {binary_total_bytes}  {binary_bytes_per_sec}  {eta} to go";
        let style = ProgressStyle::with_template(template).expect("a template that is right");
        bar.set_style(style.progress_chars("█▒░"));
        Self(bar)
    }

    pub fn show(&self, done: u64, total: u64) {
        self.0.set_length(total);
        self.0.set_position(done);
    }
}

impl Drop for Transfer {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
