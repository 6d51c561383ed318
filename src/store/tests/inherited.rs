//! What an earlier process has left, which may still write to it.

use super::*;
use crate::ids::FileId;
use crate::journal::GenerationState;

#[test]
fn nothing_is_filled_where_an_earlier_process_may_still_write() {
    let folder = Folder::new();
    let model = folder.model(1, 10 * MIB);
    folder.settle();
    let source = model.source();
    let id = GenerationId(7);
    let arena = Arena::create(Store::arena_size(64 * MIB)).unwrap();
    let left = arena.file(id, model.size).unwrap();
    let first = 0..2 * MIB;
    left.mapping().target(0..first.end as usize).copy_from_slice(&files::content(1, 1, model.size, &first));
    let kept = Kept {
        id,
        state: GenerationState {
            file: FileId(1),
            identity: model.identity(),
            ended: false,
            present: vec![true, false, false, false, false],
        },
        arena: left.as_file().try_clone().unwrap().into(),
        source: source.file().try_clone().unwrap().into(),
    };
    let mut earlier = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
    let legacy = Legacy::of_nobody().unwrap();
    let store = Store::start_in(config(64 * MIB), arena, legacy, vec![kept], &[earlier.id()]).unwrap();
    store.keep_within_budget().unwrap();
    let opened = open(&store, &source);
    assert_eq!(opened.generation.id, id);
    load(&store, &model);
    store.complete(&opened.generation);
    assert_eq!((opened.generation.extents.present(), occupied(&store)), (1, 1), "it is read past the arena");
    agrees(&store);

    earlier.kill().unwrap();
    earlier.wait().unwrap();
    store.complete(&opened.generation);
    eventually("all of it is there", || opened.generation.is_complete());
    load(&store, &model);
    agrees(&store);
    drop(opened);
    store.stop();
}

#[test]
fn what_is_inherited_is_not_believed_without_a_look() {
    let folder = Folder::new();
    let model = folder.model(1, 2 * MIB);
    folder.settle();
    let source = model.source();
    let arena = Arena::create(Store::arena_size(64 * MIB)).unwrap();
    let left = arena.file(GenerationId(7), model.size).unwrap();
    left.mapping().target(0..model.size as usize).copy_from_slice(&files::content(1, 1, model.size, &(0..model.size)));
    let kept = Kept {
        id: GenerationId(7),
        state: GenerationState { file: FileId(1), identity: model.identity(), ended: false, present: vec![true] },
        arena: left.as_file().try_clone().unwrap().into(),
        source: source.file().try_clone().unwrap().into(),
    };
    // While nobody was there.
    std::fs::write(&model.path, vec![7; model.size as usize]).unwrap();
    let store = Store::start_in(config(64 * MIB), arena, Legacy::of_nobody().unwrap(), vec![kept], &[]).unwrap();
    store.keep_within_budget().unwrap();
    let opened = Arc::new(store.open_again(GenerationId(7)).unwrap());
    opened.begin();
    assert_eq!(read(&store, &opened, 0..4096).unwrap(), [7; 4096]);
    drop(opened);
    store.stop();
}
