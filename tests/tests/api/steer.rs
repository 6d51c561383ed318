//! What can be asked for.

use std::fs::{self, File};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use weightfs_tests::Mount;
use weightfs_tests::api::Api;
use weightfs_tests::system::wait_until;

use crate::{MIB, PATIENCE, can_mount, ended, file, models, prefetch};

#[test]
fn a_prefetch_is_a_job_with_progress_and_an_end() {
    if !can_mount() {
        return;
    }
    let source = models(&[("a.safetensors", 24), ("sub/b.safetensors", 12)]);
    let mount = Mount::start(source.path(), &["--ram", "128M"]);
    let api = Api::of(mount.path());
    // A folder is all that is beneath it.
    let job = prefetch(&api, mount.path());
    assert_eq!((&job["state"], &job["files"]), (&json!("done"), &json!(2)));
    assert_eq!(job["bytes_done"], job["bytes_total"]);
    assert!(job["bytes_done"].as_u64() >= Some(36 * MIB) && job.get("detail").is_none(), "{job}");
    let again = api.get(&format!("/v1/jobs/{}", job["id"].as_str().expect("a name"))).json();
    assert_eq!(again, job);
    assert_eq!(api.get("/v1/jobs/none").problem(), "not_found");
    assert_eq!(api.get("/v1/jobs/none?wait_ms=40000").problem(), "bad_request");
    for (wrong, kind) in [
        (json!({"paths": []}), "bad_request"),
        (json!({"paths": [mount.join("none")]}), "no_file"),
        (json!({"paths": ["/proc/self/maps"]}), "not_mounted"),
        (json!({"paths": [mount.join("a.safetensors")], "tensors": "*", "component": "vae"}), "bad_request"),
        (json!({"paths": [mount.join("a.safetensors")], "component": "wheel"}), "bad_request"),
    ] {
        assert_eq!(api.post("/v1/prefetch", &wrong).problem(), kind, "{wrong}");
    }
    // What does not fit is said.
    let tight = api.post("/v1/budget", &json!({"limit_bytes": 16 * MIB})).json();
    assert!(tight["budget_bytes"].as_u64() <= Some(16 * MIB), "{tight}");
    assert_eq!(api.post("/v1/budget", &json!({"limit_bytes": 129 * MIB})).problem(), "bad_request");
    api.post("/v1/flush", &json!({})).json();
    let job = prefetch(&api, &mount.join("a.safetensors"));
    assert_eq!(job["state"], "done");
    assert!(job["bytes_done"].as_u64() < job["bytes_total"].as_u64() && job["detail"].is_string(), "{job}");
    mount.stop();
}

#[test]
fn a_prefetch_that_is_cancelled_ends() {
    if !can_mount() {
        return;
    }
    let source = models(&[("a.safetensors", 384)]);
    weightfs_tests::system::drop_page_cache(&source.path().join("a.safetensors"));
    let mount = Mount::start(source.path(), &["--ram", "512M"]);
    let (api, path) = (Api::of(mount.path()), mount.join("a.safetensors"));
    let job = api.post("/v1/prefetch", &json!({"paths": [path]})).json();
    let id = job["id"].as_str().expect("a name");
    let cancelled = api.delete(&format!("/v1/jobs/{id}")).json();
    // A fast device may have read all of it by then.
    let state = cancelled["state"].as_str().expect("a state");
    assert!(["cancelled", "done"].contains(&state), "{cancelled}");
    let rest = wait_until(PATIENCE, || api.get("/v1/status").json()["fills"].as_array().is_some_and(Vec::is_empty));
    assert!(rest, "{}", api.get("/v1/status").body);
    let resident = file(&api, &path)["resident_bytes"].as_u64().expect("a number");
    assert!(state == "done" || resident < 384 * MIB, "{resident} bytes came although it was cancelled");
    assert_eq!(ended(&api, id)["state"], state);
    assert_eq!(api.delete("/v1/jobs/none").problem(), "not_found");
    // And it can be asked for again.
    assert_eq!(prefetch(&api, &path)["bytes_done"], fs::metadata(&path).expect("it is there").len());
    mount.stop();
}

