//! What is kept and what is not.

use super::*;
use crate::fill::Class;

#[test]
fn a_loaded_model_is_read_from_the_source_once_and_goes_when_it_is_invalidated() {
    let (folder, store) = (Folder::new(), store(128 * MIB));
    let model = folder.model(1, 20 * MIB + 5);
    folder.settle();
    load(&store, &model);
    let opened = open(&store, &model.source());
    store.complete(&opened.generation);
    eventually("all of it is there", || opened.generation.is_complete());
    let read_before = store.io_report().source_read;
    assert!(read_before >= model.size);
    load(&store, &model);
    assert_eq!(store.io_report().source_read, read_before);
    agrees(&store);
    assert_eq!(store.ram_report().resident, (model.size).next_multiple_of(4096));
    let identity = model.identity();
    store.invalidate(identity.device, identity.inode);
    // The handle is open still; nobody reads through it.
    is_empty(&store);
    model.check(&(5..9000), &read(&store, &opened, 5..9000).unwrap());
    drop(opened);
    store.stop();
}

#[test]
fn looking_at_headers_fills_nothing() {
    let (folder, store) = (Folder::new(), store(64 * MIB));
    let models: Vec<_> = (0..8).map(|number| folder.model(number, 5 * MIB)).collect();
    folder.settle();
    for model in &models {
        let opened = open(&store, &model.source());
        for range in [0..8, 8..4096, 100..300] {
            model.check(&range, &read(&store, &opened, range.clone()).unwrap());
        }
        eventually("its header is known", || store.tensors(&opened.generation).is_some());
        assert!(!opened.generation.extents.occupied());
    }
    assert_eq!((occupied(&store), store.residency.lock().resident_bytes()), (0, 0));
    is_empty(&store);
    store.stop();
}

#[test]
fn what_will_be_loaded_is_there_before_anyone_reads_it() {
    let (folder, store) = (Folder::new(), store(64 * MIB));
    let model = folder.model(1, 20 * MIB + 5);
    folder.settle();
    let opened = open(&store, &model.source());
    opened.anticipate();
    eventually("all of it is there", || opened.generation.is_complete());
    let read_before = store.io_report().source_read;
    load(&store, &model);
    assert_eq!(store.io_report().source_read, read_before);
    agrees(&store);
    drop(opened);
    store.stop();
}

#[test]
fn content_that_has_not_settled_is_served_and_not_kept() {
    let (folder, store) = (Folder::new(), store(64 * MIB));
    let model = folder.model(1, 3 * MIB);
    let source = model.source();
    assert!(store.open(&source).is_none());
    let (send, answer) = channel();
    store.read_source(&source, 0, 7..MIB, move |result: Result<&[u8], _>| {
        send.send(result.map(<[u8]>::to_vec)).unwrap()
    });
    model.check(&(7..MIB), &Pending(answer).wait().unwrap());
    is_empty(&store);
    store.stop();
}

#[test]
fn what_is_held_stays_whatever_else_is_loaded_and_goes_after_that() {
    let (folder, store) = (Folder::new(), store(48 * MIB));
    let models: Vec<_> = (0..4).map(|number| folder.model(number, 16 * MIB)).collect();
    folder.settle();
    let opened = open(&store, &models[0].source());
    store.complete(&opened.generation);
    eventually("the first is whole", || opened.generation.is_complete());
    let generation = Arc::clone(&opened.generation);
    let held = store.hold(&generation).unwrap();
    drop(opened);
    for model in &models[1..] {
        load(&store, model);
    }
    let victims = store.residency.lock().reclaim(u64::MAX, store.now());
    store.evict(&victims);
    assert!(generation.is_complete());
    models[0].check(&(0..16 * MIB), held.bytes(0..u64::MAX));
    drop(held);
    eventually("the policy hears that it is free", || !generation.marked_held.load(Ordering::Relaxed));
    let victims = store.residency.lock().reclaim(u64::MAX, store.now());
    store.evict(&victims);
    assert!(store.hold(&generation).is_none());
    // Nobody has any of them open: neither memory nor descriptors are kept.
    drop(generation);
    is_empty(&store);
    store.stop();
}

#[test]
fn what_must_go_and_is_held_goes_with_those_who_hold_it() {
    let (folder, store) = (Folder::new(), store(48 * MIB));
    let model = folder.model(1, 16 * MIB);
    folder.settle();
    let opened = open(&store, &model.source());
    store.complete(&opened.generation);
    eventually("it is whole", || opened.generation.is_complete());
    let held = store.hold(&opened.generation).unwrap();
    drop(opened);
    let victims = store.residency.lock().reclaim(u64::MAX, store.now());
    assert_eq!(store.evict(&victims), 0);
    store.drop_held(&victims);
    assert!(store.find(&model.identity()).is_none(), "no new open gets it");
    eventually("it is known to be held", || store.ram_report().client_held == 16 * MIB);
    model.check(&(0..16 * MIB), held.bytes(0..u64::MAX));
    drop(held);
    is_empty(&store);
    store.stop();
}

