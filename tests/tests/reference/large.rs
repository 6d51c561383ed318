//! Files of more than 4 GiB, where offsets no longer fit in 32 bits.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;

use weightfs_tests::Mount;
use weightfs_tests::data::{self, SparseFile, same_bytes};
use weightfs_tests::maps::{Map, MapKind};
use weightfs_tests::requirements::{Need, met};
use weightfs_tests::system::{let_files_settle, temporary_folder};

use crate::step::read_full;

fn check(file: &File, sparse: &SparseFile, what: &str) {
    for edge in sparse.edges() {
        for (before, len) in [(0, 10), (5, 4096), (4096, 8193), (700_000, 1_400_000)] {
            let offset = edge.saturating_sub(before);
            let mut found = vec![0; len];
            let n = read_full(file, &mut found, offset).expect("read");
            assert_eq!(same_bytes(&sparse.expected(offset, len), &found[..n], offset), Ok(()), "{what} at {offset}");
        }
    }
}

#[test]
fn large_files_are_right_on_both_sides_of_every_edge() {
    if !met(&[Need::Mount]) {
        return;
    }
    let source = temporary_folder("source");
    let sparse = SparseFile::create(&source.path().join("large.safetensors"), 11);
    let_files_settle();
    let mount = Mount::start(source.path(), &["--ram", "64M"]);
    let path = mount.join("large.safetensors");
    let file = File::open(&path).expect("open");
    assert_eq!(file.metadata().expect("stat").len(), sparse.size);
    check(&file, &sparse, "first read");
    check(&file, &sparse, "second read");
    for kind in [MapKind::Private, MapKind::Shared] {
        let map = Map::new(&File::open(&path).expect("open"), sparse.size as usize, kind).expect("map");
        for edge in sparse.edges() {
            let offset = edge.saturating_sub(5000);
            let expected = sparse.expected(offset, 10_000);
            let mut found = vec![0; expected.len()];
            map.read(offset as usize, &mut found);
            assert_eq!(same_bytes(&expected, &found, offset), Ok(()), "{kind:?} map at {offset}");
        }
    }
    drop(file);
    mount.stop();
}

#[test]
fn large_files_are_written_beyond_every_edge() {
    if !met(&[Need::Mount]) {
        return;
    }
    let source = temporary_folder("source");
    let mount = Mount::start(source.path(), &["--ram", "64M"]);
    let path = mount.join("new.gguf");
    let file = OpenOptions::new().read(true).write(true).create(true).truncate(true).open(&path).expect("create");
    let edges = [(4 << 30) - 3, (4 << 30) + 5, (5 << 30) - 100];
    for (seed, offset) in edges.iter().enumerate() {
        file.write_all_at(&data::bytes(seed as u64, *offset, 70_000), *offset).expect("write");
    }
    let behind = File::open(source.path().join("new.gguf")).expect("open");
    for reader in [&file, &behind, &File::open(&path).expect("open")] {
        assert_eq!(reader.metadata().expect("stat").len(), (5 << 30) - 100 + 70_000);
        let mut found = vec![0; 70_000];
        assert_eq!(read_full(reader, &mut found, edges[2]), Ok(70_000));
        assert_eq!(data::check(2, edges[2], &found), Ok(()));
        assert_eq!(read_full(reader, &mut found[..8], edges[0]), Ok(8));
        assert_eq!(data::check(0, edges[0], &found[..8]), Ok(()));
        assert_eq!(read_full(reader, &mut found[..100], 3 << 30), Ok(100));
        assert_eq!(found[..100], [0; 100], "a hole");
    }
    file.set_len((4 << 30) + 1).expect("truncate");
    assert_eq!(std::fs::metadata(source.path().join("new.gguf")).expect("stat").len(), (4 << 30) + 1);
    drop(file);
    mount.stop();
}
