//! Attributes: times, modes, extended attributes, inode numbers, the file system itself.

use std::fs::{self, File, FileTimes};
use std::os::unix::fs::{DirEntryExt, MetadataExt, PermissionsExt};
use std::path::Path;
use std::time::{Duration, UNIX_EPOCH};

use rustix::fs::{XattrFlags, statvfs};
use rustix::io::Errno;
use weightfs_tests::compare::outcome;
use weightfs_tests::mount::Mount;
use weightfs_tests::system::temporary_folder;
use weightfs_tests::{Pair, data};

use crate::{SMALL, can_mount};

fn times(path: &Path) -> (i64, i64) {
    let found = fs::symlink_metadata(path).expect("stat");
    (found.mtime(), found.mtime_nsec())
}

#[test]
fn modes_and_times_are_set_to_the_nanosecond() {
    if !can_mount() {
        return;
    }
    let pair = Pair::new(SMALL);
    pair.same("make", |root| {
        fs::write(root.join("f.safetensors"), vec![7; 2 << 20]).expect("write");
        fs::create_dir(root.join("folder")).expect("mkdir");
    });
    for name in ["f.safetensors", "folder"] {
        for mode in [0o600, 0o444, 0o755, 0o4755, 0o1777] {
            pair.both("chmod", |root| outcome(fs::set_permissions(root.join(name), fs::Permissions::from_mode(mode))));
            pair.check_trees("chmod");
        }
    }
    let when = UNIX_EPOCH + Duration::new(1_700_000_000, 123_456_789);
    pair.both("utimens", |root| {
        let file = File::open(root.join("f.safetensors")).expect("open");
        outcome(file.set_times(FileTimes::new().set_modified(when).set_accessed(when + Duration::from_nanos(1))))
    });
    let seen = pair.same("mtime", |root| times(&root.join("f.safetensors")));
    assert_eq!(seen, (1_700_000_000, 123_456_789));
    assert_eq!(times(&pair.source().join("f.safetensors")), seen);
    // Whole seconds: FUSE libraries disagree about the fraction of a negative time.
    let old = UNIX_EPOCH - Duration::from_secs(5);
    pair.both("a time before the epoch", |root| {
        let file = File::open(root.join("f.safetensors")).expect("open");
        outcome(file.set_times(FileTimes::new().set_modified(old)))
    });
    let seen = pair.same("mtime before the epoch", |root| times(&root.join("f.safetensors")));
    assert_eq!(seen, (-5, 0));
    pair.stop();
}

