//! A program in a terminal of a given size that can be looked at and typed into: a window of tmux.

use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;

use crate::mount::{program, unique};
use crate::system::wait_until;

/// Only a program that hangs needs it.
const PATIENCE: Duration = Duration::from_secs(20);

/// The terminal, and a server of tmux for it alone. It ends with this value.
pub struct Screen {
    server: String,
    /// Where the exit code is written: tmux itself does not always learn of it.
    ended: tempfile::NamedTempFile,
}

impl Screen {
    /// `weightfs` with these arguments and the daemons of `private`, in so many columns and rows.
    ///
    /// # Panics
    /// Where tmux does not start.
    pub fn start(private: &Path, arguments: &[&str], columns: u16, rows: u16) -> Screen {
        let ended = tempfile::NamedTempFile::new().expect("a file for the exit code");
        let screen = Screen { server: format!("weightfs-test-{}-{}", std::process::id(), unique()), ended };
        let command = program(private);
        let file = screen.ended.path().to_str().expect("UTF-8").to_owned();
        // The terminal stays open afterwards: of one that is closed at once tmux can miss the last words.
        let script = "\"$@\"; echo $? > \"$0\"; exec sleep 3600";
        let mut words: Vec<String> = ["sh", "-c", script, &file, "env"].map(str::to_owned).to_vec();
        for (name, value) in command.get_envs() {
            let name = name.to_str().expect("UTF-8");
            match value {
                Some(value) => words.push(format!("{name}={}", value.to_str().expect("UTF-8"))),
                None => words.extend(["-u".to_owned(), name.to_owned()]),
            }
        }
        words.push(command.get_program().to_str().expect("UTF-8").to_owned());
        words.extend(arguments.iter().map(|argument| (*argument).to_owned()));
        let (columns, rows) = (columns.to_string(), rows.to_string());
        // No line of tmux's own.
        let before = ["start-server", ";", "set", "-g", "status", "off", ";"];
        let begin = ["new-session", "-d", "-x", &columns, "-y", &rows, "--"];
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        screen.tmux(&[&before[..], &begin[..], &words[..]].concat());
        screen
    }

    /// What is seen, a line a row.
    pub fn text(&self) -> String {
        self.tmux(&["capture-pane", "-p"])
    }

    /// Presses keys, by tmux's names of them: `j`, `Down`, `Enter`.
    pub fn press(&self, keys: &[&str]) {
        self.tmux(&[&["send-keys"], keys].concat());
    }

    pub fn resize(&self, columns: u16, rows: u16) {
        self.tmux(&["resize-window", "-x", &columns.to_string(), "-y", &rows.to_string()]);
    }

    /// Waits until everything in `words` is seen.
    ///
    /// # Panics
    /// With what is seen instead.
    pub fn wait_for(&self, words: &[&str]) -> String {
        let mut text = String::new();
        let came = wait_until(PATIENCE, || {
            text = self.text();
            words.iter().all(|word| text.contains(word))
        });
        assert!(came, "{words:?} are not seen but:\n{text}");
        text
    }

    /// Waits until the program has ended, and gives its exit code.
    ///
    /// # Panics
    /// If it goes on.
    pub fn wait(&self) -> i32 {
        let mut code = None;
        let ended = wait_until(PATIENCE, || {
            let text = std::fs::read_to_string(self.ended.path()).expect("the file for the exit code");
            code = text.trim().parse().ok();
            code.is_some()
        });
        assert!(ended, "it goes on:\n{}", self.text());
        code.expect("an exit code")
    }

    fn tmux(&self, arguments: &[&str]) -> String {
        let Output { status, stdout, stderr } = self.command(arguments).output().expect("run tmux");
        assert!(status.success(), "tmux {arguments:?}: {}", String::from_utf8_lossy(&stderr));
        String::from_utf8(stdout).expect("UTF-8")
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new("tmux");
        command.env_remove("TMUX").env("LC_ALL", "C.UTF-8").args(["-u", "-L", &self.server, "-f", "/dev/null"]);
        command.args(arguments);
        command
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // Gone already if its program could not be started.
        let _ = self.command(&["kill-server"]).output();
    }
}
