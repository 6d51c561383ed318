//! `prefetch`, `pin`, `evict`, `flush`: commands that change what is in RAM.

use std::process::Stdio;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::json;
use weightfs_tests::load::load;
use weightfs_tests::mask::shape;
use weightfs_tests::mount::program;
use weightfs_tests::system::wait_until;

use crate::{Library, PATIENCE};

#[test]
fn a_prefetch_says_what_came_of_it() {
    let Some(library) = Library::mounted() else { return };
    let printed = library.prints(&["prefetch", "--wait", &library.base()]);
    assert!(printed.starts_with("# SIZE resident, # file"), "{printed}");
    assert_eq!(library.base_status()["state"], "resident");
    let loras = format!("{}/loras/*.safetensors", library.root());
    let job = library.json(&["prefetch", "--wait", "--json", &loras]);
    assert_eq!((&job["state"], &job["files"]), (&json!("done"), &json!(2)), "{job:#}");
    assert_eq!(job["bytes_done"], job["bytes_total"], "{job:#}");
    let (code, _, words) = library.run(&["prefetch", &format!("{}/none*", library.root())]);
    assert!(code == 1 && words.contains("no file"), "{code}: {words}");
    library.mount.stop();
}

#[test]
fn tensors_alone_can_be_prefetched() {
    let Some(library) = Library::mounted() else { return };
    library.told(&["prefetch", "--wait", &library.base(), "--tensors", "blocks.1.*"]);
    let status = library.base_status();
    assert_eq!(status["state"], "partial", "{status:#}");
    let tensors = library.json(&["ls", "--tensors", "--json", &library.base()]);
    let group = |name: &str| {
        let groups = tensors["groups"].as_array().expect("groups");
        groups.iter().find(|group| group["name"].as_str().is_some_and(|found| found.starts_with(name))).cloned()
    };
    let wanted = group("blocks.1").expect("the group is there");
    assert_eq!(wanted["resident_bytes"], wanted["size_bytes"], "{tensors:#}");
    library.mount.stop();
}

#[test]
fn ctrl_c_stops_a_prefetch() {
    let Some(library) = Library::mounted() else { return };
    // Whether it is stopped or done by then, it ends at once and says which.
    let child = program(library.mount.private_folder())
        .args(["prefetch", "--wait", "--json", &library.base()])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("run weightfs");
    std::thread::sleep(std::time::Duration::from_millis(20));
    // It may have ended already.
    let _ = kill(Pid::from_raw(child.id() as i32), Signal::SIGINT);
    let output = child.wait_with_output().expect("it ends");
    match output.status.code() {
        Some(0) => assert_eq!(library.base_status()["state"], "resident"),
        Some(130) => {
            let job: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
            assert_eq!(job["state"], "cancelled", "{job:#}");
        }
        // Before it waited for signals at all.
        None => {}
        other => panic!("{other:?}: {}", String::from_utf8_lossy(&output.stderr)),
    }
    library.mount.stop();
}

#[test]
fn what_is_pinned_stays_when_everything_is_flushed() {
    let Some(library) = Library::mounted() else { return };
    let lora = library.mount.join("loras/a.safetensors");
    assert_eq!(library.prints(&["pin", crate::text(&lora)]), "/m/loras/a.safetensors: # SIZE pinned, # file\n");
    load(&library.mount.join("checkpoints/base.safetensors"));
    load(&lora);
    let state = |path: &str| library.json(&["ls", path, "--json"])["files"][0]["state"].clone();
    let both = || state(&library.base()) == "resident" && state(crate::text(&lora)) == "resident";
    assert!(wait_until(PATIENCE, both));
    // What was just closed may still be held for a moment.
    let is_gone = || {
        library.told(&["flush", library.root()]);
        state(&library.base()) == "absent"
    };
    assert!(wait_until(PATIENCE, is_gone), "{:#}", library.base_status());
    assert_eq!(state(crate::text(&lora)), "resident");
    let done = library.json(&["flush", library.root(), "--json"]);
    assert_eq!(shape(&done), json!({"files": "number", "bytes": "number", "left_bytes": "number"}));
    assert_eq!(
        library.prints(&["unpin", crate::text(&lora)]),
        "/m/loras/a.safetensors: # SIZE no longer pinned, # file\n"
    );
    let printed = library.prints(&["evict", crate::text(&lora)]);
    assert_eq!(printed, "/m/loras/a.safetensors: # SIZE freed, # file\n");
    library.mount.stop();
}

#[test]
fn every_command_has_json() {
    let Some(library) = Library::mounted() else { return };
    let base = library.base();
    let outcome = json!({"files": "number", "bytes": "number", "left_bytes": "number"});
    for command in ["pin", "unpin", "evict"] {
        assert_eq!(shape(&library.json(&[command, "--json", &base])), json!([outcome]), "{command}");
    }
    let trace = library.mount.private_folder().join("day.trace");
    let of = ["--of", library.root(), "--json"];
    let started = library.json(&[&["trace", "start", crate::text(&trace)], &of[..]].concat());
    assert_eq!(started["recording"], true, "{started:#}");
    let stopped = library.json(&[&["trace", "stop"], &of[..]].concat());
    assert_eq!(shape(&stopped), json!({"file": "text", "events": "number", "lost": "number"}));
    library.mount.stop();
}
