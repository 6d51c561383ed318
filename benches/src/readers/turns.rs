//! Models that are read in turn, round after round, by a process of its own: so that its page cache can be limited.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use serde::{Deserialize, Serialize};

use super::Pool;
use crate::cgroup::LimitedGroup;
use crate::data::execution_order;
use crate::error::{BenchError, Doing, Result};

/// The argument by which this program becomes the process that reads.
pub const ARGUMENT: &str = "--read-in-turns";

/// What the process takes besides the page cache: its buffers, and itself.
const OWN_MEMORY: u64 = 32 << 20;

/// All rounds but the first, which is cold for everyone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Turns {
    pub seconds: f64,
    /// Bytes that came from the disk.
    pub read: u64,
}

/// Reads `models` in turn `rounds` times in a process that may take `ram` bytes of page cache.
pub fn in_limited_group(models: &[PathBuf], rounds: usize, ram: u64) -> Result<Turns> {
    let group = LimitedGroup::new(ram + OWN_MEMORY)?;
    let program = std::env::current_exe().doing(|| "find this program".to_owned())?;
    let what = || format!("run {}", program.display());
    let mut child = Command::new(&program)
        .arg(format!("{ARGUMENT}={rounds}"))
        .args(models)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .doing(what)?;
    let moved = group.add(child.id());
    // It begins when its input ends: nothing is read outside of the group.
    drop(child.stdin.take());
    let mut line = String::new();
    let output = child.stdout.take().map(BufReader::new).map(|mut output| output.read_line(&mut line));
    let status = child.wait().doing(what)?;
    moved?;
    if !status.success() || !matches!(output, Some(Ok(_))) {
        return Err(BenchError::Program { command: what(), words: format!("it ended with {status}") });
    }
    serde_json::from_str(&line).doing(|| format!("understand '{}'", line.trim()))
}

/// The process that reads: waits for its input to end, and says what came of it.
pub fn serve(models: &[PathBuf], rounds: usize) -> Result<()> {
    let what = || "talk to the program that started this one".to_owned();
    std::io::stdin().lock().read_until(b'\n', &mut Vec::new()).doing(what)?;
    let turns = read(models, rounds, process_read)?;
    let text = serde_json::to_string(&turns).doing(what)?;
    writeln!(std::io::stdout(), "{text}").doing(what)
}

/// Reads `models` in turn. `read_so_far` says how many bytes have come from the disk.
pub fn read(models: &[PathBuf], rounds: usize, mut read_so_far: impl FnMut() -> Result<u64>) -> Result<Turns> {
    let mut pool = Pool::new();
    let tensors = models.iter().map(|model| execution_order(model)).collect::<Result<Vec<_>>>()?;
    let mut round = || -> Result<()> {
        models.iter().zip(&tensors).try_for_each(|(model, tensors)| pool.load(model, tensors, false).map(drop))
    };
    round()?;
    let (start, before) = (Instant::now(), read_so_far()?);
    for _ in 1..rounds {
        round()?;
    }
    Ok(Turns { seconds: start.elapsed().as_secs_f64(), read: read_so_far()? - before })
}

/// Bytes that this process had read from storage (proc_pid_io(5)).
fn process_read() -> Result<u64> {
    let path = Path::new("/proc/self/io");
    let text = std::fs::read_to_string(path).doing(|| format!("read {}", path.display()))?;
    let value = text.lines().find_map(|line| line.strip_prefix("read_bytes:")?.trim().parse().ok());
    value.ok_or_else(|| BenchError::Unfit(format!("{} says nothing of what was read", path.display())))
}
