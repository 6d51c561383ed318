//! Who may do what is decided by who asks and not by who runs the daemon.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::Path;

use rustix::io::Errno;
use weightfs_tests::actor::{ALICE, BOB};
use weightfs_tests::{Actor, Pair};

use crate::{SMALL, can_be_several_users};

fn text(path: &Path) -> String {
    path.to_str().expect("UTF-8").to_owned()
}

/// A pair whose folder `shared` anyone may write to, and `hers` only Alice.
fn shared_pair() -> Pair {
    let pair = Pair::new(SMALL);
    pair.same("make", |root| {
        for (name, mode, owner) in [("shared", 0o1777, 0), ("hers", 0o700, ALICE), ("setgid", 0o2777, BOB)] {
            fs::create_dir(root.join(name)).expect("mkdir");
            chown(root.join(name), Some(owner), Some(owner)).expect("chown");
            fs::set_permissions(root.join(name), fs::Permissions::from_mode(mode)).expect("chmod");
        }
    });
    pair
}

#[test]
fn new_files_belong_to_who_made_them() {
    if !can_be_several_users() {
        return;
    }
    let pair = shared_pair();
    let file = text(&pair.mount().join("shared/file"));
    pair.same("make things as Alice", |root| {
        let mut alice = Actor::start(ALICE);
        let name = |name: &str| text(&root.join("shared").join(name));
        vec![
            alice.act(&["umask", "027"]),
            alice.act(&["create", &name("file"), "666"]),
            alice.act(&["mkdir", &name("folder"), "777"]),
            alice.act(&["symlink", "file", &name("link")]),
            alice.act(&["create", &text(&root.join("setgid/file")), "666"]),
            alice.act(&["mkdir", &text(&root.join("setgid/folder")), "777"]),
        ]
    });
    pair.check_trees("making things as Alice");
    for name in ["shared/file", "shared/folder", "shared/link"] {
        for root in [pair.mount().path(), pair.source()] {
            let found = fs::symlink_metadata(root.join(name)).expect("stat");
            assert_eq!((found.uid(), found.gid()), (ALICE, ALICE), "{name}");
        }
    }
    assert_eq!(fs::metadata(&file).expect("stat").mode() & 0o777, 0o640, "umask");
    assert_eq!(fs::metadata(pair.source().join("setgid/file")).expect("stat").gid(), BOB, "of the set-group-id folder");
    pair.stop();
}

#[test]
fn permissions_are_the_callers() {
    if !can_be_several_users() {
        return;
    }
    let pair = shared_pair();
    pair.same("make a file as Alice", |root| {
        let mut alice = Actor::start(ALICE);
        let secret = text(&root.join("hers/secret.safetensors"));
        let open = text(&root.join("shared/open.safetensors"));
        for (path, mode) in [(&secret, "600"), (&open, "644")] {
            let handle = alice.act(&["create", path, mode]).expect("create");
            alice.act(&["write", &handle, "0", "content"]).expect("write");
        }
    });
    let outcomes = pair.same("try things as Bob", |root| {
        let mut bob = Actor::start(BOB);
        let hers = |name: &str| text(&root.join("hers").join(name));
        let shared = |name: &str| text(&root.join("shared").join(name));
        vec![
            bob.act(&["open", &hers("secret.safetensors"), "r"]),
            bob.act(&["stat", &hers("secret.safetensors")]),
            bob.act(&["list", &hers("")]),
            bob.act(&["create", &hers("x"), "600"]),
            bob.act(&["open", &shared("open.safetensors"), "rw"]),
            bob.act(&["truncate", &shared("open.safetensors"), "0"]),
            bob.act(&["chmod", &shared("open.safetensors"), "666"]),
            bob.act(&["unlink", &shared("open.safetensors")]),
            bob.act(&["rename", &shared("open.safetensors"), &shared("stolen")]),
            bob.act(&["access", &shared("open.safetensors"), "w"]),
            bob.act(&["chown", &shared("open.safetensors"), &BOB.to_string()]),
            bob.act(&["create", &text(&root.join("not-his")), "600"]),
            bob.act(&["access", &shared("open.safetensors"), "r"]),
            bob.act(&["open", &shared("open.safetensors"), "r"]),
        ]
    });
    for (index, outcome) in outcomes.iter().enumerate().take(12) {
        assert!(matches!(outcome, Err(Errno::ACCESS | Errno::PERM)), "act {index} gave {outcome:?}");
    }
    assert!(outcomes[12].is_ok() && outcomes[13].is_ok(), "what everyone may read: {outcomes:?}");
    pair.check_trees("trying things as Bob");
    pair.stop();
}

#[test]
fn owners_change_as_they_may() {
    if !can_be_several_users() {
        return;
    }
    let pair = shared_pair();
    pair.same("make a set-user-id program as Alice", |root| {
        let mut alice = Actor::start(ALICE);
        let path = text(&root.join("shared/tool"));
        let handle = alice.act(&["create", &path, "755"]).expect("create");
        alice.act(&["chmod", &path, "4755"]).expect("chmod");
        alice.act(&["write", &handle, "0", "new code"]).expect("write");
    });
    pair.check_trees("writing to a set-user-id program");
    pair.same("chown as root", |root| chown(root.join("shared/tool"), Some(BOB), Some(BOB)).expect("chown"));
    pair.check_trees("chown");
    let lost = pair.same("chown by Alice, who lost it", |root| {
        Actor::start(ALICE).act(&["chown", &text(&root.join("shared/tool")), &ALICE.to_string()])
    });
    assert_eq!(lost, Err(Errno::PERM));
    pair.both("Bob writes to what is his now", |root| {
        Actor::start(BOB).act(&["truncate", &text(&root.join("shared/tool")), "3"])
    });
    pair.check_trees("a new owner");
    pair.stop();
}

#[test]
fn others_are_let_in_only_when_asked() {
    if !can_be_several_users() {
        return;
    }
    let source = weightfs_tests::system::temporary_folder("source");
    fs::write(source.path().join("f"), b"x").expect("write");
    let mount = weightfs_tests::Mount::start(source.path(), &["--ram", "64M", "--allow-other=false"]);
    let outcome = Actor::start(ALICE).act(&["open", &text(&mount.join("f")), "r"]);
    assert_eq!(outcome, Err(Errno::ACCESS), "with --allow-other=false");
    mount.stop();
}
