//! `status`, `ls`, `explain`, `events`: commands that change nothing.

use std::io::{BufRead, BufReader};
use std::process::Stdio;

use serde_json::{Value, json};
use weightfs_tests::load::load;
use weightfs_tests::mask::shape;
use weightfs_tests::mount::program;
use weightfs_tests::system::wait_until;

use crate::{Library, PATIENCE};

#[test]
fn ls_shows_what_is_in_ram() {
    let Some(library) = Library::mounted() else { return };
    let absent = "\
IN RAM SIZE USED FILE
█ # SIZE # SIZE – checkpoints/base.safetensors
█ # SIZE # SIZE – loras/a.safetensors
█ # SIZE # SIZE – loras/b.safetensors
# files, # SIZE of # SIZE in RAM
";
    assert_eq!(library.prints(&["ls", library.root()]), absent);
    load(&library.mount.join("checkpoints/base.safetensors"));
    let is_there = || library.base_status()["state"] == "resident";
    assert!(wait_until(PATIENCE, is_there), "{:#}", library.base_status());
    let resident = "\
IN RAM SIZE USED FILE
█ # SIZE # SIZE # s /m/checkpoints/base.safetensors
# file, # SIZE of # SIZE in RAM
";
    let printed = library.prints(&["ls", &library.base()]);
    assert_eq!(printed.replace("  in use", "").replace(" in use", ""), resident);
    let listed = library.json(&["ls", library.root(), "--resident", "--json"]);
    assert_eq!(listed["files"].as_array().map(Vec::len), Some(1), "{listed:#}");
    assert_eq!(listed["totals"]["files"], 1, "{listed:#}");
    let biggest = library.json(&["ls", library.root(), "--sort", "size", "--json"]);
    assert!(biggest["files"][0]["path"].as_str().is_some_and(|path| path.ends_with("base.safetensors")));
    library.mount.stop();
}

#[test]
fn the_json_of_ls_has_the_fields_of_the_interface() {
    let Some(library) = Library::mounted() else { return };
    let expected = json!({
        "files": [{
            "path": "text", "size_bytes": "number", "resident_bytes": "number", "pinned_bytes": "number",
            "kept_bytes": "number", "client_held_bytes": "number", "state": "text", "filling_bytes": "number",
            "format": "text", "priority": "text", "in_use": "bool", "in_vram": [], "resident_seconds": "null",
            "unused_seconds": "null", "last_load": "null",
        }],
        "totals": {"files": "number", "size_bytes": "number", "resident_bytes": "number"},
    });
    assert_eq!(shape(&library.json(&["ls", library.root(), "--json"])), expected);
    library.mount.stop();
}

#[test]
fn the_tensors_of_a_file_are_listed_by_group() {
    let Some(library) = Library::mounted() else { return };
    let printed = library.told(&["ls", "--tensors", &library.base()]);
    assert!(printed.lines().nth(1).is_some_and(|line| line.contains("tensors, 0 B of")), "{printed}");
    assert!(printed.contains("blocks.0"), "{printed}");
    let told = library.json(&["ls", "--tensors", &library.base(), "--json"]);
    let sizes = |list: &str| told[list].as_array().into_iter().flatten().map(|one| one["size_bytes"].as_u64());
    assert_eq!(sizes("tensors").sum::<Option<u64>>(), sizes("groups").sum::<Option<u64>>(), "{told:#}");
    assert_eq!(told["tensors"][0]["dtype"], "F16", "{told:#}");
    library.mount.stop();
}

#[test]
fn the_status_is_found_by_any_path() {
    let Some(library) = Library::mounted() else { return };
    let by_file = library.prints(&["status", &library.base()]);
    assert_eq!(by_file, library.prints(&["status", library.root()]));
    assert!(by_file.starts_with("/m from "), "{by_file}");
    let explained = library.prints(&["explain", &library.base()]);
    assert!(explained.starts_with("/m/checkpoints/base.safetensors\nState not in RAM\nWhy "), "{explained}");
    assert_eq!(library.json(&["explain", &library.base(), "--json"])["resident_bytes"], 0);
    library.mount.stop();
}

#[test]
fn events_are_printed_as_they_happen() {
    let Some(library) = Library::mounted() else { return };
    let mut events = program(library.mount.private_folder())
        .args(["events", library.root(), "--kinds", "pinned,evicted,unpinned", "--json"])
        .stdout(Stdio::piped())
        .spawn()
        .expect("run weightfs");
    let mut lines = BufReader::new(events.stdout.take().expect("piped")).lines();
    // A reader is not there before it has connected: things happen until the first word of them comes.
    let seen = std::thread::spawn(move || {
        lines.next().map(|line| serde_json::from_str::<Value>(&line.expect("text")).expect("an event is JSON"))
    });
    let came = wait_until(PATIENCE, || {
        library.told(&["pin", &library.base()]);
        library.told(&["unpin", &library.base()]);
        seen.is_finished()
    });
    events.kill().expect("it runs");
    events.wait().expect("it ends");
    assert!(came, "no event came");
    let event = seen.join().expect("it does not panic").expect("an event");
    assert!(["pinned", "unpinned"].contains(&event["kind"].as_str().unwrap_or_default()), "{event}");
    assert!(event["at"].as_f64().is_some_and(|at| at > 1e9), "{event}");
    let (code, _, words) = library.run(&["events", library.root(), "--kinds", "nonsense"]);
    assert!(code == 2 && words.contains("opened, filled"), "{code}: {words}");
    library.mount.stop();
}

#[test]
fn without_a_daemon_every_command_says_so() {
    let folder = weightfs_tests::system::temporary_folder("plain");
    let plain = crate::text(folder.path());
    for command in ["ls", "status", "flush", "events", "dashboard", "explain", "prefetch", "evict", "pin", "unpin"] {
        let output = program(folder.path()).args([command, plain]).output().expect("run weightfs");
        let words = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(3), "{command}: {words}");
        assert!(words.contains("is not in a weightfs mount"), "{command}: {words}");
    }
}
