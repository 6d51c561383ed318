//! The first read goes to the source, once; the next ones do not.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;

use weightfs_tests::Mount;
use weightfs_tests::data::{self, same_bytes};
use weightfs_tests::maps::{Map, MapKind};
use weightfs_tests::requirements::skip;
use weightfs_tests::system::{drop_page_cache, let_files_settle, temporary_folder, wait_until};

use crate::{MIB, PATIENCE, can_mount, make_resident};

/// Loads as ComfyUI does: eight threads, pieces of at most 2 MiB at unaligned offsets, one descriptor.
fn load_by_threads(file: &File, len: usize) -> Vec<u8> {
    const PIECE: usize = 2 << 20;
    let mut bytes = vec![0; len];
    let (head, tensors) = bytes.split_at_mut(len.min(1237));
    file.read_exact_at(head, 0).expect("read the header");
    let pieces: Vec<(usize, &mut [u8])> = tensors.chunks_mut(PIECE).enumerate().collect();
    let queue = std::sync::Mutex::new(pieces.into_iter());
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                loop {
                    let Some((index, piece)) = queue.lock().expect("no thread panicked").next() else { break };
                    file.read_exact_at(piece, (1237 + index * PIECE) as u64).expect("read a tensor");
                }
            });
        }
    });
    bytes
}

fn check_warm(options: &[&str]) {
    if !can_mount() {
        return;
    }
    let source = temporary_folder("source");
    let real = source.path().join("model.safetensors");
    data::write_safetensors(&real, 1, 48);
    let expected = fs::read(&real).expect("read");
    let size = expected.len() as u64;
    drop_page_cache(&real);
    let_files_settle();
    let mount = Mount::start(source.path(), options);
    let path = mount.join("model.safetensors");
    let load = || load_by_threads(&File::open(&path).expect("open"), expected.len());

    assert_eq!(same_bytes(&expected, &load(), 0), Ok(()), "cold");
    assert!(wait_until(PATIENCE, || mount.status().resident() >= size), "it stays: {:#}", mount.status().0);
    let cold = mount.status();
    cold.check_contract();
    assert!(cold.source_read() >= size && cold.source_read() <= size + 4 * MIB, "each byte is read once: {:#}", cold.0);

    assert_eq!(same_bytes(&expected, &load(), 0), Ok(()), "warm by pread");
    let file = File::open(&path).expect("open");
    for kind in [MapKind::Private, MapKind::Shared] {
        let map = Map::new(&file, expected.len(), kind).expect("map").to_vec();
        assert_eq!(same_bytes(&expected, &map, 0), Ok(()), "warm by a {kind:?} map");
    }
    let warm = mount.status();
    assert_eq!(warm.source_read(), cold.source_read(), "warm reads leave the source alone: {:#}", warm.0);
    assert!(warm.resident() <= size + 4 * MIB, "nothing is kept twice: {:#}", warm.0);
    drop(file);
    mount.stop();
}

#[test]
fn warm_reads_leave_the_source_alone() {
    check_warm(&["--ram", "256M"]);
}

#[test]
fn warm_reads_leave_the_source_alone_with_threads_and_streaming() {
    check_warm(&["--ram", "256M", "--io", "threads", "--no-passthrough", "--open-wait", "0"]);
}

#[test]
fn resident_files_are_opened_in_passthrough() {
    if !can_mount() {
        return;
    }
    let source = temporary_folder("source");
    data::write_file(&source.path().join("model.safetensors"), 7, 24 * MIB);
    let_files_settle();
    let mount = Mount::start(source.path(), &["--ram", "256M"]);
    if !mount.status().passthrough() {
        skip("the kernel or this user cannot do FUSE passthrough");
        return;
    }
    make_resident(&mount, "model.safetensors", 24 * MIB);
    let before = mount.status();
    for _ in 0..5 {
        let found = fs::read(mount.join("model.safetensors")).expect("read");
        assert_eq!(data::check(7, 0, &found), Ok(()));
    }
    let after = mount.status();
    assert_eq!(after.number("/io/passthrough_opens"), before.number("/io/passthrough_opens") + 5, "{:#}", after.0);
    assert_eq!(
        after.number("/io/served_from_ram_bytes"),
        before.number("/io/served_from_ram_bytes"),
        "no request reached the daemon"
    );
    assert_eq!(after.source_read(), before.source_read());
    mount.stop();
}

#[test]
fn what_nobody_loads_is_not_kept() {
    if !can_mount() {
        return;
    }
    let source = temporary_folder("source");
    for name in ["notes.json", "preview.png"] {
        data::write_file(&source.path().join(name), 1, 200_000);
    }
    data::write_file(&source.path().join("empty.safetensors"), 1, 0);
    data::write_file(&source.path().join("one.safetensors"), 1, 1);
    let_files_settle();
    let mount = Mount::start(source.path(), &["--ram", "256M"]);
    for (name, size) in
        [("notes.json", 200_000), ("preview.png", 200_000), ("empty.safetensors", 0), ("one.safetensors", 1)]
    {
        let found = fs::read(mount.join(name)).expect("read");
        assert_eq!((found.len(), data::check(1, 0, &found)), (size, Ok(())));
    }
    assert!(mount.status().resident() <= 4 * MIB, "{:#}", mount.status().0);
    mount.stop();
}

#[test]
fn growing_files_are_served_and_not_kept() {
    if !can_mount() {
        return;
    }
    let source = temporary_folder("source");
    let mount = Mount::start(source.path(), &["--ram", "256M"]);
    // As a downloader does: straight to the final name, in small pieces.
    let mut download = File::create(mount.join("download.safetensors")).expect("create");
    for piece in 0..40_u64 {
        std::io::Write::write_all(&mut download, &data::bytes(3, piece * 300_000, 300_000)).expect("write");
        let file = File::open(mount.join("download.safetensors")).expect("open");
        let len = file.metadata().expect("stat").len();
        assert_eq!(len, (piece + 1) * 300_000, "the length that a new open file shows");
        let map = Map::new(&file, len as usize, MapKind::Private).expect("map").to_vec();
        assert_eq!(data::check(3, 0, &map), Ok(()), "by a map");
        let found = fs::read(mount.join("download.safetensors")).expect("read");
        assert_eq!((found.len() as u64, data::check(3, 0, &found)), (len, Ok(())), "by read");
    }
    assert_eq!(mount.status().resident(), 0, "{:#}", mount.status().0);
    drop(download);
    let_files_settle();
    make_resident(&mount, "download.safetensors", 12_000_000);
    let found = fs::read(mount.join("download.safetensors")).expect("read");
    assert_eq!((found.len(), data::check(3, 0, &found)), (12_000_000, Ok(())), "settled");
    mount.stop();
}
