//! Nothing outside the source can be reached through the mount.

use std::fs;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt, symlink};
use std::path::Path;
use std::time::Duration;

use rustix::io::Errno;
use weightfs_tests::Mount;
use weightfs_tests::actor::ALICE;
use weightfs_tests::compare::outcome;
use weightfs_tests::data;
use weightfs_tests::system::{temporary_folder, wait_until};

use crate::{can_be_several_users, can_mount};

#[test]
fn links_are_shown_as_links() {
    if !can_mount() {
        return;
    }
    let outside = temporary_folder("outside");
    fs::write(outside.path().join("secret"), b"secret").expect("write");
    let source = temporary_folder("source");
    symlink(outside.path().join("secret"), source.path().join("absolute")).expect("symlink");
    symlink("../../../../../../etc/hostname", source.path().join("dots")).expect("symlink");
    symlink(outside.path(), source.path().join("folder")).expect("symlink");
    let mount = Mount::start(source.path(), &["--ram", "64M"]);
    for name in ["absolute", "dots", "folder"] {
        let found = fs::symlink_metadata(mount.join(name)).expect("stat");
        assert!(found.file_type().is_symlink(), "{name} is shown as what it is");
        let target = |root: &Path| fs::read_link(root.join(name)).expect("readlink");
        assert_eq!(target(mount.path()), target(source.path()));
    }
    mount.stop();
}

#[test]
fn dots_end_at_the_mount() {
    if !can_mount() {
        return;
    }
    let parent = temporary_folder("parent");
    let source = parent.path().join("models");
    fs::create_dir_all(source.join("loras")).expect("mkdir");
    fs::write(parent.path().join("sibling"), b"outside").expect("write");
    let mount = Mount::start(&source, &["--ram", "64M"]);
    // `..` of the mount's root is the folder that holds the mount point, never the one that holds the source.
    assert_eq!(outcome(fs::read(mount.join("../sibling"))), Err(Errno::NOENT));
    assert_eq!(outcome(fs::read(mount.join("loras/../../sibling"))), Err(Errno::NOENT));
    let escaped =
        rustix::fs::renameat(rustix::fs::CWD, mount.join("loras"), rustix::fs::CWD, parent.path().join("taken"));
    assert_eq!(escaped, Err(Errno::XDEV));
    let linked = outcome(fs::hard_link(parent.path().join("sibling"), mount.join("sibling")));
    assert_eq!(linked, Err(Errno::XDEV));
    mount.stop();
}

/// Somebody replaces a folder by a link to the outside while the daemon walks through it.
#[test]
fn a_folder_that_becomes_a_link_leads_nowhere() {
    if !can_mount() {
        return;
    }
    let outside = temporary_folder("outside");
    fs::write(outside.path().join("weights.safetensors"), b"outside").expect("write");
    let source = temporary_folder("source");
    let (folder, aside) = (source.path().join("loras"), source.path().join("aside"));
    fs::create_dir(&folder).expect("mkdir");
    fs::write(folder.join("weights.safetensors"), b"inside").expect("write");
    symlink(outside.path(), &aside).expect("symlink");
    let mount = Mount::start(source.path(), &["--ram", "64M"]);
    let held = fs::File::open(mount.join("loras")).expect("open");
    for _ in 0..300 {
        let swap = rustix::fs::RenameFlags::EXCHANGE;
        rustix::fs::renameat_with(rustix::fs::CWD, &folder, rustix::fs::CWD, &aside, swap).expect("exchange");
        // The kernel still knows `loras` as a folder here: what it asks must not be answered from the outside.
        let opened =
            rustix::fs::openat(&held, "weights.safetensors", rustix::fs::OFlags::RDONLY, rustix::fs::Mode::empty());
        if let Ok(file) = opened {
            let mut found = [0; 16];
            let n = rustix::io::pread(&file, &mut found, 0).unwrap_or(0);
            assert_ne!(&found[..n], b"outside", "the daemon followed a link out of the source");
        }
        // Likewise for what it writes.
        let _ = rustix::fs::mkdirat(&held, "made", rustix::fs::Mode::RWXU);
        let _ = rustix::fs::unlinkat(&held, "made", rustix::fs::AtFlags::REMOVEDIR);
        assert!(!outside.path().join("made").exists(), "the daemon made a folder outside of the source");
    }
    drop(held);
    mount.stop();
}

