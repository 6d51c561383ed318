//! Loaders of Python packages, in a process that stays: neither its start nor its imports are measured.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::Loaded;
use crate::error::{BenchError, Doing, Result};

const PROGRAM: &str = include_str!("load.py");

/// A way of a package to load a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Loader {
    Safetensors,
    SafetensorsPread,
    /// ComfyUI's native library, which has the page cache drop what it has read.
    Aimdo,
    AimdoKeep,
    Gguf,
    SharedMap,
    Hash,
    TorchSafetensors,
    TorchZip,
    FastSafetensors,
    RunaiStreamer,
}

/// An interpreter that was started, or why there is none.
pub struct Python {
    interpreter: PathBuf,
    running: std::result::Result<Running, String>,
}

struct Running {
    child: Child,
    /// Taken at the end: the child stops when it reads no more.
    requests: Option<ChildStdin>,
    replies: BufReader<ChildStdout>,
}

#[derive(Serialize)]
struct Request<'a> {
    loader: Loader,
    #[serde(skip_serializing_if = "Option::is_none")]
    path: Option<&'a Path>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Reply {
    Loaded { seconds: f64, bytes: u64 },
    Availability { available: bool, words: String },
    Failed { error: String },
}

impl Python {
    pub fn start(interpreter: &Path) -> Self {
        let running = Running::start(interpreter).map_err(|error| error.to_string());
        Self { interpreter: interpreter.to_owned(), running }
    }

    /// The interpreter of the environment `name` in a folder above `program`, else the system's.
    pub fn in_environment(name: &str, program: &Path) -> Self {
        let environment = |folder: &Path| folder.join(name).join("bin/python");
        let found = program.ancestors().map(environment).find(|python| python.exists());
        Self::start(&found.unwrap_or_else(|| "python3".into()))
    }

    pub fn interpreter(&self) -> &Path {
        &self.interpreter
    }

    /// The packages and their versions that a loader uses, or why it cannot be used.
    pub fn has(&mut self, loader: Loader) -> std::result::Result<String, String> {
        match self.ask(loader, None).map_err(|error| error.to_string())? {
            Reply::Availability { available: true, words } => Ok(words),
            Reply::Availability { words, .. } => Err(format!("{}: {words}", self.interpreter.display())),
            Reply::Failed { error } => Err(error),
            Reply::Loaded { .. } => Err("Python answered what it was not asked".to_owned()),
        }
    }

    pub fn load(&mut self, loader: Loader, path: &Path) -> Result<Loaded> {
        match self.ask(loader, Some(path))? {
            Reply::Loaded { seconds, bytes } => Ok(Loaded { time: Duration::from_secs_f64(seconds), bytes }),
            Reply::Failed { error } => {
                Err(BenchError::Unfit(format!("Python cannot load {}: {error}", path.display())))
            }
            Reply::Availability { .. } => Err(BenchError::Unfit("Python answered what it was not asked".to_owned())),
        }
    }

    fn ask(&mut self, loader: Loader, path: Option<&Path>) -> Result<Reply> {
        let running = self.running.as_mut().map_err(|reason| BenchError::Unfit(reason.clone()))?;
        let request = serde_json::to_string(&Request { loader, path }).doing(|| "ask Python".to_owned())?;
        if let Some(requests) = &mut running.requests {
            writeln!(requests, "{request}").doing(|| "write to Python".to_owned())?;
        }
        let mut line = String::new();
        running.replies.read_line(&mut line).doing(|| "read from Python".to_owned())?;
        serde_json::from_str(&line).doing(|| format!("understand Python's '{}'", line.trim()))
    }
}

impl Running {
    fn start(interpreter: &Path) -> Result<Self> {
        let mut child = Command::new(interpreter)
            .args(["-c", PROGRAM])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // Packages say there what they think of a machine without a GPU.
            .stderr(Stdio::null())
            .spawn()
            .doing(|| format!("start {}", interpreter.display()))?;
        let requests = child.stdin.take();
        let replies = BufReader::new(child.stdout.take().expect("it was piped"));
        Ok(Self { child, requests, replies })
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.requests = None;
        if let Err(error) = self.child.wait() {
            eprintln!("cannot wait for Python: {error}");
        }
    }
}
