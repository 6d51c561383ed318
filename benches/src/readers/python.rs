//! The safetensors package, in a Python process that stays: neither its start nor its imports are measured.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use serde::Deserialize;

use super::Loaded;
use crate::error::{BenchError, Doing, Result};

const PROGRAM: &str = include_str!("load_safetensors.py");

pub struct Python {
    child: Child,
    /// Taken at the end: the child stops when it reads no more.
    requests: Option<ChildStdin>,
    replies: BufReader<ChildStdout>,
    pub version: String,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Reply {
    Ready { ready: String },
    Loaded { seconds: f64, bytes: u64 },
    Failed { error: String },
}

impl Python {
    /// Starts the interpreter, or says why there is nothing to start.
    pub fn start(interpreter: &Path) -> std::result::Result<Self, String> {
        let name = interpreter.display();
        let mut child = Command::new(interpreter)
            .args(["-c", PROGRAM])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| format!("{name} cannot be started: {error}"))?;
        let requests = child.stdin.take();
        let replies = BufReader::new(child.stdout.take().expect("it was piped"));
        let mut python = Self { child, requests, replies, version: String::new() };
        match python.reply() {
            Ok(Reply::Ready { ready }) => python.version = ready,
            Ok(Reply::Failed { error }) => return Err(format!("{name}: {error}")),
            Ok(Reply::Loaded { .. }) => return Err(format!("{name} answered what it was not asked")),
            Err(error) => return Err(format!("{name}: {error}")),
        }
        Ok(python)
    }

    /// The one to use when none was named, for a program that lies at `program`.
    pub fn find(program: &Path) -> std::result::Result<Self, String> {
        Self::start(&interpreter(program))
    }

    fn reply(&mut self) -> Result<Reply> {
        let mut line = String::new();
        self.replies.read_line(&mut line).doing(|| "read from Python".to_owned())?;
        serde_json::from_str(&line).doing(|| format!("understand Python's '{}'", line.trim()))
    }

    fn load(&mut self, path: &Path) -> Result<Loaded> {
        if let Some(requests) = &mut self.requests {
            writeln!(requests, "{}", path.display()).doing(|| "write to Python".to_owned())?;
        }
        match self.reply()? {
            Reply::Loaded { seconds, bytes } => Ok(Loaded { time: Duration::from_secs_f64(seconds), bytes }),
            Reply::Failed { error } => {
                Err(BenchError::Unfit(format!("Python cannot load {}: {error}", path.display())))
            }
            Reply::Ready { .. } => Err(BenchError::Unfit("Python answered what it was not asked".to_owned())),
        }
    }
}

impl Drop for Python {
    fn drop(&mut self) {
        self.requests = None;
        if let Err(error) = self.child.wait() {
            eprintln!("cannot wait for Python: {error}");
        }
    }
}

pub fn load(python: &mut std::result::Result<Python, String>, path: &Path) -> Result<Loaded> {
    match python {
        Ok(python) => python.load(path),
        Err(reason) => Err(BenchError::Unfit(reason.clone())),
    }
}

/// The interpreter of the project's virtual environment if there is one near, else the system's.
fn interpreter(near: &Path) -> PathBuf {
    let environment = |folder: &Path| folder.join(".venv/bin/python");
    near.ancestors().map(environment).find(|python| python.exists()).unwrap_or_else(|| "python3".into())
}
