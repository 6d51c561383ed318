use proptest::prelude::*;

use super::record::{decode, encode};
use super::*;
use crate::ids::{FileId, SourceIdentity, Timestamp};

fn identity(size: u64) -> SourceIdentity {
    let time = Timestamp { seconds: 1, nanoseconds: 2 };
    SourceIdentity { device: 3, inode: 4, size, modified: time, changed: time }
}

/// Some of everything that this form of the journal is made of.
const FORM_2: [Record<'static>; 5] = [
    Record::Node { mount: 0, id: 300, key: (1, 300), kind: 0x8000, slot: 5, origin: None, name: Some((1, b"a")) },
    Record::NodeGone { mount: 0, id: 7 },
    Record::Filled { id: GenerationId(9), extents: 1..3 },
    Record::Begun { mount: 1, unique: 8, before: [None, None] },
    Record::Born { mount: 1, handle: 9, at: Timestamp { seconds: 10, nanoseconds: 11 } },
];

/// The checksum of its bytes, as workers have written them.
const FORM_2_SUM: u32 = 4_267_218_277;

#[test]
fn the_form_is_what_its_version_says() {
    assert_eq!(VERSION, 2, "a new form needs a new version, and its own bytes here");
    let all = bytes_of(&FORM_2);
    assert_eq!(crc32fast::hash(&all), FORM_2_SUM);
    assert_eq!(decode(&all).collect::<Vec<_>>(), FORM_2);
}

fn record() -> impl Strategy<Value = Record<'static>> {
    let id = 0..6u64;
    let generation = (0..3u64).prop_map(GenerationId);
    let names = prop::sample::select(vec![&b"a"[..], b"b", b"a long name \xff with all kinds of bytes"]);
    let extents = (0..20u32, 0..20u32).prop_map(|(a, b)| a.min(b)..a.max(b));
    let key = (0..3u64, 0..3u64);
    prop_oneof![
        (id.clone(), key.clone(), any::<u32>(), names.clone()).prop_map(|(id, key, slot, name)| Record::Node {
            mount: 0,
            id,
            key,
            kind: 1,
            slot,
            origin: None,
            name: Some((1, name))
        }),
        id.clone().prop_map(|id| Record::NodeGone { mount: 0, id }),
        (id.clone(), id.clone(), names.clone()).prop_map(|(id, parent, name)| Record::Name {
            mount: 0,
            id,
            name: (parent, name)
        }),
        (id.clone(), id.clone(), names).prop_map(|(id, parent, name)| Record::NameGone {
            mount: 0,
            id,
            name: (parent, name)
        }),
        (id.clone(), id.clone(), generation.clone()).prop_map(|(id, node, generation)| Record::Resident {
            mount: 1,
            id,
            node,
            generation,
            slot: 1
        }),
        id.clone().prop_map(|id| Record::ResidentGone { mount: 1, id }),
        (id.clone(), any::<Option<u32>>()).prop_map(|(resident, backing)| Record::Backing {
            mount: 1,
            resident,
            backing
        }),
        (id.clone(), id.clone(), any::<u64>()).prop_map(|(handle, node, unique)| Record::Opened {
            mount: 1,
            handle,
            node,
            unique,
            kind: HandleKind::Directory,
            flags: 0
        }),
        id.clone().prop_map(|handle| Record::Closed { mount: 1, handle }),
        (id.clone(), any::<i64>()).prop_map(|(handle, seconds)| Record::Born {
            mount: 1,
            handle,
            at: Timestamp { seconds, nanoseconds: 1 }
        }),
        (any::<u64>(), any::<i32>()).prop_map(|(unique, errno)| Record::Done { mount: 1, unique, errno }),
        any::<u64>().prop_map(|unique| Record::Begun { mount: 1, unique, before: [Some((1, 2)), None] }),
        (generation.clone(), 1..(40u64 << 20)).prop_map(|(id, size)| Record::Generation {
            id,
            file: FileId(id.0),
            identity: identity(size)
        }),
        generation.clone().prop_map(|id| Record::Ended { id }),
        generation.clone().prop_map(|id| Record::GenerationGone { id }),
        (generation.clone(), extents.clone()).prop_map(|(id, extents)| Record::Filled { id, extents }),
        (generation, extents).prop_map(|(id, extents)| Record::Evicted { id, extents }),
    ]
}

