//! Names: folders, links, renames, special files.

use std::fs::{self, File};
use std::os::unix::fs::{FileTypeExt, MetadataExt, symlink};
use std::path::Path;
use std::time::Duration;

use rustix::fs::{CWD, FileType, Mode, RenameFlags, mknodat, renameat_with};
use rustix::io::Errno;
use weightfs_tests::compare::outcome;
use weightfs_tests::requirements::{Need, met};
use weightfs_tests::system::temporary_folder;
use weightfs_tests::{Mount, Pair};

use crate::{SMALL, can_mount};

#[test]
fn renames_with_and_without_flags() {
    if !can_mount() {
        return;
    }
    let pair = Pair::new(SMALL);
    pair.same("make files", |root| {
        fs::create_dir_all(root.join("loras/sdxl")).expect("mkdir");
        fs::create_dir(root.join("empty")).expect("mkdir");
        for name in ["a", "b", "loras/c", "loras/sdxl/d"] {
            fs::write(root.join(name), name).expect("write");
        }
    });
    let none = RenameFlags::empty();
    let (noreplace, exchange) = (RenameFlags::NOREPLACE, RenameFlags::EXCHANGE);
    let cases = [
        ("a", "a2", none, Ok(())),
        ("a2", "b", noreplace, Err(Errno::EXIST)),
        ("a2", "b", exchange, Ok(())),
        ("a2", "loras/c", none, Ok(())),
        ("absent", "x", none, Err(Errno::NOENT)),
        ("b", "absent", exchange, Err(Errno::NOENT)),
        ("b", "a", noreplace, Ok(())),
        ("loras/c", "loras/sdxl", exchange, Ok(())),
        ("loras/c/d", "d", none, Ok(())),
        ("loras", "loras/c/inside-itself", none, Err(Errno::INVAL)),
        ("a", "loras", none, Err(Errno::ISDIR)),
        ("empty", "a", none, Err(Errno::NOTDIR)),
        ("empty", "loras", none, Err(Errno::NOTEMPTY)),
        ("loras", "empty", none, Ok(())),
        ("empty", "models", noreplace, Ok(())),
        ("d", "d", none, Ok(())),
        ("d", "models/x", noreplace | exchange, Err(Errno::INVAL)),
    ];
    for (from, to, flags, expected) in cases {
        let what = format!("rename {from} to {to} with {flags:?}");
        let result = pair.same(&what, |root| renameat_with(CWD, root.join(from), CWD, root.join(to), flags));
        assert_eq!(result, expected, "{what}");
        pair.check_trees(&what);
    }
    pair.stop();
}

#[test]
fn folders_are_made_and_removed() {
    if !can_mount() {
        return;
    }
    let pair = Pair::new(SMALL);
    let make = |name: &'static str| move |root: &Path| outcome(fs::create_dir(root.join(name)));
    let remove = |name: &'static str| move |root: &Path| outcome(fs::remove_dir(root.join(name)));
    assert_eq!(pair.same("mkdir", make("checkpoints")), Ok(()));
    assert_eq!(pair.same("mkdir again", make("checkpoints")), Err(Errno::EXIST));
    assert_eq!(pair.same("mkdir nowhere", make("absent/folder")), Err(Errno::NOENT));
    pair.both("mkdir below", make("checkpoints/flux"));
    assert_eq!(pair.same("rmdir of a full folder", remove("checkpoints")), Err(Errno::NOTEMPTY));
    pair.both("write", |root| outcome(fs::write(root.join("file"), b"x")));
    assert_eq!(pair.same("rmdir of a file", remove("file")), Err(Errno::NOTDIR));
    let unlink = pair.same("unlink of a folder", |root| rustix::fs::unlink(root.join("checkpoints")));
    assert_eq!(unlink, Err(Errno::ISDIR));
    pair.check_trees("mkdir");
    pair.both("rmdir", remove("checkpoints/flux"));
    pair.both("rmdir", remove("checkpoints"));
    pair.check_trees("rmdir");
    let gone = pair.same("use of a removed working folder", |root| {
        fs::create_dir(root.join("gone")).expect("mkdir");
        let folder = File::open(root.join("gone")).expect("open");
        fs::remove_dir(root.join("gone")).expect("rmdir");
        rustix::fs::openat(&folder, "x", rustix::fs::OFlags::CREATE | rustix::fs::OFlags::WRONLY, Mode::RUSR).map(drop)
    });
    assert_eq!(gone, Err(Errno::NOENT));
    pair.stop();
}

