//! Reads of what is not kept.

use super::*;

/// A store whose budget is taken by pins, and a model that has to be read past the arena.
fn full() -> (Folder, Arc<Store>, Model) {
    let folder = Folder::new();
    let (pinned, passing) = (folder.model(1, 14 * MIB), folder.model(2, 60 * MIB + 12_345));
    folder.settle();
    // Slots and buffers as for 4 GiB, and little room besides.
    let few = StoreConfig { high_watermark: 2, low_watermark: 2, ..config(4096 * MIB) };
    let store = Store::start(few).unwrap();
    let kept = open(&store, &pinned.source());
    store.pin(&kept, None).unwrap();
    store.complete(&kept.generation);
    eventually("the pinned model is there", || kept.generation.is_complete());
    (folder, store, passing)
}

/// The tensors of a model, as its loader would read them: in requests of up to 4 MiB.
fn requests(store: &Arc<Store>, opened: &Arc<Opened>) -> Vec<Vec<Range<u64>>> {
    eventually("its header is read", || store.tensors(&opened.generation).is_some());
    let map = store.tensors(&opened.generation).unwrap();
    let cut = |bytes: &Range<u64>| {
        let starts = bytes.clone().step_by(LARGEST_READ as usize);
        starts.map(|start| start..(start + LARGEST_READ).min(bytes.end)).collect()
    };
    map.tensors().iter().map(|tensor| cut(&tensor.bytes)).collect()
}

/// Loads a model with a number of readers at a time, who take a tensor each in turn. Gives the bytes that the source was
/// read for.
fn load_with(readers: usize, store: &Arc<Store>, opened: &Arc<Opened>, model: &Model) -> u64 {
    let before = store.io_report().source_read;
    let mut left = requests(store, opened).into_iter();
    let mut at_work: Vec<_> = left.by_ref().take(readers).map(Vec::into_iter).collect();
    loop {
        let mut pending = Vec::new();
        for reader in &mut at_work {
            let next = reader.next().or_else(|| {
                *reader = left.next()?.into_iter();
                reader.next()
            });
            pending.extend(next.map(|range| (range.clone(), begin_read(store, opened, range, Access::Read))));
        }
        if pending.is_empty() {
            return store.io_report().source_read - before;
        }
        for (range, answer) in pending {
            model.check(&range, &answer.wait().unwrap());
        }
    }
}

#[test]
fn what_passes_is_read_once_by_however_many_readers() {
    let (_folder, store, model) = full();
    let opened = open(&store, &model.source());
    // The first tells what its device is like, and what the file is.
    load_with(1, &store, &opened, &model);
    for readers in [1, 2, 4] {
        let read = load_with(readers, &store, &opened, &model);
        // Blocks in which two requests meet, and what was ahead of a reader who came too late for it.
        assert!(read < model.size + model.size / 20, "{read} bytes were read for {} by {readers}", model.size);
    }
    let kept = u64::from(opened.generation.extents.present()) * EXTENT_SIZE;
    assert!(kept < 8 * MIB, "{kept} bytes were kept");
    drop(opened);
    store.stop();
}

#[test]
fn more_readers_than_there_are_buffers_all_get_their_bytes() {
    let (_folder, store, model) = full();
    let opened = open(&store, &model.source());
    read(&store, &opened, 5 * MIB..6 * MIB).unwrap();
    for odd in [1, 4095, 4097, 700_001] {
        let ranges = (0..14).map(|n| (n * 4 * MIB + odd)..(n * 4 * MIB + odd + LARGEST_READ));
        let pending: Vec<_> =
            ranges.map(|range| (range.clone(), begin_read(&store, &opened, range, Access::Read))).collect();
        for (range, answer) in pending {
            let bytes = answer.wait().unwrap();
            model.check(&(range.start..range.end.min(model.size)), &bytes);
        }
    }
    // The end of the file, which is in the middle of a block.
    let tail = model.size - 3 * MIB - 1..model.size;
    model.check(&tail, &read(&store, &opened, tail.start..tail.end + 100).unwrap());
    drop(opened);
    store.stop();
}
