//! What happens over time: events, samples, metrics, the log.

use std::collections::BTreeSet;
use std::fs;

use serde_json::{Value, json};
use weightfs_tests::Mount;
use weightfs_tests::api::Api;
use weightfs_tests::python::workspace;
use weightfs_tests::system::wait_until;

use crate::{MIB, PATIENCE, can_mount, models, prefetch};

#[test]
fn events_tell_what_happens_to_whom_and_why() {
    if !can_mount() {
        return;
    }
    let source = models(&[("a.safetensors", 12)]);
    let mount = Mount::start(source.path(), &["--ram", "64M"]);
    let (api, path) = (Api::of(mount.path()), mount.join("a.safetensors"));
    let mut all = api.events("");
    let mut some = api.events("?kinds=evicted,unpinned");
    fs::read(&path).expect("read");
    prefetch(&api, &path);
    api.post("/v1/pin", &json!({"path": path, "tensors": "none"})).json();
    api.post("/v1/unpin", &json!({"path": path})).json();
    let evicted = wait_until(PATIENCE, || api.post("/v1/evict", &json!({"path": path})).json()["bytes"] != 0);
    assert!(evicted);
    let mut seen: Vec<(String, Value)> = Vec::new();
    let mut has = |kind: &str| {
        while !seen.iter().any(|(name, _)| name == kind) {
            seen.push(all.next().unwrap_or_else(|| panic!("{kind} is told")));
        }
        seen.iter().find(|(name, _)| name == kind).map(|(_, data)| data.clone()).expect("it was found")
    };
    for kind in ["opened", "prefetch", "filled", "pinned", "unpinned", "evicted"] {
        let event = has(kind);
        assert_eq!(event["kind"], kind);
        assert!(event["at"].as_f64() > Some(1.7e9), "{event}");
        assert_eq!(event["path"], json!(path), "{kind}");
    }
    assert_eq!(has("evicted")["reason"], "asked for");
    assert!(has("filled")["bytes"].as_u64() >= Some(12 * MIB));
    let kinds: Vec<String> = some.by_ref().take(2).map(|(name, _)| name).collect();
    assert_eq!(kinds, ["unpinned", "evicted"]);
    assert_eq!(api.get("/v1/events?kinds=nothing").problem(), "bad_request");
    drop((all, some));
    mount.stop();
}

#[test]
fn samples_add_up_to_what_was_read() {
    if !can_mount() {
        return;
    }
    let source = models(&[("a.safetensors", 24)]);
    let mount = Mount::start(source.path(), &["--ram", "64M"]);
    let (api, path) = (Api::of(mount.path()), mount.join("a.safetensors"));
    let first =
        wait_until(PATIENCE, || api.get("/v1/history").json()["samples"].as_array().is_some_and(|s| !s.is_empty()));
    assert!(first);
    fs::read(&path).expect("read");
    prefetch(&api, &path);
    fs::read(&path).expect("read");
    let sum = |history: &Value, field: &str| -> u64 {
        let samples = history["samples"].as_array().expect("a list").iter();
        samples.map(|sample| sample[field].as_u64().expect("a number")).sum()
    };
    let mut history = Value::Null;
    let adds_up = wait_until(PATIENCE, || {
        (history, _) = (api.get("/v1/history").json(), ());
        let io = api.get("/v1/status").json()["io"].clone();
        sum(&history, "source_read_bytes") == io["source_read_bytes"]
            && sum(&history, "served_bytes")
                == io["served_from_ram_bytes"].as_u64().unwrap_or(0)
                    + io["served_from_source_bytes"].as_u64().unwrap_or(0)
            && sum(&history, "passthrough_opens") == io["passthrough_opens"]
    });
    assert!(adds_up, "{history:#} {:#}", mount.status().0);
    let last = history["samples"].as_array().and_then(|samples| samples.last()).expect("one").clone();
    assert!(last["resident_bytes"].as_u64() >= Some(24 * MIB) && last["budget_bytes"] == 64 * MIB, "{last}");
    mount.stop();
}

/// The names of metrics in a text.
fn metrics_in(text: &str) -> BTreeSet<String> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    text.split(|c| !is_part(c)).filter(|word| word.starts_with("weightfs_")).map(str::to_owned).collect()
}

#[test]
fn what_ships_for_prometheus_knows_the_metrics_that_there_are() {
    if !can_mount() {
        return;
    }
    let source = models(&[("a.safetensors", 6)]);
    let mount = Mount::start(source.path(), &["--ram", "64M"]);
    let text = Api::of(mount.path()).get("/metrics").body;
    mount.stop();
    let declared: BTreeSet<String> =
        text.lines().filter_map(|line| line.strip_prefix("# HELP ")?.split(' ').next().map(str::to_owned)).collect();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let (name, value) = line.rsplit_once(' ').expect("a name and a value");
        let name = name.split('{').next().expect("a name");
        assert!(declared.contains(name) && value.parse::<f64>().is_ok_and(f64::is_finite), "{line}");
    }
    for file in ["packaging/grafana.json", "packaging/alerts.yml"] {
        let used = metrics_in(&fs::read_to_string(workspace().join(file)).expect("it ships"));
        assert!(used.len() > 3, "{file} uses metrics");
        let unknown: Vec<_> = used.difference(&declared).collect();
        assert!(unknown.is_empty(), "{file}: {unknown:?}");
    }
    let dashboard = fs::read_to_string(workspace().join("packaging/grafana.json")).expect("it ships");
    assert!(serde_json::from_str::<Value>(&dashboard).expect("JSON")["panels"].as_array().is_some_and(|p| p.len() > 3));
}

#[test]
fn the_log_can_be_one_object_a_line() {
    if !can_mount() {
        return;
    }
    let source = models(&[("a.safetensors", 6)]);
    let mount = Mount::start(source.path(), &["--ram", "64M", "--log-format", "json"]);
    let lines: Vec<Value> =
        mount.log().lines().map(|line| serde_json::from_str(line).unwrap_or_else(|_| panic!("{line}"))).collect();
    let is_whole = |line: &Value| ["message", "level", "timestamp", "target"].iter().all(|name| line[name].is_string());
    assert!(!lines.is_empty() && lines.iter().all(is_whole), "{lines:?}");
    mount.stop();
}
