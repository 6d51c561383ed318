//! This program once more, as a process that loads when it is told to: one that can be killed, that holds a model while
//! others load it, or that is somebody else.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::{Loaded, Python, Reader, Readers, map};
use crate::error::{BenchError, Doing, Result};

/// The argument by which this program becomes a helper; interpreters of Python follow.
pub const ARGUMENT: &str = "--help-to-read";

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Request {
    Has {
        reader: Reader,
    },
    Load {
        reader: Reader,
        path: PathBuf,
        layout: PathBuf,
    },
    /// Maps the file, touches it in order, and keeps the mapping.
    Hold {
        path: PathBuf,
    },
    Run {
        words: Vec<String>,
    },
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Reply {
    Loaded { seconds: f64, bytes: u64 },
    Said { text: String },
    Failed { error: String },
}

pub struct Helper {
    child: Child,
    requests: Option<ChildStdin>,
    replies: BufReader<ChildStdout>,
}

impl Helper {
    /// One more of this program, of this user.
    pub fn start(interpreters: &[PathBuf]) -> Result<Self> {
        let program = std::env::current_exe().doing(|| "find this program".to_owned())?;
        let mut command = Command::new(program);
        command.arg(ARGUMENT).args(interpreters);
        Self::of(command)
    }

    /// `command` becomes the helper in the end.
    pub fn of(mut command: Command) -> Result<Self> {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .doing(|| "start a process that reads".to_owned())?;
        let requests = child.stdin.take();
        let replies = BufReader::new(child.stdout.take().expect("it was piped"));
        Ok(Self { child, requests, replies })
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn has(&mut self, reader: Reader) -> std::result::Result<String, String> {
        self.ask(&Request::Has { reader }).and_then(said).map_err(|error| error.to_string())
    }

    /// See [`Readers::load_as`].
    pub fn load(&mut self, reader: Reader, path: &Path, layout: &Path) -> Result<Loaded> {
        self.ask(&Request::Load { reader, path: path.to_owned(), layout: layout.to_owned() }).and_then(loaded)
    }

    /// Begins to map and touch a model, and to hold it from then on: see [`Helper::held`].
    pub fn begin_hold(&mut self, path: &Path) -> Result<()> {
        self.send(&Request::Hold { path: path.to_owned() })
    }

    pub fn held(&mut self) -> Result<Loaded> {
        self.receive().and_then(loaded)
    }

    /// Runs a program and gives what it prints.
    pub fn run(&mut self, words: &[&str]) -> Result<String> {
        let words = words.iter().map(|word| (*word).to_owned()).collect();
        self.ask(&Request::Run { words }).and_then(said)
    }

    /// As the kernel kills it that needs memory: without a word.
    pub fn kill(mut self) -> Result<()> {
        let what = || "kill a process that reads".to_owned();
        self.child.kill().doing(what)?;
        self.child.wait().doing(what)?;
        Ok(())
    }

    fn ask(&mut self, request: &Request) -> Result<Reply> {
        self.send(request)?;
        self.receive()
    }

    fn send(&mut self, request: &Request) -> Result<()> {
        let what = || "tell a process what to read".to_owned();
        let text = serde_json::to_string(request).doing(what)?;
        match &mut self.requests {
            Some(requests) => writeln!(requests, "{text}").doing(what),
            None => Ok(()),
        }
    }

    fn receive(&mut self) -> Result<Reply> {
        let mut line = String::new();
        self.replies.read_line(&mut line).doing(|| "hear from a process that reads".to_owned())?;
        match serde_json::from_str(&line).doing(|| format!("understand '{}'", line.trim()))? {
            Reply::Failed { error } => Err(BenchError::Unfit(error)),
            reply => Ok(reply),
        }
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        self.requests = None;
        if let Err(error) = self.child.wait() {
            eprintln!("cannot wait for a process that reads: {error}");
        }
    }
}

fn loaded(reply: Reply) -> Result<Loaded> {
    match reply {
        Reply::Loaded { seconds, bytes } => Ok(Loaded { time: Duration::from_secs_f64(seconds), bytes }),
        _ => Err(BenchError::Unfit("a process that reads answered what it was not asked".to_owned())),
    }
}

fn said(reply: Reply) -> Result<String> {
    match reply {
        Reply::Said { text } => Ok(text),
        _ => Err(BenchError::Unfit("a process that reads answered what it was not asked".to_owned())),
    }
}

/// What the helper does until its input ends.
pub fn serve(interpreters: &[PathBuf]) -> Result<()> {
    let mut readers = Readers::new(interpreters.iter().map(|path| Python::start(path)).collect());
    let mut held = Vec::new();
    for line in std::io::stdin().lock().lines() {
        let what = || "talk to the program that started this one".to_owned();
        let request = serde_json::from_str(&line.doing(what)?).doing(what)?;
        let reply = answer(request, &mut readers, &mut held);
        let reply = reply.unwrap_or_else(|error| Reply::Failed { error: error.to_string() });
        let text = serde_json::to_string(&reply).doing(what)?;
        writeln!(std::io::stdout(), "{text}").doing(what)?;
    }
    Ok(())
}

fn answer(request: Request, readers: &mut Readers, held: &mut Vec<map::Held>) -> Result<Reply> {
    let loaded = |loaded: Loaded| Reply::Loaded { seconds: loaded.time.as_secs_f64(), bytes: loaded.bytes };
    match request {
        Request::Has { reader } => readers.has(reader).map(|text| Reply::Said { text }).map_err(BenchError::Unfit),
        Request::Load { reader, path, layout } => readers.load_as(reader, &path, &layout).map(loaded),
        Request::Hold { path } => {
            let start = Instant::now();
            let mapping = map::Held::of(&path)?;
            let bytes = mapping.touch();
            held.push(mapping);
            Ok(loaded(Loaded { time: start.elapsed(), bytes }))
        }
        Request::Run { words } => {
            let (program, arguments) = words.split_first().ok_or_else(|| BenchError::Unfit("nothing to run".into()))?;
            let output = Command::new(program).args(arguments).output().doing(|| format!("run {program}"))?;
            if output.status.success() {
                return Ok(Reply::Said { text: String::from_utf8_lossy(&output.stdout).into_owned() });
            }
            let words = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            Err(BenchError::Program { command: program.clone(), words })
        }
    }
}
