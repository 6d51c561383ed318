//! What clients know of the future, and what comes of it.

use super::*;
use crate::residency::{EvictReason, Priority};

const LONG: Duration = Duration::from_secs(60);
const SHORT: Duration = Duration::from_millis(300);

fn opened(store: &Arc<Store>, model: &Model) -> Arc<Opened> {
    Arc::new(store.open(&model.source()).expect("its content has settled"))
}

fn whole(store: &Arc<Store>, model: &Model) -> QueueEntry {
    QueueEntry { file: opened(store, model), part: Part::Whole }
}

fn kinds(store: &Store, generation: &Generation) -> Vec<HintKind> {
    store.hints_on(generation).into_iter().map(|hint| hint.what).collect()
}

/// Two of three models fit.
fn three() -> (Folder, Arc<Store>, Vec<Model>) {
    let (folder, store) = (Folder::new(), store(48 * MIB));
    let models = (0..3).map(|number| folder.model(number, 16 * MIB)).collect();
    folder.settle();
    (folder, store, models)
}

#[test]
fn what_is_queued_is_there_before_anyone_reads_it_and_what_is_needed_last_goes() {
    let (_folder, store, models) = three();
    let files: Vec<_> = models.iter().map(|model| opened(&store, model)).collect();
    let queue = |order: &[usize]| -> Vec<QueueEntry> { order.iter().map(|n| whole(&store, &models[*n])).collect() };
    let complete = || [0, 1, 2].map(|n: usize| files[n].generation.is_complete());
    store.hint_queue("a", queue(&[2, 0, 1]), LONG);
    eventually("the next two are there", || complete() == [true, false, true]);
    assert_eq!(kinds(&store, &files[1].generation), [HintKind::Queued { place: 2 }]);
    assert_eq!(store.explain(&files[1].generation).unwrap().queued, Some(2));
    load(&store, &models[2]);
    assert_eq!(store.io_report().served_from_source, 0);
    // It has been loaded: the last of the queue takes its place.
    eventually("the last is there too", || complete() == [true, true, false]);
    store.hint_queue("a", queue(&[2, 1]), LONG);
    eventually("what is not queued has gone", || complete() == [false, true, true]);
    store.hint_queue("a", Vec::new(), LONG);
    assert_eq!(kinds(&store, &files[1].generation), []);
    agrees(&store);
    store.stop();
}

#[test]
fn of_a_part_that_is_queued_only_that_part_is_read() {
    let (_folder, store, models) = three();
    let file = opened(&store, &models[0]);
    let part = Part::Bytes(vec![3 * MIB..5 * MIB, 7 * MIB..u64::MAX]);
    store.hint_queue("a", vec![QueueEntry { file: Arc::clone(&file), part }], LONG);
    eventually("it is there", || file.generation.extents.present() >= 7);
    agrees(&store);
    let present = |extent| file.generation.extents.is_present(extent);
    assert_eq!([0, 1, 2, 3, 4, 5, 6, 7].map(present), [false, true, true, true, true, true, true, true]);
    store.stop();
}

#[test]
fn what_is_said_for_a_while_is_forgotten_after_it() {
    let (_folder, store, models) = three();
    models.iter().for_each(|model| load(&store, model));
    let files: Vec<_> = models.iter().map(|model| opened(&store, model)).collect();
    let of = |n: usize| &files[n].generation;
    store.hint_queue("a", vec![whole(&store, &models[0])], SHORT);
    store.mark_in_use("a", vec![Arc::clone(&files[0])], SHORT);
    store.hint_vram("a", "cuda:0", vec![Arc::clone(&files[1])], SHORT);
    store.set_priority("a", Arc::clone(&files[1]), Priority::High, SHORT);
    store.set_limit(Some(40 * MIB), SHORT).unwrap();
    assert_eq!(kinds(&store, of(0)), [HintKind::Queued { place: 0 }, HintKind::InUse]);
    let vram = HintKind::InVram { device: "cuda:0".to_owned() };
    assert_eq!(kinds(&store, of(1)), [vram, HintKind::Priority(Priority::High)]);
    let known = store.explain(of(1)).unwrap();
    assert_eq!((known.in_vram, known.priority), (true, Priority::High));
    assert!(store.explain(of(0)).unwrap().in_use_until.is_some());
    assert_eq!(store.limit().map(|(bytes, _)| bytes), Some(40 * MIB));
    eventually("all of it is over", || (0..3).all(|n| store.hints_on(of(n)).is_empty()) && store.limit().is_none());
    eventually("the policy knows", || {
        let [first, second] = [0, 1].map(|n| store.explain(of(n)).unwrap());
        let is_plain = !second.in_vram && second.priority == Priority::Normal;
        is_plain && first.queued.is_none() && first.in_use_until.is_none()
    });
    eventually("the limit is lifted", || store.ram_report().budget == 48 * MIB);
    store.stop();
}

#[test]
fn what_a_gpu_holds_leaves_first_for_each_who_says_so() {
    let (_folder, store, models) = three();
    models[..2].iter().for_each(|model| load(&store, model));
    let files: Vec<_> = models.iter().map(|model| opened(&store, model)).collect();
    store.hint_vram("a", "cuda:0", vec![Arc::clone(&files[0])], LONG);
    store.hint_vram("b", "cuda:0", vec![Arc::clone(&files[0])], LONG);
    let first = || {
        let victims = store.residency.lock().reclaim(EXTENT_SIZE, store.now());
        let [victim] = &victims[..] else { panic!("{victims:?}") };
        store.residency.lock().refused(victim.file, victim.extents.clone());
        (victim.file, victim.reason)
    };
    assert_eq!(first(), (files[0].generation.file_id(), EvictReason::InVram));
    store.hint_vram("a", "cuda:0", Vec::new(), LONG);
    assert_eq!(first().1, EvictReason::InVram);
    store.hint_vram("b", "cuda:0", Vec::new(), LONG);
    assert_ne!(first().1, EvictReason::InVram);
    store.stop();
}

#[test]
fn a_limit_takes_room_away_at_once_and_never_from_pins() {
    let (_folder, store, models) = three();
    models[..2].iter().for_each(|model| load(&store, model));
    let file = opened(&store, &models[0]);
    store.pin(&file, None).unwrap();
    let refused = store.set_limit(Some(10 * MIB), LONG).unwrap_err();
    assert_eq!(refused, BelowPins { asked: 10 * MIB, pinned: 16 * MIB });
    store.set_limit(Some(30 * MIB), LONG).unwrap();
    assert_eq!(store.ram_report().budget, 30 * MIB);
    eventually("the arena gives way", || store.ram_report().resident <= 22 * MIB);
    assert!(file.generation.is_complete(), "pins stay");
    store.set_limit(None, LONG).unwrap();
    assert_eq!(store.ram_report().budget, 48 * MIB);
    store.stop();
}