#[test]
fn evictions_take_what_they_name_and_leave_what_is_open_or_pinned() {
    if !can_mount() {
        return;
    }
    let source = models(&[("a.safetensors", 72), ("b.safetensors", 12), ("c.safetensors", 12)]);
    let mount = Mount::start(source.path(), &["--ram", "128M"]);
    let api = Api::of(mount.path());
    let [a, b, c] = ["a", "b", "c"].map(|name| mount.join(&format!("{name}.safetensors")));
    prefetch(&api, mount.path());
    let part = api.post("/v1/evict", &json!({"path": a, "tensors": "blocks.1.attn.*"})).json();
    let freed = part["bytes"].as_u64().expect("a number");
    assert!((20 * MIB..=24 * MIB).contains(&freed), "{part}");
    assert_eq!(file(&api, &a)["state"], "partial");
    assert_eq!(api.post("/v1/evict", &json!({"path": a, "tensors": "none.*"})).json()["bytes"], 0);

    api.post("/v1/pin", &json!({"path": b, "priority": "high"})).json();
    assert_eq!(file(&api, &b)["priority"], "high");
    let open = File::open(&c).expect("open");
    assert_eq!(file(&api, &c)["in_use"], true);
    api.post("/v1/hints/in-use", &json!({"owner": "test", "paths": [a], "seconds": 600})).json();
    let flushed = api.post("/v1/flush", &json!({})).json();
    assert_eq!(flushed["bytes"], 0, "{flushed}");
    assert_eq!(api.delete("/v1/hints/in-use/test").status, 204);
    assert_eq!(api.delete("/v1/hints/in-use/nobody").problem(), "not_found");
    drop(open);
    let is_free = wait_until(PATIENCE, || {
        api.post("/v1/flush", &json!({})).json();
        let of = |path| file(&api, path)["resident_bytes"].as_u64().expect("a number");
        of(&a) == 0 && of(&b) > 0 && of(&c) == 0
    });
    assert!(is_free, "{}", api.get("/v1/files").body);
    assert_eq!(api.post("/v1/unpin", &json!({"path": b})).json()["files"], 1);
    assert_eq!(api.post("/v1/unpin", &json!({"path": b})).problem(), "no_file");
    assert_eq!(api.post("/v1/pin", &json!({"path": mount.join("none*")})).problem(), "no_file");
    let limited = api.post("/v1/budget", &json!({"limit_bytes": 8 * MIB})).json();
    assert!(limited["budget_bytes"].as_u64() <= Some(8 * MIB), "{limited}");
    assert_eq!(api.post("/v1/pin", &json!({"path": a})).problem(), "no_room");
    mount.stop();
}

