//! The daemon against its own description: schemathesis asks everything that the OpenAPI document allows, and much that
//! it does not, and holds the answers against it.

use std::process::Command;

use serde_json::json;
use weightfs_tests::Mount;
use weightfs_tests::api::Api;
use weightfs_tests::python::interpreter;
use weightfs_tests::requirements::{Need, met, skip};

use crate::models;

/// Of each operation: enough to be worth it, few enough for every run.
const EXAMPLES: &str = "15";

#[test]
fn answers_are_as_the_description_says() {
    if !met(&[Need::Mount, Need::Python]) {
        return;
    }
    let has_it = Command::new(interpreter()).args(["-c", "import schemathesis"]).output();
    if !has_it.is_ok_and(|output| output.status.success()) {
        return skip("schemathesis is not installed; 'make venv' installs it");
    }
    let source = models(&[("a.safetensors", 6)]);
    let mount = Mount::start(source.path(), &["--ram", "64M", "--listen", "127.0.0.1:0"]);
    let page = Api::of(mount.path()).post("/v1/dashboard", &json!({})).json();
    let (listen, token) = (page["listen"].as_str().expect("an address"), page["token"].as_str().expect("a token"));
    let output = Command::new(interpreter())
        .args(["-m", "schemathesis.cli", "run", &format!("http://{listen}/v1/openapi.json")])
        .args(["--origin", &format!("http://{listen}")])
        .args(["--header", &format!("Authorization: Bearer {token}")])
        .args(["--max-examples", EXAMPLES, "--generation-deterministic", "--no-color", "--workers", "1"])
        // A stream that goes on is no answer that could be held against anything; and the mount is found, and ended.
        .args([
            "--exclude-path",
            "/v1/events",
            "--exclude-path",
            "/v1/unmount",
            "--request-timeout",
            "10",
            "--max-response-time",
            "5",
        ])
        // No schema knows which paths, addresses and names there are.
        .args(["--exclude-checks", "positive_data_acceptance"])
        .current_dir(mount.private_folder())
        .output()
        .expect("run schemathesis");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}\n{}", String::from_utf8_lossy(&output.stderr));
    assert!(!mount.log().contains("panicked"), "{}", mount.log());
    mount.stop();
}
