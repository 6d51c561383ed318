//! Pages of the arena can be pinned for long, which is what a GPU needs that copies from them by itself.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use rustix::io::Errno;
use weightfs_tests::Mount;
use weightfs_tests::data;
use weightfs_tests::longterm::PinnedMap;
use weightfs_tests::maps::{Map, MapKind};
use weightfs_tests::requirements::{Need, met, skip};
use weightfs_tests::system::{let_files_settle, temporary_folder};

use crate::{MIB, make_resident};

const LEN: u64 = 24 * MIB;
const SEED: u64 = 11;
/// Of statfs(2).
const TMPFS: i64 = 0x0102_1994;

/// The file of the arena with the model's bytes, found among the descriptors of the process that serves the mount.
fn arena_file(mount: &Mount) -> Option<PathBuf> {
    let folder = format!("/proc/{}/fd", mount.status().number("/worker/pid"));
    let is_it = |path: &PathBuf| {
        let is_large_file = fs::metadata(path).is_ok_and(|found| found.is_file() && found.len() >= LEN);
        let in_memory = || rustix::fs::statfs(path).is_ok_and(|found| found.f_type == TMPFS);
        let mut head = [0; 4096];
        is_large_file
            && in_memory()
            && File::open(path).is_ok_and(|file| file.read_exact_at(&mut head, 0).is_ok())
            && data::check(SEED, 0, &head).is_ok()
    };
    fs::read_dir(folder).expect("the descriptors").flatten().map(|entry| entry.path()).find(is_it)
}

#[test]
fn pages_of_the_arena_can_be_pinned_for_long_and_stay_what_they_are() {
    if !met(&[Need::Mount, Need::Root]) {
        return;
    }
    let source = temporary_folder("source");
    data::write_file(&source.path().join("model.safetensors"), SEED, LEN);
    let_files_settle();
    let mount = Mount::start(source.path(), &["--ram", "256M"]);
    if !mount.status().passthrough() {
        skip("the kernel or this user cannot do FUSE passthrough");
        return;
    }
    make_resident(&mount, "model.safetensors", LEN);
    let client = File::open(mount.join("model.safetensors")).expect("open");
    let seen = Map::new(&client, LEN as usize, MapKind::Shared).expect("map");
    let path = arena_file(&mount).expect("the arena has the file");
    let arena = OpenOptions::new().read(true).write(true).open(path).expect("open");

    let mut pinned = match PinnedMap::new(&arena, LEN as usize) {
        Ok(pinned) => pinned,
        Err(error) if Errno::from_io_error(&error) == Some(Errno::PERM) => {
            skip("io_uring is forbidden here");
            return;
        }
        Err(error) => panic!("pages of the arena cannot be pinned: {error}"),
    };
    drop(arena);
    let copy = tempfile::tempfile().expect("a file");
    let mut bytes = vec![0; LEN as usize];
    let mut copied = || {
        let done = pinned.write_to(0, LEN as usize, &copy).expect("write from pinned pages");
        assert_eq!(done as u64, LEN);
        copy.read_exact_at(&mut bytes, 0).expect("read");
        assert_eq!(data::check(SEED, 0, &bytes), Ok(()));
    };
    copied();

    // What is pinned is mapped, so that an eviction leaves it alone, or lets go of it without touching it.
    let model = mount.join("model.safetensors");
    let output = mount.run(&["evict", model.to_str().expect("UTF-8")]);
    assert!(output.status.success(), "{output:?}");
    copied();
    assert_eq!(data::check(SEED, 0, &seen.to_vec()), Ok(()), "the client's own mapping");

    // The client's mapping is of the same pages, and may only be read. CUDA has a flag for that; io_uring has none, and
    // so says what it says of any such mapping.
    let refused = PinnedMap::read_only(&client, LEN as usize).err().expect("io_uring needs memory that it may write");
    assert_eq!(Errno::from_io_error(&refused), Some(Errno::FAULT));

    drop((seen, client, pinned));
    mount.stop();
}
