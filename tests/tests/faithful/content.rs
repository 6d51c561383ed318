//! What is in files: reading, writing, allocating, copying.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::{FallocateFlags, OFlags, SeekFrom, fallocate, seek};
use rustix::io::Errno;
use weightfs_tests::compare::outcome;
use weightfs_tests::data::{self, EDGE_SIZES};
use weightfs_tests::maps::{Map, MapKind, store_through_map};
use weightfs_tests::{Pair, system};

use crate::{SMALL, can_mount};

fn read_write() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).write(true);
    options
}

#[test]
fn files_are_created_only_where_none_is() {
    if !can_mount() {
        return;
    }
    let pair = Pair::new(SMALL);
    let create_new = |root: &Path| outcome(read_write().create_new(true).mode(0o640).open(root.join("new")).map(drop));
    assert_eq!(pair.same("create", create_new), Ok(()));
    assert_eq!(pair.same("create again", create_new), Err(Errno::EXIST));
    let absent = pair.same("open what is not there", |root| outcome(File::open(root.join("absent")).map(drop)));
    assert_eq!(absent, Err(Errno::NOENT));
    let folder = pair.same("write to a folder", |root| outcome(read_write().open(root).map(drop)));
    assert_eq!(folder, Err(Errno::ISDIR));
    let below = pair.same("below a file", |root| outcome(File::create(root.join("new/below")).map(drop)));
    assert_eq!(below, Err(Errno::NOTDIR));
    let long = pair.same("a long name", |root| outcome(File::create(root.join("x".repeat(256))).map(drop)));
    assert_eq!(long, Err(Errno::NAMETOOLONG));
    pair.both("the longest name", |root| outcome(File::create(root.join("y".repeat(255))).map(drop)));
    pair.both("names that are no text", |root| {
        use std::os::unix::ffi::OsStrExt;
        let name = std::ffi::OsStr::from_bytes(b"w\xff\xfeights \n.safetensors");
        outcome(fs::write(root.join(name), b"bytes"))
    });
    pair.check_trees("creating");
    pair.stop();
}

#[test]
fn writing_truncating_and_appending() {
    if !can_mount() {
        return;
    }
    let pair = Pair::new(SMALL);
    for size in EDGE_SIZES {
        let name = format!("{size}.safetensors");
        pair.both("write", |root| outcome(fs::write(root.join(&name), data::bytes(size, 0, size as usize))));
        pair.both("append", |root| {
            let mut file = OpenOptions::new().append(true).open(root.join(&name)).expect("open");
            outcome(file.write_all(b"appended").and_then(|()| file.write_all_at(b"also at the end", 0).or(Ok(()))))
        });
        pair.both("write in the middle", |root| {
            let file = read_write().open(root.join(&name)).expect("open");
            outcome(file.write_all_at(&data::bytes(1, 0, 5000), size / 2))
        });
        pair.both("leave a hole", |root| {
            let file = read_write().open(root.join(&name)).expect("open");
            outcome(file.write_all_at(b"behind the end", size + 100_000))
        });
        pair.same("read across the end", |root| {
            let mut bytes = vec![0; 20_000];
            let file = File::open(root.join(&name)).expect("open");
            (file.read_at(&mut bytes, size + 95_000).ok(), file.read_at(&mut [0], size + 200_000).ok(), bytes)
        });
        pair.check_trees("writing");
        pair.both("cut", |root| outcome(read_write().open(root.join(&name)).and_then(|file| file.set_len(size / 3))));
        pair.both("grow", |root| outcome(read_write().open(root.join(&name)).and_then(|file| file.set_len(size + 7))));
        pair.check_trees("changing the length");
        pair.both("open with O_TRUNC", |root| {
            let mut file = OpenOptions::new().write(true).truncate(true).open(root.join(&name)).expect("open");
            let empty = file.metadata().expect("stat").len();
            outcome(file.write_all(b"new").and_then(|()| file.sync_all()).map(|()| empty))
        });
        pair.check_trees("O_TRUNC");
    }
    let refused = pair.same("read-only handles cannot write", |root| {
        let file = File::open(root.join("1.safetensors")).expect("open");
        (outcome(file.write_at(b"x", 0)), outcome(file.set_len(0)))
    });
    assert_eq!(refused, (Err(Errno::BADF), Err(Errno::INVAL)));
    let refused = pair.same("write-only handles cannot read", |root| {
        let file = OpenOptions::new().write(true).open(root.join("1.safetensors")).expect("open");
        outcome(file.read_at(&mut [0; 4], 0))
    });
    assert_eq!(refused, Err(Errno::BADF));
    let refused = pair.same("lengths that are none", |root| {
        let file = read_write().open(root.join("1.safetensors")).expect("open");
        rustix::fs::ftruncate(&file, u64::MAX / 2 + 1)
    });
    assert_eq!(refused, Err(Errno::INVAL));
    pair.stop();
}

