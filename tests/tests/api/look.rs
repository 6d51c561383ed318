//! What can be seen.

use std::fs;
use std::time::Instant;

use serde_json::{Value, json};
use weightfs_tests::Mount;
use weightfs_tests::api::{Api, encoded};
use weightfs_tests::system::wait_until;

use crate::{MIB, PATIENCE, can_mount, file, models, prefetch, text};

#[test]
fn the_socket_is_found_by_any_path_and_answers_what_the_command_prints() {
    if !can_mount() {
        return;
    }
    let source = models(&[("a.safetensors", 6), ("sub/b.safetensors", 6)]);
    let mount = Mount::start(source.path(), &["--ram", "64M"]);
    let api = Api::of(mount.path());
    for path in [mount.join("a.safetensors"), mount.join("sub")] {
        assert_eq!(Api::of(&path).socket(), api.socket());
    }
    let (asked, printed) = (api.get("/v1/status").json(), mount.status().0);
    let names = |value: &Value| value.as_object().expect("an object").keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(&asked), names(&printed));
    assert_eq!((&asked["mounts"], &asked["ram"]["limit_bytes"]), (&printed["mounts"], &json!(64 * MIB)));
    assert_eq!(api.get("/v1/mounts").json()["mounts"], asked["mounts"]);
    assert!(asked["pressure"]["mem_available_bytes"].as_u64() > Some(0) && asked["uptime_seconds"].is_number());
    let checked_in: Value = serde_json::from_str(include_str!("../../../mount/openapi.json")).expect("JSON");
    assert!(api.get("/v1/openapi.json").json() == checked_in, "mount/openapi.json is not what the daemon serves");
    mount.stop();
}

#[test]
fn every_model_file_is_listed_with_what_of_it_is_in_ram() {
    if !can_mount() {
        return;
    }
    let source = models(&[("a.safetensors", 6), ("sub/b.safetensors", 12), ("sub/c.safetensors", 2)]);
    fs::write(source.path().join("small.txt"), "small").expect("write");
    fs::write(source.path().join("ü b.gguf"), vec![7; 3 << 20]).expect("write");
    weightfs_tests::system::let_files_settle();
    let mount = Mount::start(source.path(), &["--ram", "64M"]);
    let api = Api::of(mount.path());
    let paths = |answer: &Value| -> Vec<String> {
        let files = answer["files"].as_array().expect("a list").iter();
        let name = |file: &Value| file["path"].as_str().expect("text").rsplit('/').next().map(str::to_owned);
        files.filter_map(name).collect()
    };
    let all = api.get("/v1/files").json();
    assert_eq!(paths(&all), ["a.safetensors", "b.safetensors", "c.safetensors", "ü b.gguf"]);
    assert_eq!((&all["totals"]["files"], &all["totals"]["resident_bytes"]), (&json!(4), &json!(0)));
    assert!(paths(&api.get("/v1/files?resident=true").json()).is_empty());
    prefetch(&api, &mount.join("sub/b.safetensors"));
    let resident = api.get("/v1/files?resident=true").json();
    assert_eq!(paths(&resident), ["b.safetensors"]);
    let known = &resident["files"][0];
    assert_eq!(
        (&known["state"], &known["format"], &known["priority"]),
        (&json!("resident"), &json!("safetensors"), &json!("normal"))
    );
    assert_eq!(known["resident_bytes"], known["size_bytes"]);
    let below = api.get(&format!("/v1/files?path={}&sort=size", encoded(&mount.join("sub")))).json();
    assert_eq!(paths(&below), ["b.safetensors", "c.safetensors"]);
    assert_eq!(file(&api, &mount.join("ü b.gguf"))["format"], "gguf");

    // Page by page.
    let (mut pages, mut cursor) = (Vec::new(), String::new());
    loop {
        let page = api.get(&format!("/v1/files?limit=3{cursor}")).json();
        assert_eq!(page["totals"]["files"], 4);
        pages.extend(paths(&page));
        match page["next"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => break,
        }
    }
    assert_eq!(pages, paths(&all));
    let nowhere = api.get("/v1/files?path=/proc");
    assert_eq!((nowhere.status, nowhere.problem().as_str()), (404, "not_mounted"));
    let outside = api.get(&format!("/v1/files?path={}/../..", encoded(mount.path())));
    assert_eq!(outside.problem(), "not_mounted");
    assert_eq!(api.get(&format!("/v1/files?path={}", encoded(&mount.join("none")))).problem(), "no_file");
    mount.stop();
}