#[test]
fn large_folders_are_listed_whole() {
    if !can_mount() {
        return;
    }
    let pair = Pair::new(SMALL);
    let names = |root: &Path| {
        let mut names: Vec<_> = fs::read_dir(root.join("many"))
            .expect("list")
            .map(|entry| entry.expect("entry"))
            .map(|entry| (entry.file_name(), entry.file_type().expect("type").is_file()))
            .collect();
        names.sort();
        names
    };
    pair.same("make", |root| {
        fs::create_dir(root.join("many")).expect("mkdir");
        for index in 0..3000 {
            File::create(root.join(format!("many/{index:05}-{}.safetensors", "x".repeat(index % 100))))
                .expect("create");
        }
    });
    assert_eq!(pair.same("list", names).len(), 3000);
    pair.same("remove while listing", |root| {
        for entry in fs::read_dir(root.join("many")).expect("list") {
            fs::remove_file(entry.expect("entry").path()).expect("unlink");
        }
    });
    assert_eq!(pair.same("list again", names).len(), 0);
    pair.both("remove", |root| outcome(fs::remove_dir(root.join("many"))));
    pair.stop();
}

#[test]
fn hard_links_share_one_file() {
    if !can_mount() {
        return;
    }
    let pair = Pair::new(SMALL);
    pair.same("make", |root| {
        fs::write(root.join("a.safetensors"), vec![1; 2 << 20]).expect("write");
        fs::create_dir(root.join("folder")).expect("mkdir");
    });
    pair.both("link", |root| outcome(fs::hard_link(root.join("a.safetensors"), root.join("folder/b.safetensors"))));
    let again = pair.same("link over", |root| outcome(fs::hard_link(root.join("folder"), root.join("c"))));
    assert_eq!(again, Err(Errno::PERM));
    pair.check_trees("linking");
    pair.both("write through one", |root| outcome(fs::write(root.join("folder/b.safetensors"), b"changed")));
    pair.same("read through the other", |root| fs::read(root.join("a.safetensors")).expect("read"));
    let inode = |name: &str| std::os::unix::fs::MetadataExt::ino(&fs::metadata(pair.mount().join(name)).expect("stat"));
    assert_eq!(inode("a.safetensors"), inode("folder/b.safetensors"), "both names show one inode");
    pair.both("unlink one", |root| outcome(fs::remove_file(root.join("a.safetensors"))));
    pair.same("read the other", |root| fs::read(root.join("folder/b.safetensors")).expect("read"));
    pair.check_trees("unlinking");
    pair.stop();
}

#[test]
fn symbolic_links() {
    if !can_mount() {
        return;
    }
    let pair = Pair::new(SMALL);
    pair.same("make", |root| {
        fs::create_dir_all(root.join("models/blobs")).expect("mkdir");
        fs::create_dir_all(root.join("models/snapshots/1")).expect("mkdir");
        fs::write(root.join("models/blobs/abc"), b"content").expect("write");
    });
    let long = "x/".repeat(1500);
    for (target, name) in [
        ("../../blobs/abc", "models/snapshots/1/model.safetensors"),
        ("nowhere", "dangling"),
        ("loop", "loop"),
        (long.as_str(), "long"),
    ] {
        pair.both("symlink", |root| outcome(symlink(target, root.join(name))));
        pair.same("readlink", |root| fs::read_link(root.join(name)).expect("readlink"));
        let found = pair.same("open through it", |root| outcome(fs::read(root.join(name))));
        assert_eq!(found.is_ok(), name.ends_with(".safetensors"), "{name}: {found:?}");
    }
    let again = pair.same("symlink again", |root| outcome(symlink("x", root.join("loop"))));
    assert_eq!(again, Err(Errno::EXIST));
    pair.both("write through it", |root| outcome(fs::write(root.join("models/snapshots/1/model.safetensors"), b"new")));
    let no_link = pair.same("readlink of a file", |root| outcome(fs::read_link(root.join("models/blobs/abc"))));
    assert_eq!(no_link, Err(Errno::INVAL));
    pair.check_trees("linking");
    pair.both("unlink the link", |root| outcome(fs::remove_file(root.join("models/snapshots/1/model.safetensors"))));
    pair.check_trees("unlinking");
    pair.stop();
}

