//! The dashboard in a real browser: against a made-up daemon that does what each test needs, and against a live mount.

use std::process::Command;
use std::time::Duration;

use weightfs_tests::Mount;
use weightfs_tests::data;
use weightfs_tests::mount::binary;
use weightfs_tests::python::workspace;
use weightfs_tests::requirements::{Need, met};
use weightfs_tests::system::{let_files_settle, temporary_folder};

/// A browser that hangs must not hold the tests.
const LONGEST: Duration = Duration::from_secs(180);

/// Runs one file of `tests/dashboard` with Node's own test runner.
fn run(file: &str, environment: &[(&str, &str)]) {
    let mut command = Command::new("timeout");
    command.args(["--kill-after=5", &LONGEST.as_secs().to_string(), "node", "--test", file]);
    command.current_dir(workspace().join("tests/dashboard")).envs(environment.iter().copied());
    let output = command.output().expect("run node");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{}\n{said}\n{}", output.status, String::from_utf8_lossy(&output.stderr));
}

#[test]
fn what_it_computes() {
    if met(&[Need::Browser]) {
        run("pure.test.mjs", &[]);
    }
}

#[test]
fn what_it_shows_and_asks_for() {
    if met(&[Need::Browser]) {
        run("page.test.mjs", &[]);
    }
}

#[test]
fn on_a_live_mount() {
    if !met(&[Need::Mount, Need::Browser]) {
        return;
    }
    let source = temporary_folder("source");
    for (folder, name, megabytes) in [
        ("checkpoints", "base.safetensors", 48),
        ("loras", "style.safetensors", 12),
        ("text_encoders", "encoder.safetensors", 24),
    ] {
        std::fs::create_dir(source.path().join(folder)).expect("make a folder");
        data::write_safetensors(&source.path().join(folder).join(name), 5, megabytes);
    }
    let_files_settle();
    let mount = Mount::start(source.path(), &["--ram", "256M", "--listen", "127.0.0.1:0"]);
    let path = mount.path().to_str().expect("UTF-8").to_owned();
    let output = mount.run(&["dashboard", &path, "--json"]);
    assert!(output.status.success(), "dashboard: {}", String::from_utf8_lossy(&output.stderr));
    let page: serde_json::Value = serde_json::from_slice(&output.stdout).expect("dashboard --json prints JSON");
    let text = |name: &str| page[name].as_str().unwrap_or_else(|| panic!("{page} has {name}")).to_owned();
    run(
        "live.test.mjs",
        &[
            ("WEIGHTFS_BIN", binary().to_str().expect("UTF-8")),
            ("DASHBOARD_URL", &text("url")),
            ("DASHBOARD_TOKEN", &text("token")),
            ("DASHBOARD_MOUNT", &path),
            ("XDG_RUNTIME_DIR", mount.private_folder().to_str().expect("UTF-8")),
        ],
    );
    mount.stop();
}