#[test]
fn tensors_are_told_by_name_group_and_component() {
    if !can_mount() {
        return;
    }
    let source = models(&[("model.safetensors", 72)]);
    let mount = Mount::start(source.path(), &["--ram", "128M"]);
    let (api, path) = (Api::of(mount.path()), mount.join("model.safetensors"));
    let ask = || api.get(&format!("/v1/tensors?path={}", encoded(&path))).json();
    let sum = |list: &Value, field: &str| -> u64 {
        list.as_array().expect("a list").iter().map(|one| one[field].as_u64().expect("a number")).sum()
    };
    let absent = ask();
    assert_eq!(sum(&absent["tensors"], "resident_bytes"), 0);
    let size = sum(&absent["tensors"], "size_bytes");
    assert_eq!((sum(&absent["groups"], "size_bytes"), sum(&absent["components"], "size_bytes")), (size, size));
    assert!(
        size + absent["header_bytes"].as_u64().expect("a number") <= absent["size_bytes"].as_u64().expect("a number")
    );

    let pinned = api.post("/v1/pin", &json!({"path": path, "tensors": "blocks.1.attn.*"})).json();
    assert!(pinned["bytes"].as_u64() >= Some(24 * MIB));
    let is_wanted = |tensor: &Value| tensor["name"].as_str().is_some_and(|name| name.starts_with("blocks.1.attn."));
    let is_whole = |tensor: &Value| tensor["pinned"] == true && tensor["resident_bytes"] == tensor["size_bytes"];
    let are_there = || ask()["tensors"].as_array().expect("a list").iter().all(|one| !is_wanted(one) || is_whole(one));
    let are_there = wait_until(PATIENCE, are_there);
    let partial = ask();
    assert!(are_there, "{partial}");
    assert!(sum(&partial["tensors"], "resident_bytes") >= 24 * MIB, "{partial}");
    for tensor in partial["tensors"].as_array().expect("a list") {
        assert!(
            is_wanted(tensor) || tensor["pinned"] == false || tensor["size_bytes"].as_u64() < Some(2 * MIB),
            "{tensor}"
        );
    }
    assert!(partial["groups"].as_array().expect("a list").iter().any(|group| group["name"] == "blocks.1"));
    let known = file(&api, &path);
    assert_eq!(known["state"], "partial");
    assert!(known["pinned_bytes"].as_u64() >= Some(24 * MIB), "{known}");
    mount.stop();
}

#[test]
fn attributes_tell_how_much_is_resident_and_which_content_it_is() {
    if !can_mount() {
        return;
    }
    let source = models(&[("a.safetensors", 6)]);
    let mount = Mount::start(source.path(), &["--ram", "64M"]);
    let (api, path) = (Api::of(mount.path()), mount.join("a.safetensors"));
    let attribute = |name: &str| {
        let mut value = [0; 256];
        let length = rustix::fs::getxattr(&path, format!("user.weightfs.{name}"), &mut value[..]).expect("it is there");
        String::from_utf8(value[..length].to_vec()).expect("text")
    };
    let size = fs::metadata(&path).expect("it is there").len();
    assert_eq!(attribute("resident"), format!("0/{size}"));
    let before = attribute("generation");
    prefetch(&api, &path);
    assert_eq!(attribute("resident"), format!("{size}/{size}"));
    assert_eq!(attribute("generation"), before);
    weightfs_tests::data::write_safetensors(&source.path().join("new"), 9, 6);
    fs::rename(source.path().join("new"), source.path().join("a.safetensors")).expect("rename");
    let is_new = wait_until(PATIENCE, || attribute("generation") != before);
    assert!(is_new && attribute("resident") == format!("0/{size}"));
    mount.stop();
}

#[test]
fn looks_are_answered_at_once_while_clients_read() {
    if !can_mount() {
        return;
    }
    let source = models(&[("a.safetensors", 64), ("b.safetensors", 64)]);
    // Too small for both, so that everything is read again and again.
    let mount = Mount::start(source.path(), &["--ram", "80M", "--no-passthrough", "--open-wait", "0"]);
    let api = Api::of(mount.path());
    let done = std::sync::atomic::AtomicBool::new(false);
    let mut times = Vec::new();
    std::thread::scope(|scope| {
        for index in 0..8 {
            let path = mount.join(if index % 2 == 0 { "a.safetensors" } else { "b.safetensors" });
            let done = &done;
            scope.spawn(move || {
                while !done.load(std::sync::atomic::Ordering::Relaxed) {
                    assert!(fs::read(&path).expect("read").len() > 64 << 20);
                }
            });
        }
        let explain = format!("/v1/explain?path={}", encoded(&mount.join("a.safetensors")));
        for round in 0..40 {
            let path = ["/v1/status", "/v1/files", &explain, "/metrics"][round % 4];
            let begun = Instant::now();
            assert_eq!(api.get(path).status, 200);
            times.push(begun.elapsed());
        }
        done.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    times.sort();
    println!("answers took {:?} in the middle and {:?} at most", times[times.len() / 2], times[times.len() - 1]);
    assert!(!mount.log().contains("panicked") && text(mount.path()).starts_with('/'));
    mount.stop();
}