fn bytes_of(records: &[Record<'_>]) -> Vec<u8> {
    let mut one = Vec::new();
    let framed = |record: &Record<'_>| {
        encode(record, &mut one);
        one.clone()
    };
    records.iter().flat_map(framed).collect()
}

proptest! {
    #[test]
    fn a_rewritten_journal_comes_to_the_same(records in prop::collection::vec(record(), 0..60)) {
        let state = State::replay(&bytes_of(&records));
        prop_assert_eq!(&State::replay(&state.journal()), &state);
    }

    #[test]
    fn what_is_torn_is_ignored(records in prop::collection::vec(record(), 1..20), cut in any::<prop::sample::Index>()) {
        let bytes = bytes_of(&records);
        let cut = cut.index(bytes.len());
        let read: Vec<_> = decode(&bytes[..cut]).collect();
        prop_assert_eq!(&read[..], &records[..read.len()]);
        prop_assert!(read.len() < records.len());
    }

    #[test]
    fn any_bytes_are_a_journal_of_something(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        State::replay(&bytes);
    }
}

fn duplicate(files: &JournalFiles) -> JournalFiles {
    let again = |fd: &std::os::fd::OwnedFd| fd.try_clone().unwrap();
    JournalFiles { halves: [again(&files.halves[0]), again(&files.halves[1])], counters: again(&files.counters) }
}

#[test]
fn the_next_worker_finds_what_was_noted() {
    let files = JournalFiles::create().unwrap();
    let (journal, state) = Journal::open(duplicate(&files)).unwrap();
    assert_eq!(state, State::default());
    let slot = journal.take_slot().unwrap();
    journal.counter(slot).store(7, std::sync::atomic::Ordering::Relaxed);
    journal.note(&Record::Node { mount: 0, id: 2, key: (1, 2), kind: 3, slot, origin: None, name: Some((1, b"x")) });
    drop(journal);
    let (journal, state) = Journal::open(duplicate(&files)).unwrap();
    assert_eq!(state.mounts[&0].nodes[&2].names, [(1, b"x".to_vec())]);
    assert_eq!(journal.counter(slot).load(std::sync::atomic::Ordering::Relaxed), 7);
    assert_ne!(journal.take_slot().unwrap(), slot);
    drop(journal);
    assert_eq!(Journal::open(files).unwrap().1, state);
}

#[test]
fn a_journal_is_rewritten_before_it_grows_without_end() {
    let files = JournalFiles::create().unwrap();
    let (journal, _) = Journal::open(duplicate(&files)).unwrap();
    let name = vec![b'n'; 200];
    for id in 0..40_000 {
        journal.note(&Record::Node {
            mount: 0,
            id,
            key: (1, id),
            kind: 3,
            slot: 0,
            origin: None,
            name: Some((1, &name)),
        });
        journal.note(&Record::NodeGone { mount: 0, id });
    }
    journal.note(&Record::NodeGone { mount: 1, id: 1 });
    drop(journal);
    let blocks = |fd: &std::os::fd::OwnedFd| rustix::fs::fstat(fd).unwrap().st_blocks * 512;
    assert!(files.halves.iter().map(blocks).sum::<i64>() < 4 << 20);
    assert!(Journal::open(files).unwrap().1.mounts.values().all(|mount| mount.nodes.is_empty()));
}

#[test]
fn another_form_is_refused() {
    let files = JournalFiles::create().unwrap();
    drop(Journal::open(duplicate(&files)).unwrap());
    for half in &files.halves {
        rustix::io::pwrite(half, &1u64.to_le_bytes(), 8).unwrap();
    }
    assert!(matches!(Journal::open(files), Err(JournalError::Version { found: 1 })));
}
