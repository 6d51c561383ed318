//! What `fio` gets from the disk under a file: direct reads of 2 MiB by io_uring, as deep as the loaders read.

use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::error::{BenchError, Doing, Result};

/// Why there is no fio, if so.
pub fn lacks() -> Option<String> {
    let found = Command::new("fio").arg("--version").stdout(Stdio::null()).status();
    (!found.is_ok_and(|status| status.success())).then(|| "fio is not installed".to_owned())
}

/// Reads the file once, from its start to its end.
pub fn gigabytes_per_second(path: &Path) -> Result<f64> {
    let command = format!("fio on {}", path.display());
    let output = Command::new("fio")
        .args(["--name=device", "--readonly", "--rw=read", "--direct=1", "--bs=2M", "--ioengine=io_uring"])
        .args(["--iodepth=8", "--output-format=json"])
        .arg(format!("--filename={}", path.display()))
        .output()
        .doing(|| format!("run {command}"))?;
    let failed = |words: &[u8]| {
        let words = String::from_utf8_lossy(words).trim().to_owned();
        BenchError::Program { command: command.clone(), words }
    };
    if !output.status.success() {
        return Err(failed(&output.stderr));
    }
    let report: Value = serde_json::from_slice(&output.stdout).map_err(|_| failed(&output.stdout))?;
    let speed = report["jobs"][0]["read"]["bw_bytes"].as_f64();
    Ok(speed.ok_or_else(|| failed(&output.stdout))? / 1e9)
}