#[test]
fn what_is_kept_stays_with_a_change_that_leaves_the_bytes_alone() {
    let (folder, store) = (Folder::new(), store(64 * MIB));
    let model = folder.model(1, 4 * MIB);
    folder.settle();
    let opened = open(&store, &model.source());
    let before = model.identity();
    std::fs::set_permissions(&model.path, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    let after = model.identity();
    assert_ne!(before, after);
    store.rebind(&before, after);
    assert!(store.find(&before).is_none());
    assert!(Arc::ptr_eq(&store.find(&after).unwrap(), &opened.generation));
    let longer = crate::ids::SourceIdentity { size: after.size + 1, ..after };
    store.rebind(&after, longer);
    assert!(store.find(&longer).is_none());
    store.stop();
}

#[test]
fn content_that_is_written_over_before_or_while_it_is_filled_is_not_taken_for_the_old() {
    let (folder, store) = (Folder::new(), store(256 * MIB));
    let models: Vec<_> = (0..12).map(|number| folder.model(number, 9 * MIB)).collect();
    folder.settle();
    for (round, model) in (0..).zip(&models) {
        let opened = open(&store, &model.source());
        let writer = || model.overwrite(2);
        std::thread::scope(|scope| {
            if round < 4 {
                writer();
            } else {
                scope.spawn(writer);
                std::thread::sleep(Duration::from_micros(500 * (round - 4)));
            }
            store.complete(&opened.generation);
            let (send, settled) = channel();
            store.when_settled(&opened.generation, 0..5, Class::OpenWait, move || send.send(()).unwrap());
            settled.recv_timeout(PATIENCE).unwrap();
        });
        if let Some(held) = store.hold(&opened.generation) {
            model.check(&(0..model.size), held.bytes(0..model.size));
        }
    }
    store.stop();
}

#[test]
fn what_is_evicted_and_filled_again_at_once_stays_known_to_the_policy() {
    let (folder, store) = (Folder::new(), store(128 * MIB));
    let model = folder.model(1, 32 * MIB);
    folder.settle();
    // Out of the page cache, so that fills are quick.
    std::fs::read(&model.path).unwrap();
    let until = Instant::now() + Duration::from_secs(2);
    std::thread::scope(|scope| {
        for seed in 0..3u64 {
            let (store, model) = (&store, &model);
            scope.spawn(move || {
                let opened = open(store, &model.source());
                let mut at = seed;
                while Instant::now() < until {
                    at = (at * 7919 + 104_729) % (model.size - 5000);
                    let range = at..at + 5000;
                    model.check(&range, &read(store, &opened, range.clone()).unwrap());
                }
            });
        }
        while Instant::now() < until {
            let victims = store.residency.lock().reclaim(u64::MAX, store.now());
            store.evict(&victims);
        }
    });
    assert!(store.io_report().evicted > 0);
    agrees(&store);
    let identity = model.identity();
    store.invalidate(identity.device, identity.inode);
    is_empty(&store);
    store.stop();
}

#[test]
fn a_generation_that_nobody_has_open_any_more_is_not_filled() {
    let (folder, store) = (Folder::new(), store(64 * MIB));
    let model = folder.model(1, 8 * MIB);
    folder.settle();
    let generation = Arc::clone(&open(&store, &model.source()).generation);
    store.complete(&generation);
    let (send, settled) = channel();
    store.when_settled(&generation, 0..4, Class::OpenWait, move || send.send(()).unwrap());
    settled.recv_timeout(PATIENCE).unwrap();
    drop(generation);
    is_empty(&store);
    store.stop();
}

#[test]
fn what_ends_while_it_is_filled_leaves_nothing_behind() {
    let (folder, store) = (Folder::new(), store(128 * MIB));
    let model = folder.model(1, 24 * MIB);
    folder.settle();
    let identity = model.identity();
    let mut opens = Vec::new();
    for round in 0..40u64 {
        let opened = open(&store, &model.source());
        store.complete(&opened.generation);
        let pending = begin_read(&store, &opened, round * 4096..20 * MIB, Access::Read);
        std::thread::sleep(Duration::from_micros(round * 150));
        store.invalidate(identity.device, identity.inode);
        model.check(&(round * 4096..20 * MIB), &pending.wait().unwrap());
        opens.push(opened);
    }
    // Every handle is open still.
    is_empty(&store);
    store.stop();
}
