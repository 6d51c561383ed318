//! Who may look and who may steer, as real users.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use rustix::fs::{Gid, Uid};
use serde_json::json;
use weightfs_tests::Mount;
use weightfs_tests::actor::{ALICE, BOB};
use weightfs_tests::api::{Api, encoded};
use weightfs_tests::requirements::{Need, met};

use crate::models;

fn can_act() -> bool {
    met(&[Need::Mount, Need::Root])
}

fn give(path: &std::path::Path, user: u32, mode: u32) {
    rustix::fs::chown(path, Some(Uid::from_raw(user)), Some(Gid::from_raw(user))).expect("give it away");
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("set the mode");
}

#[test]
fn the_owner_of_the_folder_steers_and_others_look() {
    if !can_act() {
        return;
    }
    let source = models(&[("a.safetensors", 6), ("closed/b.safetensors", 6)]);
    give(source.path(), ALICE, 0o755);
    fs::set_permissions(source.path().join("closed"), fs::Permissions::from_mode(0o700)).expect("close it");
    for name in ["a.safetensors", "closed/b.safetensors"] {
        fs::set_permissions(source.path().join(name), fs::Permissions::from_mode(0o644)).expect("open it");
    }
    let mount = Mount::start(source.path(), &["--ram", "64M"]);
    let root = Api::of(mount.path());
    let (alice, bob) = (root.as_user(ALICE), root.as_user(BOB));
    let (open, closed) = (mount.join("a.safetensors"), mount.join("closed/b.safetensors"));

    for path in ["/v1/status", "/v1/mounts", "/v1/history", "/v1/doctor", "/metrics", "/v1/trace"] {
        assert_eq!(bob.get(path).status, 200, "{path}");
    }
    // Nobody sees by it what they could not see themselves.
    let listed = |api: &Api| api.get("/v1/files").json()["totals"]["files"].clone();
    assert_eq!((listed(&root), listed(&alice), listed(&bob)), (json!(2), json!(1), json!(1)));
    assert_eq!(bob.get(&format!("/v1/tensors?path={}", encoded(&open))).status, 200);
    for path in ["tensors", "explain"] {
        assert_eq!(bob.get(&format!("/v1/{path}?path={}", encoded(&closed))).problem(), "not_permitted");
    }

    let steering = [
        ("pin", json!({"path": open})),
        ("unpin", json!({"path": open})),
        ("evict", json!({"path": open})),
        ("prefetch", json!({"paths": [open]})),
        ("flush", json!({})),
        ("budget", json!({"limit_bytes": 64 << 20})),
        ("hints/priority", json!({"path": open, "priority": "low"})),
        ("dashboard", json!({})),
    ];
    for (path, body) in &steering {
        assert_eq!(bob.post(&format!("/v1/{path}"), body).problem(), "not_permitted", "{path}");
        let done = alice.post(&format!("/v1/{path}"), body);
        assert!((200..300).contains(&done.status), "{path}: {}", done.body);
    }
    // What the daemon does with its own rights is for its user.
    let file = mount.private_folder().join("trace");
    for (path, body) in [
        ("trace/start", json!({"file": file})),
        ("upgrade", json!({"program": "/bin/true"})),
        ("dashboard", json!({"listen": "0.0.0.0:0"})),
    ] {
        assert_eq!(alice.post(&format!("/v1/{path}"), &body).problem(), "not_permitted", "{path}");
    }
    assert!(!file.exists());
    assert_eq!(bob.post("/v1/unmount", &json!({"mountpoint": mount.path()})).problem(), "not_permitted");

    // Hints are for whoever may read the file.
    let hint = |api: &Api, owner: &str, path: &std::path::Path| {
        api.post("/v1/hints/in-use", &json!({"owner": owner, "paths": [path], "seconds": 600}))
    };
    assert_eq!(hint(&bob, "bob", &open).json()["files"], 1);
    assert_eq!(hint(&bob, "bob", &closed).json()["files"], 0);
    assert_eq!(hint(&alice, "bob", &open).problem(), "not_permitted", "it is the name of somebody else's program");
    assert_eq!(alice.delete("/v1/hints/in-use/bob").problem(), "not_permitted");
    assert_eq!(bob.delete("/v1/hints/in-use/bob").status, 204);

    // A prefetch is ended by who asked for it.
    let id = alice.post("/v1/prefetch", &json!({"paths": [open]})).json()["id"].as_str().expect("a name").to_owned();
    assert_eq!(bob.delete(&format!("/v1/jobs/{id}")).problem(), "not_permitted");
    assert_eq!(alice.delete(&format!("/v1/jobs/{id}")).status, 200);
    mount.stop();
}

#[test]
fn members_of_the_control_group_steer() {
    if !can_act() {
        return;
    }
    let source = models(&[("a.safetensors", 6)]);
    let mount = Mount::start(source.path(), &["--ram", "64M", "--control-group", &BOB.to_string()]);
    let (root, open) = (Api::of(mount.path()), mount.join("a.safetensors"));
    let pin = json!({"path": open});
    assert_eq!(root.as_user(BOB).post("/v1/pin", &pin).json()["files"], 1);
    assert_eq!(root.as_user(ALICE).post("/v1/unpin", &pin).problem(), "not_permitted");
    mount.stop();
}

#[test]
fn where_others_may_not_use_the_mount_they_may_not_look() {
    if !can_act() {
        return;
    }
    let source = models(&[("a.safetensors", 6)]);
    give(source.path(), ALICE, 0o755);
    let mount = Mount::start(source.path(), &["--ram", "64M", "--allow-other=false"]);
    let root = Api::of(mount.path());
    assert_eq!(root.as_user(BOB).get("/v1/status").problem(), "not_permitted");
    assert_eq!(root.as_user(BOB).get("/v1/events").problem(), "not_permitted");
    assert_eq!(root.as_user(ALICE).get("/v1/status").status, 200);
    mount.stop();
}