#[test]
fn links_are_followed_when_asked_for_and_owned_by_whom_one_trusts() {
    if !can_be_several_users() {
        return;
    }
    let outside = temporary_folder("outside");
    data::write_file(&outside.path().join("model.safetensors"), 4, 3 << 20);
    fs::create_dir(outside.path().join("drive")).expect("mkdir");
    data::write_file(&outside.path().join("drive/lora.safetensors"), 5, 3 << 20);
    let source = temporary_folder("source");
    symlink(outside.path().join("model.safetensors"), source.path().join("trusted.safetensors")).expect("symlink");
    symlink(outside.path().join("drive"), source.path().join("drive")).expect("symlink");
    symlink(outside.path().join("model.safetensors"), source.path().join("alices.safetensors")).expect("symlink");
    std::os::unix::fs::lchown(source.path().join("alices.safetensors"), Some(ALICE), Some(ALICE)).expect("lchown");
    fs::write(source.path().join("inside"), b"inside").expect("write");
    symlink("inside", source.path().join("link-inside")).expect("symlink");

    let mount = Mount::start(source.path(), &["--ram", "64M", "--follow-symlinks"]);
    let kind = |name: &str| fs::symlink_metadata(mount.join(name)).expect("stat").file_type();
    assert!(kind("trusted.safetensors").is_file(), "presented as the file that it points to");
    assert!(kind("drive").is_dir(), "presented as the folder that it points to");
    assert!(kind("alices.safetensors").is_symlink(), "a link of somebody else stays a link");
    assert!(kind("link-inside").is_symlink(), "a link that does not lead outside stays a link");
    let trusted = fs::read(mount.join("trusted.safetensors")).expect("read");
    assert_eq!((trusted.len(), data::check(4, 0, &trusted)), (3 << 20, Ok(())));
    let lora = fs::read(mount.join("drive/lora.safetensors")).expect("read");
    assert_eq!((lora.len(), data::check(5, 0, &lora)), (3 << 20, Ok(())));
    mount.stop();
}

#[test]
fn a_followed_link_leads_to_where_its_file_has_moved() {
    if !can_mount() {
        return;
    }
    let (source, outside) = (temporary_folder("source"), temporary_folder("outside"));
    let link = source.path().join("link");
    fs::write(outside.path().join("file"), "text").expect("write");
    fs::create_dir(outside.path().join("below")).expect("mkdir");
    symlink(outside.path().join("file"), &link).expect("link");
    let mount = Mount::start(source.path(), &["--ram", "64M", "--follow-symlinks"]);
    let path = mount.join("link");
    assert_eq!(fs::read_to_string(&path).expect("read"), "text");
    fs::rename(outside.path().join("file"), outside.path().join("below/file")).expect("rename");
    let new = source.path().join("new");
    symlink(outside.path().join("below/file"), &new).expect("link");
    fs::rename(&new, &link).expect("rename");
    assert!(wait_until(Duration::from_secs(5), || fs::metadata(&path).is_ok_and(|found| found.is_file())));
    let mode = fs::Permissions::from_mode(0o640);
    fs::set_permissions(&path, mode.clone()).expect("chmod");
    assert_eq!(fs::read_to_string(&path).expect("read"), "text");
    // The kernel knows it still, by its place.
    let place = fs::OpenOptions::new().read(true).custom_flags(nix::libc::O_PATH).open(&path).expect("open");
    let inside = mount.join("inside");
    fs::rename(outside.path().join("below/file"), source.path().join("inside")).expect("rename");
    assert!(wait_until(Duration::from_secs(5), || fs::metadata(&inside).is_ok_and(|found| found.is_file())));
    fs::set_permissions(&inside, mode).expect("chmod");
    assert_eq!(fs::read_to_string(&inside).expect("read"), "text");
    drop(place);
    mount.stop();
}