#[test]
fn times_move_with_the_source() {
    if !can_mount() {
        return;
    }
    let pair = Pair::new(SMALL);
    let (mount, source) = (pair.mount().path().to_owned(), pair.source().to_owned());
    fs::create_dir(mount.join("loras")).expect("mkdir");
    fs::write(mount.join("loras/a"), b"a").expect("write");
    let long_ago = UNIX_EPOCH + Duration::from_secs(1_600_000_000);
    let age = |path: &Path| {
        File::open(path).and_then(|f| f.set_times(FileTimes::new().set_modified(long_ago))).expect("utimens")
    };
    type Step = (&'static str, fn(&Path));
    let steps: [Step; 6] = [
        ("create", |root| fs::write(root.join("loras/b"), b"b").expect("write")),
        ("rename", |root| fs::rename(root.join("loras/b"), root.join("loras/c")).expect("rename")),
        ("unlink", |root| fs::remove_file(root.join("loras/c")).expect("unlink")),
        ("mkdir", |root| fs::create_dir(root.join("loras/sub")).expect("mkdir")),
        ("rmdir", |root| fs::remove_dir(root.join("loras/sub")).expect("rmdir")),
        ("symlink", |root| std::os::unix::fs::symlink("a", root.join("loras/link")).expect("symlink")),
    ];
    for (what, step) in steps {
        age(&mount.join("loras"));
        assert_eq!(times(&mount.join("loras")).0, 1_600_000_000);
        step(&mount);
        assert_ne!(times(&mount.join("loras")).0, 1_600_000_000, "{what} moves the folder's mtime");
        assert_eq!(times(&mount.join("loras")), times(&source.join("loras")), "{what}: as the source has it");
    }
    let before = times(&mount.join("loras"));
    fs::read(mount.join("loras/a")).expect("read");
    fs::read_dir(mount.join("loras")).expect("list").count();
    assert_eq!(times(&mount.join("loras")), before, "reading moves nothing");
    age(&mount.join("loras/a"));
    fs::OpenOptions::new()
        .append(true)
        .open(mount.join("loras/a"))
        .and_then(|mut f| std::io::Write::write_all(&mut f, b"x"))
        .expect("append");
    assert_ne!(times(&mount.join("loras/a")).0, 1_600_000_000, "writing moves the file's mtime");
    assert_eq!(times(&mount.join("loras/a")), times(&source.join("loras/a")));
    pair.unmount();
}

#[test]
fn inode_numbers_are_stable() {
    if !can_mount() {
        return;
    }
    let source = temporary_folder("source");
    fs::create_dir(source.path().join("folder")).expect("mkdir");
    for name in ["a.safetensors", "folder/b.safetensors", "small.json"] {
        data::write_file(&source.path().join(name), 1, if name.ends_with("json") { 100 } else { 3 << 20 });
    }
    let numbers = |mount: &Mount| -> Vec<u64> {
        let names = ["a.safetensors", "folder", "folder/b.safetensors", "small.json"];
        names.map(|name| fs::metadata(mount.join(name)).expect("stat").ino()).to_vec()
    };
    let mount = Mount::start(source.path(), SMALL);
    let first = numbers(&mount);
    let mut distinct = first.clone();
    distinct.sort_unstable();
    distinct.dedup();
    assert_eq!(distinct.len(), first.len(), "every file has its own");
    weightfs_tests::system::let_files_settle();
    for _ in 0..3 {
        // Reading makes the files resident: that must not show.
        fs::read(mount.join("a.safetensors")).expect("read");
        fs::read(mount.join("folder/b.safetensors")).expect("read");
        let open = File::open(mount.join("a.safetensors")).expect("open");
        assert_eq!(open.metadata().expect("fstat").ino(), first[0], "by descriptor");
        assert_eq!(numbers(&mount), first, "by name");
    }
    for entry in fs::read_dir(mount.path()).expect("list").map(|entry| entry.expect("entry")) {
        assert_eq!(entry.ino(), entry.metadata().expect("stat").ino(), "listed and asked for: {:?}", entry.file_name());
    }
    mount.stop();
    let again = Mount::start(source.path(), SMALL);
    assert_eq!(numbers(&again), first, "after a new mount");
    again.stop();
}

#[test]
fn extended_attributes() {
    if !can_mount() {
        return;
    }
    let pair = Pair::new(SMALL);
    pair.same("make", |root| fs::write(root.join("f"), b"x").expect("write"));
    let get = |root: &Path| {
        let mut value = vec![0; 8192];
        rustix::fs::getxattr(root.join("f"), "user.sha256", &mut value).map(|n| value[..n].to_vec())
    };
    let set =
        |value: Vec<u8>, flags| move |root: &Path| rustix::fs::setxattr(root.join("f"), "user.sha256", &value, flags);
    assert_eq!(pair.same("get nothing", get), Err(Errno::NODATA));
    assert_eq!(pair.same("replace nothing", set(vec![1], XattrFlags::REPLACE)), Err(Errno::NODATA));
    pair.both("create", set(vec![1; 1000], XattrFlags::CREATE));
    assert_eq!(pair.same("create again", set(vec![1], XattrFlags::CREATE)), Err(Errno::EXIST));
    pair.both("replace", set(vec![2, 0, 3], XattrFlags::empty()));
    assert_eq!(pair.same("get", get), Ok(vec![2, 0, 3]));
    pair.both("ask for the length", |root| rustix::fs::getxattr_query(root.join("f"), "user.sha256"));
    let short =
        pair.same("too little room", |root| rustix::fs::getxattr(root.join("f"), "user.sha256", &mut [0_u8; 1][..]));
    assert_eq!(short, Err(Errno::RANGE));
    pair.both("list", |root| {
        let mut names = vec![0; 4096];
        rustix::fs::listxattr(root.join("f"), &mut names).map(|n| names[..n].to_vec())
    });
    pair.both("remove", |root| rustix::fs::removexattr(root.join("f"), "user.sha256"));
    assert_eq!(
        pair.same("remove again", |root| rustix::fs::removexattr(root.join("f"), "user.sha256")),
        Err(Errno::NODATA)
    );
    pair.stop();
}

#[test]
fn the_file_system_reports_the_space_of_the_source() {
    if !can_mount() {
        return;
    }
    let pair = Pair::new(SMALL);
    let (mount, source) = (statvfs(pair.mount().path()).expect("statfs"), statvfs(pair.source()).expect("statfs"));
    assert_eq!(mount.f_blocks * mount.f_frsize, source.f_blocks * source.f_frsize, "bytes");
    assert_eq!((mount.f_files, mount.f_namemax), (source.f_files, source.f_namemax));
    let free = |space: &rustix::fs::StatVfs| (space.f_bavail * space.f_frsize) >> 20;
    assert!(free(&mount).abs_diff(free(&source)) < 4096, "free MiB: {} and {}", free(&mount), free(&source));
    pair.unmount();
}

#[test]
fn a_read_only_mount_refuses_every_change() {
    if !can_mount() {
        return;
    }
    let source = temporary_folder("source");
    fs::write(source.path().join("f"), b"x").expect("write");
    let mount = Mount::start(source.path(), &["--ram", "64M", "--read-only"]);
    assert_eq!(fs::read(mount.join("f")).expect("read"), b"x");
    let refusals = [
        outcome(fs::write(mount.join("new"), b"x")),
        outcome(fs::write(mount.join("f"), b"y")),
        outcome(fs::remove_file(mount.join("f"))),
        outcome(fs::rename(mount.join("f"), mount.join("g"))),
        outcome(fs::create_dir(mount.join("d"))),
        outcome(fs::set_permissions(mount.join("f"), fs::Permissions::from_mode(0o600))),
        rustix::fs::setxattr(mount.join("f"), "user.x", b"1", XattrFlags::empty()),
    ];
    assert_eq!(refusals, [Err(Errno::ROFS); 7]);
    mount.stop();
}