#[test]
fn what_is_written_is_in_the_source_at_once() {
    if !can_mount() {
        return;
    }
    let pair = Pair::new(SMALL);
    let mut file = File::create(pair.mount().join("model.safetensors")).expect("create");
    let behind = pair.source().join("model.safetensors");
    for round in 0..10_u64 {
        file.write_all(&data::bytes(5, round * 100_000, 100_000)).expect("write");
        let found = fs::read(&behind).expect("read behind the mount");
        assert_eq!(found.len() as u64, (round + 1) * 100_000, "before close and without fsync");
        assert_eq!(data::check(5, 0, &found), Ok(()));
    }
    file.sync_data().expect("fdatasync");
    file.sync_all().expect("fsync");
    drop(file);
    File::open(pair.mount().path()).and_then(|folder| folder.sync_all()).expect("fsync of a folder");
    pair.unmount();
}

#[test]
fn space_is_allocated_and_punched() {
    if !can_mount() {
        return;
    }
    let pair = Pair::new(SMALL);
    pair.both("write", |root| outcome(fs::write(root.join("f.safetensors"), data::bytes(1, 0, 3 << 20))));
    let modes = [
        ("punch", FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, 4096, 1 << 20),
        ("punch unaligned", FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, (2 << 20) + 5, 10_000),
        ("keep the size", FallocateFlags::KEEP_SIZE, 3 << 20, 1 << 20),
        ("grow", FallocateFlags::empty(), 3 << 20, 4097),
        ("write zeros", FallocateFlags::ZERO_RANGE, 100, 5000),
        ("nothing", FallocateFlags::empty(), 0, 0),
    ];
    for (what, mode, offset, len) in modes {
        let result = pair.same(what, |root| {
            let file = read_write().open(root.join("f.safetensors")).expect("open");
            fallocate(&file, mode, offset, len).map(|()| file.metadata().map(|found| found.len()).ok())
        });
        println!("{what}: {result:?}");
        pair.check_trees(what);
    }
    let blocks = |root: &Path| {
        use std::os::unix::fs::MetadataExt;
        fs::metadata(root.join("f.safetensors")).expect("stat").blocks()
    };
    assert_eq!(blocks(pair.mount().path()), blocks(pair.source()), "blocks are those of the source");
    pair.stop();
}

#[test]
fn holes_are_found() {
    if !can_mount() {
        return;
    }
    let pair = Pair::new(SMALL);
    pair.both("write islands", |root| {
        let file = File::create(root.join("f.safetensors")).expect("create");
        outcome(file.write_all_at(&data::bytes(1, 0, 65536), 1 << 20).and_then(|()| file.set_len(4 << 20)))
    });
    let find =
        |from: SeekFrom| pair.same("seek", |root| seek(File::open(root.join("f.safetensors")).expect("open"), from));
    for offset in [0, 1, 1 << 20, (1 << 20) + 65536, (2 << 20) + 3, 4 << 20, 5 << 20] {
        println!("from {offset}: {:?} {:?}", find(SeekFrom::Data(offset)), find(SeekFrom::Hole(offset)));
    }
    assert_eq!(find(SeekFrom::Data(0)), Ok(1 << 20));
    assert_eq!(find(SeekFrom::Data(2 << 20)), Err(Errno::NXIO));
    pair.stop();
}

#[test]
fn ranges_are_copied() {
    if !can_mount() {
        return;
    }
    let pair = Pair::new(SMALL);
    pair.both("write", |root| outcome(fs::write(root.join("from.safetensors"), data::bytes(9, 0, 3_000_001))));
    pair.both("copy within", |root| {
        let from = File::open(root.join("from.safetensors")).expect("open");
        let to = File::create(root.join("to")).expect("create");
        let (mut at_from, mut at_to, mut copied) = (1001, 77, 0);
        loop {
            match rustix::fs::copy_file_range(&from, Some(&mut at_from), &to, Some(&mut at_to), 1 << 20) {
                Ok(0) => return Ok(copied),
                Ok(n) => copied += n,
                Err(error) => return Err(error),
            }
        }
    });
    pair.both("copy as programs do", |root| outcome(fs::copy(root.join("from.safetensors"), root.join("copy"))));
    let outside = system::temporary_folder("outside");
    pair.both("copy out", |root| outcome(fs::copy(root.join("from.safetensors"), outside.path().join("out"))));
    pair.both("copy in", |root| outcome(fs::copy(outside.path().join("out"), root.join("in.safetensors"))));
    pair.check_trees("copying");
    pair.stop();
}