#[test]
fn special_files() {
    if !can_mount() {
        return;
    }
    let pair = Pair::new(SMALL);
    let fifo = |root: &Path| mknodat(CWD, root.join("pipe"), FileType::Fifo, Mode::RUSR | Mode::WUSR, 0);
    assert_eq!(pair.same("mkfifo", fifo), Ok(()));
    assert_eq!(pair.same("mkfifo again", fifo), Err(Errno::EXIST));
    let plain = |root: &Path| mknodat(CWD, root.join("plain"), FileType::RegularFile, Mode::RUSR | Mode::WUSR, 0);
    assert_eq!(pair.same("mknod of a plain file", plain), Ok(()));
    pair.check_trees("mknod");
    assert!(fs::metadata(pair.mount().join("pipe")).expect("stat").file_type().is_fifo());
    let pipe = pair.mount().join("pipe");
    let writer = std::thread::spawn(move || fs::write(pipe, b"through the pipe").expect("write"));
    assert_eq!(fs::read(pair.mount().join("pipe")).expect("read"), b"through the pipe");
    writer.join().expect("the writer ends");
    pair.stop();
}

#[test]
fn a_directory_that_gets_the_number_of_a_removed_one_is_another() {
    if !can_mount() {
        return;
    }
    let source = temporary_folder("source");
    let mount = Mount::start(source.path(), &["--ram", "64M"]);
    let place = mount.join("folder");
    let mut reused = 0;
    let mut last = None;
    for _ in 0..200 {
        fs::create_dir(&place).expect("mkdir");
        let number = fs::metadata(&place).expect("stat").ino();
        reused += u64::from(last == Some(number));
        last = Some(number);
        fs::write(place.join("file"), b"x").expect("a new folder takes files");
        fs::remove_file(place.join("file")).expect("unlink");
        // Somebody still holds the old one when the next comes.
        let held = fs::File::open(&place).expect("open");
        let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&held));
        let named = rustix::fs::open(
            path.as_str(),
            rustix::fs::OFlags::PATH | rustix::fs::OFlags::CLOEXEC,
            rustix::fs::Mode::empty(),
        )
        .expect("name");
        drop(held);
        fs::remove_dir(&place).expect("rmdir");
        fs::create_dir(&place).expect("mkdir");
        fs::write(place.join("file"), b"y").expect("a new folder takes files");
        reused += u64::from(fs::metadata(&place).expect("stat").ino() == number);
        fs::remove_dir_all(&place).expect("remove");
        drop(named);
    }
    println!("{reused} numbers came again");
    mount.stop();
}

/// The end of the old one is told twice to the kernel, the second time when the new one is there.
#[test]
fn what_is_mounted_on_a_folder_that_was_made_anew_stays() {
    if !can_mount() || !met(&[Need::Root]) {
        return;
    }
    let (source, other) = (temporary_folder("source"), temporary_folder("other"));
    fs::write(other.path().join("inside"), "inside").expect("write");
    let mount = Mount::start(source.path(), &["--ram", "64M"]);
    let folder = mount.join("folder");
    fs::create_dir(&folder).expect("mkdir");
    fs::read_dir(mount.path()).expect("list").count();
    for _ in 0..3 {
        fs::remove_dir(&folder).expect("rmdir");
        fs::create_dir(&folder).expect("mkdir");
        let plain = None::<&str>;
        nix::mount::mount(Some(other.path()), &folder, plain, nix::mount::MsFlags::MS_BIND, plain).expect("mount");
        std::thread::sleep(Duration::from_millis(700));
        let inside = fs::read_to_string(folder.join("inside"));
        nix::mount::umount2(&folder, nix::mount::MntFlags::MNT_DETACH).expect("it is mounted still");
        assert_eq!(inside.expect("read"), "inside");
    }
    mount.stop();
}
