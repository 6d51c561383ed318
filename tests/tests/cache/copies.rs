//! A warm load of a large model costs the daemon nothing, and no byte of it is in RAM twice.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use weightfs::sys::cachestat::cached_pages;
use weightfs_tests::Mount;
use weightfs_tests::data;
use weightfs_tests::maps::{Map, MapKind};
use weightfs_tests::requirements::skip;
use weightfs_tests::system::{let_files_settle, memory, temporary_folder};

use crate::{MIB, can_mount};

const SIZE: u64 = 2048 * MIB;
const SEED: u64 = 3;

/// Every extent begins with so many bytes of content. The rest is a hole of the source.
const LABEL: usize = 4096;

/// What a second copy could not be smaller than, and other programs do not take meanwhile.
const A_COPY: u64 = SIZE / 2;

/// Of a hundred in a second: a small part of what it takes to copy 2 GiB.
const HARDLY_ANY_TICKS: u64 = 10;

fn write_labels(path: &Path) {
    let file = File::create(path).expect("create");
    file.set_len(SIZE).expect("a file system that knows sparse files");
    for start in (0..SIZE).step_by((2 * MIB) as usize) {
        file.write_all_at(&data::bytes(SEED, start, LABEL), start).expect("write");
    }
}

/// Loads as ComfyUI does: eight threads, pieces of 2 MiB, one descriptor.
fn load_by_threads(file: &File) {
    let next = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let mut piece = vec![0; (2 * MIB) as usize];
                loop {
                    let start = next.fetch_add(2 * MIB, Ordering::Relaxed);
                    if start >= SIZE {
                        return;
                    }
                    file.read_exact_at(&mut piece, start).expect("read");
                    assert_eq!(data::check(SEED, start, &piece[..LABEL]), Ok(()), "by pread");
                }
            });
        }
    });
}

/// Touches every page of a private mapping.
fn load_by_map(file: &File) {
    let map = Map::new(file, SIZE as usize, MapKind::Private).expect("map");
    let mut piece = vec![0; (2 * MIB) as usize];
    for start in (0..SIZE).step_by(piece.len()) {
        map.read(start as usize, &mut piece);
        assert_eq!(data::check(SEED, start, &piece[..LABEL]), Ok(()), "by a map");
    }
}

/// CPU that a process has taken, in ticks.
fn ticks(process: u64) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).expect("the daemon is there");
    let fields = stat.rsplit_once(')').expect("a name in brackets").1;
    fields.split_whitespace().skip(11).take(2).map(|text| text.parse::<u64>().expect("a number")).sum()
}

#[test]
fn a_warm_load_takes_no_request_no_time_and_no_second_copy() {
    if !can_mount() {
        return;
    }
    if memory("MemAvailable") < 3 * SIZE {
        return skip("less than 6 GiB of memory are free");
    }
    let source = temporary_folder("source");
    let real = source.path().join("model.safetensors");
    write_labels(&real);
    let_files_settle();
    let mount = Mount::start(source.path(), &["--ram", "3G", "--reserve", "512M"]);
    if !mount.status().passthrough() {
        return skip("the kernel or this user cannot do FUSE passthrough");
    }
    let path = mount.join("model.safetensors");
    let prefetched = mount.run(&["prefetch", "--wait", path.to_str().expect("UTF-8")]);
    assert!(prefetched.status.success(), "{}", String::from_utf8_lossy(&prefetched.stderr));
    let before = mount.status();
    assert_eq!(before.resident(), SIZE, "{:#}", before.0);

    let daemon = [before.number("/worker/pid"), u64::from(mount.pid())];
    let busy = || daemon.map(ticks).iter().sum::<u64>();
    let in_ram = || memory("Cached");
    let (busy_before, in_ram_before) = (busy(), in_ram());
    let file = File::open(&path).expect("open");
    load_by_threads(&file);
    let in_ram_after_reads = in_ram();
    load_by_map(&file);
    let (in_ram_after_map, busy_after) = (in_ram(), busy());

    let after = mount.status();
    for count in ["/io/served_from_ram_bytes", "/io/served_from_source_bytes", "/io/source_read_bytes"] {
        assert_eq!(after.number(count), before.number(count), "{count}: a request has reached the daemon");
    }
    assert_eq!(after.number("/io/passthrough_opens"), before.number("/io/passthrough_opens") + 1, "{:#}", after.0);
    assert!(busy_after <= busy_before + HARDLY_ANY_TICKS, "the daemon took {} ticks", busy_after - busy_before);
    // The arena, which is shared memory, is part of what the kernel calls cached.
    for (when, now) in [("reads", in_ram_after_reads), ("a map", in_ram_after_map)] {
        let grown = now.saturating_sub(in_ram_before);
        assert!(grown < A_COPY, "after {when} there are {} MiB more in RAM", grown / MIB);
    }
    for (what, file) in [("the mount's file", &file), ("the source", &File::open(&real).expect("open"))] {
        if let Some(pages) = cached_pages(file, 0, 0) {
            // The labels were written through the page cache.
            assert!(pages <= SIZE / (2 * MIB) * 16, "the page cache has {pages} pages of {what}");
        }
    }
    drop(file);
    mount.stop();
}
