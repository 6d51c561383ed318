//! Sources that fail, and stores that end.

use std::fs::File;

use rustix::io::Errno;

use super::*;
use crate::fill::{Class, Fault, Faults, SourceFile};

#[test]
fn a_failed_fill_is_answered_from_the_source_and_poisons_nothing() {
    let (folder, store) = (Folder::new(), store(64 * MIB));
    let model = folder.model(1, 12 * MIB);
    folder.settle();
    // As often as the engine tries, and once more: short reads with garbage behind them, and errors.
    let faults = (0..4).map(|_| (5 * MIB, Fault::Error(Errno::IO))).chain([(9 * MIB, Fault::Short(4096))]);
    let source = Arc::new(SourceFile::with_faults(File::open(&model.path).unwrap(), Faults::new(faults)));
    let opened = open(&store, &source);
    for _ in 0..2 {
        for start in [5 * MIB - 100, 9 * MIB - 5, 2 * MIB, 6 * MIB] {
            let range = start..start + MIB;
            model.check(&range, &read(&store, &opened, range.clone()).unwrap());
        }
    }
    store.complete(&opened.generation);
    eventually("all of it is there", || opened.generation.is_complete());
    model.check(&(0..12 * MIB), store.hold(&opened.generation).unwrap().bytes(0..12 * MIB));
    agrees(&store);
    store.stop();
}

#[test]
fn who_asks_for_bytes_that_cannot_be_had_is_told_why() {
    let (folder, store) = (Folder::new(), store(64 * MIB));
    let (bad, good) = (folder.model(1, 6 * MIB), folder.model(2, 6 * MIB));
    folder.settle();
    // A descriptor that may not be read.
    let source = File::options().write(true).open(&bad.path).unwrap();
    let opened = open(&store, &Arc::new(SourceFile::with_direct(source, None)));
    let answers: Vec<_> =
        (0..6).map(|n| begin_read(&store, &opened, n * MIB + 5000..n * MIB + 9000, Access::Read)).collect();
    load(&store, &good);
    for answer in answers {
        assert!(matches!(answer.wait(), Err(ReadError::Source { errno, .. }) if errno == Errno::BADF.raw_os_error()));
    }
    drop(opened);
    let identity = good.identity();
    store.invalidate(identity.device, identity.inode);
    is_empty(&store);
    store.stop();
}

#[test]
fn a_truncated_source_gives_less_and_nothing_else() {
    let (folder, store) = (Folder::new(), store(128 * MIB));
    let model = folder.model(1, 16 * MIB);
    folder.settle();
    let opened = open(&store, &model.source());
    model.check(&(9000..MIB), &read(&store, &opened, 9000..MIB).unwrap());
    let end = 5 * MIB + 7;
    File::options().write(true).open(&model.path).unwrap().set_len(end).unwrap();
    let ranges: Vec<_> = (0..16).map(|n| n * MIB + 11..(n + 2) * MIB).collect();
    let whole = |range: &Range<u64>| range.start..range.end.min(model.size);
    let left = |range: &Range<u64>| range.start.min(end)..range.end.min(end);
    // Nobody may have noticed yet: what was there before is what was opened.
    for range in &ranges {
        let answer = read(&store, &opened, range.clone()).unwrap();
        let expected =
            if answer.len() as u64 > left(range).end - left(range).start { whole(range) } else { left(range) };
        model.check(&expected, &answer);
    }
    eventually("it is noticed", || !store.is_current(&opened.generation));
    for range in &ranges {
        model.check(&left(range), &read(&store, &opened, range.clone()).unwrap());
    }
    is_empty(&store);
    store.stop();
}

#[test]
fn a_store_that_ends_answers_everyone() {
    let (folder, store) = (Folder::new(), store(48 * MIB));
    let models: Vec<_> = (0..3).map(|number| folder.model(number, 24 * MIB)).collect();
    folder.settle();
    let opens: Vec<_> = models.iter().map(|model| open(&store, &model.source())).collect();
    let mut pending = Vec::new();
    let (send, settled) = channel();
    for (model, opened) in models.iter().zip(&opens) {
        for start in (0..model.size).step_by(MIB as usize) {
            pending.push((model, start, begin_read(&store, opened, start..start + MIB, Access::Read)));
        }
        // As an open does that waits: it looks at the speed of the device when it goes on.
        let (send, waiting, generation) = (send.clone(), Arc::clone(&store), Arc::clone(&opened.generation));
        store.complete(&opened.generation);
        store.when_settled(&opened.generation, 0..12, Class::OpenWait, move || {
            waiting.speed(&generation);
            send.send(()).unwrap();
        });
    }
    let (stopped, ends) = channel();
    let stopping = Arc::clone(&store);
    let thread = std::thread::spawn(move || {
        stopping.stop();
        stopped.send(()).unwrap();
    });
    for _ in &opens {
        settled.recv_timeout(PATIENCE).expect("an open was forgotten");
    }
    ends.recv_timeout(PATIENCE).expect("the store does not end");
    thread.join().unwrap();
    // And whoever comes late.
    for (model, opened) in models.iter().zip(&opens) {
        pending.push((model, 13 * MIB, begin_read(&store, opened, 13 * MIB..14 * MIB, Access::Read)));
        pending.push((model, 23 * MIB, begin_read(&store, opened, 23 * MIB..24 * MIB, Access::Fault)));
    }
    for (model, start, answer) in pending {
        match answer.wait() {
            Ok(bytes) => model.check(&(start..start + MIB), &bytes),
            Err(error) => assert!(matches!(error, ReadError::Stopped), "{error}"),
        }
    }
}

/// What is written to at this moment may be of two contents, and its times need not tell: one long write moves them when
/// it begins.
#[test]
fn nothing_is_kept_of_what_somebody_has_open_for_writing() {
    let folder = Folder::new();
    let model = folder.model(1, 10 * MIB);
    folder.settle();
    let store = store(64 * MIB);
    let writer = std::fs::OpenOptions::new().write(true).open(&model.path).unwrap();
    load(&store, &model);
    store.complete(&open(&store, &model.source()).generation);
    assert_eq!(occupied(&store), 0);
    drop(writer);
    let opened = open(&store, &model.source());
    store.complete(&opened.generation);
    eventually("all of it is there", || opened.generation.is_complete());
    load(&store, &model);
    agrees(&store);
    drop(opened);
    store.stop();
}

#[test]
fn what_the_policy_wrongly_takes_for_resident_is_read_all_the_same() {
    let folder = Folder::new();
    let model = folder.model(1, 10 * MIB);
    folder.settle();
    let store = store(64 * MIB);
    let opened = open(&store, &model.source());
    store.register(&opened.generation);
    store.residency.lock().filled(opened.generation.file_id(), 0..3, store.now());
    let range = MIB..5 * MIB;
    model.check(&range, &read(&store, &opened, range.clone()).unwrap());
    eventually("all of it is there", || {
        store.complete(&opened.generation);
        opened.generation.is_complete()
    });
    agrees(&store);
    drop(opened);
    store.stop();
}