#[test]
fn files_without_a_name() {
    if !can_mount() {
        return;
    }
    let pair = Pair::new(SMALL);
    let flags = (OFlags::TMPFILE | OFlags::DIRECTORY).bits() as i32;
    match outcome(read_write().custom_flags(flags).open(pair.mount().path())) {
        Ok(mut file) => {
            file.write_all(b"nameless").expect("write");
            let mut back = String::new();
            File::open(format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file)))
                .and_then(|mut again| again.read_to_string(&mut back))
                .expect("read");
            assert_eq!(back, "nameless");
        }
        // What programs take as "make a named one instead".
        Err(error) => assert!(matches!(error, Errno::OPNOTSUPP | Errno::ISDIR), "O_TMPFILE was refused with {error}"),
    }
    assert_eq!(fs::read_dir(pair.source()).expect("list").count(), 0);
    pair.unmount();
}

#[test]
fn open_files_survive_unlink_and_rename() {
    if !can_mount() {
        return;
    }
    let pair = Pair::new(SMALL);
    for name in ["a.safetensors", "b.safetensors"] {
        pair.both("write", |root| outcome(fs::write(root.join(name), data::bytes(1, 0, 3 << 20))));
    }
    pair.both("use after unlink", |root| {
        let reader = File::open(root.join("a.safetensors")).expect("open");
        let writer = read_write().open(root.join("a.safetensors")).expect("open");
        fs::remove_file(root.join("a.safetensors")).expect("unlink");
        let mut byte = [0; 16];
        reader.read_exact_at(&mut byte, 2 << 20).expect("read");
        writer.write_all_at(b"still here", 0).expect("write");
        let links = std::os::unix::fs::MetadataExt::nlink(&writer.metadata().expect("stat"));
        outcome(writer.set_len(5)).map(|()| (byte, reader.metadata().expect("stat").len(), links))
    });
    pair.same("use after rename", |root| {
        let reader = File::open(root.join("b.safetensors")).expect("open");
        fs::rename(root.join("b.safetensors"), root.join("c.safetensors")).expect("rename");
        fs::write(root.join("b.safetensors"), b"another").expect("write");
        let mut byte = [0; 16];
        reader.read_exact_at(&mut byte, 1 << 20).expect("read");
        (byte, reader.metadata().expect("stat").len())
    });
    pair.check_trees("unlink and rename");
    pair.stop();
}

#[test]
fn maps_that_write() {
    if !can_mount() {
        return;
    }
    let pair = Pair::new(SMALL);
    pair.both("write", |root| outcome(fs::write(root.join("f.safetensors"), data::bytes(1, 0, 3 << 20))));
    pair.both("store through a map", |root| {
        let file = read_write().open(root.join("f.safetensors")).expect("open");
        outcome(store_through_map(&file, 5000, b"stored"))
    });
    pair.check_trees("storing through a map");
    pair.same("read back", |root| {
        let file = File::open(root.join("f.safetensors")).expect("open");
        [MapKind::Private, MapKind::Shared]
            .map(|kind| Map::new(&file, 3 << 20, kind).expect("map").to_vec()[4990..5100].to_vec())
    });
    pair.stop();
}

#[test]
fn an_open_sees_all_of_what_changed_behind_the_mount_just_before() {
    if !can_mount() {
        return;
    }
    let pair = Pair::new(SMALL);
    // Growing, beyond a page too: what the kernel remembers of the size must not cut what is read.
    for (round, size) in (0..).zip([4096u64, 4097, 10, 8192, 8193, 0, 1, 300_000, 299_999].repeat(12)) {
        let bytes = data::bytes(round, 0, size as usize);
        fs::write(pair.source().join("small.json"), &bytes).expect("write behind the mount");
        let name = pair.mount().path().join("small.json");
        let file = File::open(&name).expect("open");
        assert_eq!(file.metadata().expect("stat").len(), size, "round {round}");
        assert_eq!(fs::read(&name).expect("read"), bytes, "round {round}");
        if size > 0 {
            let map = Map::new(&file, size as usize, MapKind::Private).expect("map");
            assert_eq!(map.to_vec(), bytes, "round {round}, mapped");
        }
    }
    fs::remove_file(pair.source().join("small.json")).expect("remove");
    pair.stop();
}

#[test]
fn a_program_that_runs_is_not_cut() {
    if !can_mount() {
        return;
    }
    let pair = Pair::new(SMALL);
    let name = pair.mount().path().join("program");
    fs::copy("/bin/sleep", &name).expect("copy a program");
    let size = fs::metadata("/bin/sleep").expect("stat").len();
    let mut running = std::process::Command::new(&name).arg("60").spawn().expect("run it");
    for flags in [OFlags::WRONLY, OFlags::RDWR, OFlags::RDONLY | OFlags::TRUNC, OFlags::WRONLY | OFlags::TRUNC] {
        let opened = rustix::fs::open(&name, flags, rustix::fs::Mode::empty());
        assert_eq!(opened.map(drop), Err(Errno::TXTBSY), "{flags:?}");
        assert_eq!(fs::metadata(pair.source().join("program")).expect("stat").len(), size, "{flags:?}");
    }
    running.kill().and_then(|()| running.wait()).expect("end it");
    fs::remove_file(&name).expect("remove");
    pair.stop();
}