#[test]
fn hints_are_taken_counted_and_forgotten() {
    if !can_mount() {
        return;
    }
    let source = models(&[("a.safetensors", 12), ("b.safetensors", 12)]);
    let mount = Mount::start(source.path(), &["--ram", "64M"]);
    let api = Api::of(mount.path());
    let [a, b] = ["a", "b"].map(|name| mount.join(&format!("{name}.safetensors")));
    let counts = || api.get("/v1/status").json()["hints"].clone();
    let queue = |entries: Value, seconds: f64| {
        api.post("/v1/hints/queue", &json!({"owner": "test", "entries": entries, "seconds": seconds})).json()
    };
    let taken = queue(
        json!([
            {"id": "1", "paths": [{"path": a}, {"path": "/nowhere"}]},
            {"id": "2", "paths": [{"path": b, "tensors": "*"}]},
        ]),
        600.0,
    );
    assert_eq!((&taken["files"], &taken["unknown"]), (&json!(2), &json!(["/nowhere"])));
    assert_eq!(counts()["queued"], 2);
    let is_ahead = wait_until(PATIENCE, || [&a, &b].iter().all(|path| file(&api, path)["state"] == "resident"));
    assert!(is_ahead, "what is queued is read ahead: {}", api.get("/v1/files").body);

    let vram =
        |paths: Value| api.post("/v1/hints/vram", &json!({"owner": "test", "device": "cuda:0", "paths": paths})).json();
    assert_eq!(vram(json!([a]))["files"], 1);
    assert_eq!((&file(&api, &a)["in_vram"], &file(&api, &b)["in_vram"]), (&json!(["cuda:0"]), &json!([])));
    vram(json!([]));
    assert_eq!(file(&api, &a)["in_vram"], json!([]));
    let priority = api.post("/v1/hints/priority", &json!({"path": a, "priority": "low"})).json();
    assert_eq!((&priority["files"], &file(&api, &a)["priority"]), (&json!(1), &json!("low")));

    queue(json!([{"id": "1", "paths": [{"path": a}]}]), 0.3);
    api.post("/v1/hints/in-use", &json!({"owner": "other", "paths": [a], "seconds": 0.3})).json();
    let none = json!({"in_use": 0, "queued": 0, "in_vram": 0});
    assert!(wait_until(PATIENCE, || counts() == none), "{}", counts());
    for (path, wrong) in [
        ("queue", json!({"owner": "", "entries": []})),
        ("queue", json!({"owner": "x", "entries": [], "seconds": -1})),
        ("in-use", json!({"owner": "x", "paths": [], "seconds": 1e99})),
        ("vram", json!({"owner": "x".repeat(300), "device": "cuda:0", "paths": []})),
        ("priority", json!({"path": a, "priority": "highest"})),
    ] {
        assert_eq!(api.post(&format!("/v1/hints/{path}"), &wrong).problem(), "bad_request", "{wrong}");
    }
    mount.stop();
}

#[test]
fn a_trace_is_recorded_outside_of_the_mount() {
    if !can_mount() {
        return;
    }
    let source = models(&[("a.safetensors", 6)]);
    let mount = Mount::start(source.path(), &["--ram", "64M"]);
    let api = Api::of(mount.path());
    let file = mount.private_folder().join("trace");
    assert_eq!(api.get("/v1/trace").json(), json!({"recording": false, "file": null}));
    assert_eq!(api.ask("POST", "/v1/trace/stop", None).problem(), "failed");
    assert_eq!(api.post("/v1/trace/start", &json!({"file": mount.join("trace")})).problem(), "failed");
    assert_eq!(api.post("/v1/trace/start", &json!({"file": "trace"})).problem(), "bad_request");
    assert_eq!(api.post("/v1/trace/start", &json!({"file": file})).json()["recording"], true);
    fs::read(mount.join("a.safetensors")).expect("read");
    let summary = api.ask("POST", "/v1/trace/stop", None).json();
    assert!(summary["events"].as_u64() > Some(0) && summary["file"] == json!(file), "{summary}");
    mount.stop();
}

#[test]
fn the_last_mount_is_ended_with_an_answer() {
    if !can_mount() {
        return;
    }
    let source = models(&[("a.safetensors", 6)]);
    let mut mount = Mount::start(source.path(), &["--ram", "64M"]);
    let api = Api::of(mount.path());
    let open = File::open(mount.join("a.safetensors")).expect("open");
    assert_eq!(api.post("/v1/unmount", &json!({"mountpoint": mount.path()})).problem(), "busy");
    assert_eq!(api.post("/v1/unmount", &json!({"mountpoint": "/proc"})).problem(), "not_mounted");
    drop(open);
    // Somebody listens until the end, which does not wait for that.
    let heard = api.events("");
    let begun = Instant::now();
    assert_eq!(api.post("/v1/unmount", &json!({"mountpoint": mount.path()})).status, 204);
    mount.check_gone();
    let last = heard.last().expect("something is told");
    assert_eq!(last.0, "worker", "{}", last.1);
    assert!(begun.elapsed() < Duration::from_secs(20), "nobody was told of the end");
}
