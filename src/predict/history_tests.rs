use proptest::prelude::*;

use super::*;
use crate::ids::Timestamp;
use crate::predict::OrderRecorder;

const GIB: u64 = 1 << 30;
/// An open that has read nothing of the data.
const NOTHING: Facts =
    Facts { data_bytes: GIB, data_read: 0, data_touched: 0, front_to_back: true, ignores_tensors: true, mapped: None };
/// An open that has begun to read tensors in an order of its own.
const TENSORS: Facts = Facts { data_read: 4096, data_touched: 4096, front_to_back: false, ..NOTHING };
/// An open that reads blocks from front to back.
const BLOCKS: Facts = Facts { data_read: GIB / 8, data_touched: GIB / 8, ..NOTHING };

const START: Duration = Duration::from_secs(1_800_000_000);

fn key(number: u64) -> FileKey {
    let time = Timestamp { seconds: 1_700_000_000, nanoseconds: 5 };
    let identity = SourceIdentity { device: 1, inode: number, size: GIB, modified: time, changed: time };
    FileKey::new(identity, format!("unet/{number}.safetensors").as_bytes())
}

fn after(seconds: u64) -> Duration {
    START + Duration::from_secs(seconds)
}

fn order(tensors: &[usize]) -> Order {
    let recorder = OrderRecorder::new(1 << 19);
    tensors.iter().for_each(|tensor| recorder.touch(*tensor));
    recorder.order()
}

fn history(opens: &[(u64, OpenKind, u64)]) -> History {
    let mut history = History::default();
    for (file, kind, seconds) in opens {
        history.record(key(*file), *kind, None, after(*seconds));
    }
    history
}

#[test]
fn nothing_is_expected_of_a_stranger_until_it_touches_tensors() {
    let history = History::default();
    let expect = |facts| history.expect(&key(1), &facts, &[], START);
    assert_eq!(expect(NOTHING), Expectation::Unknown);
    assert_eq!(expect(TENSORS), Expectation::WholeLoad);
    assert_eq!(expect(BLOCKS), Expectation::Unknown);
    assert_eq!(expect(Facts { mapped: Some(true), ..BLOCKS }), Expectation::WholeLoad);
}

#[test]
fn what_was_loaded_is_expected_to_be_loaded_again() {
    for kind in [OpenKind::WholeLoadMapped, OpenKind::WholeLoadRead] {
        let mut history = history(&[(1, kind, 0)]);
        for second in 100..103 {
            assert_eq!(history.expect(&key(1), &NOTHING, &[], after(second)), Expectation::WholeLoad);
            history.record(key(1), OpenKind::HeaderPeek, None, after(second));
        }
        assert_eq!(history.expect(&key(1), &NOTHING, &[], after(200)), Expectation::Unknown);
        let other_content = FileKey { identity: SourceIdentity { size: 5, ..key(1).identity }, ..key(1) };
        assert_eq!(history.expect(&other_content, &NOTHING, &[], after(1)), Expectation::Unknown);
    }
}

#[test]
fn a_second_open_right_after_a_peek_is_a_load() {
    let history = history(&[(1, OpenKind::HeaderPeek, 0)]);
    assert_eq!(history.expect(&key(1), &NOTHING, &[], after(1)), Expectation::WholeLoad);
    assert_eq!(history.expect(&key(1), &NOTHING, &[], after(2)), Expectation::Peek);

    let first = LiveOpen { opened: START, facts: NOTHING };
    assert_eq!(history.expect(&key(2), &NOTHING, &[first], after(1)), Expectation::WholeLoad);
    assert_eq!(history.expect(&key(2), &NOTHING, &[first], after(2)), Expectation::Unknown);
    let reading = LiveOpen { opened: START, facts: BLOCKS };
    assert_eq!(history.expect(&key(2), &NOTHING, &[reading], after(1)), Expectation::Unknown);
}

#[test]
fn a_walk_over_the_library_makes_nobody_fill_it() {
    for (kind, facts) in [
        (OpenKind::HeaderPeek, &[NOTHING, TENSORS] as &[Facts]),
        (OpenKind::HashScan, &[NOTHING, BLOCKS, Facts { ignores_tensors: false, ..BLOCKS }]),
    ] {
        let mut history = History::default();
        for file in 0..1000 {
            let now = after(10 * file);
            // The first few look like anything; from then on no read of this kind raises hopes.
            for facts in facts.iter().filter(|_| file >= 4) {
                let expected = history.expect(&key(file), facts, &[LiveOpen { opened: now, facts: NOTHING }], now);
                assert_eq!(expected, Expectation::Unknown, "file {file}: {facts:?}");
            }
            assert!(!history.record(key(file), kind, None, now));
        }
        for file in 0..1000 {
            let expected = history.expect(&key(file), &NOTHING, &[], after(20_000));
            assert_ne!(expected, Expectation::WholeLoad, "file {file}");
        }
    }
}

#[test]
fn a_walk_does_not_hide_those_who_load() {
    let mut history = history(&[(1, OpenKind::WholeLoadMapped, 0)]);
    for file in 10..20 {
        history.record(key(file), OpenKind::HashScan, None, after(file));
    }
    assert_eq!(history.expect(&key(1), &NOTHING, &[], after(20)), Expectation::Unknown);
    let reads_tensors = Facts { data_read: PEEK_LIMIT + 1, ..TENSORS };
    assert_eq!(history.expect(&key(1), &reads_tensors, &[], after(20)), Expectation::WholeLoad);
    assert_eq!(history.expect(&key(1), &NOTHING, &[], after(200)), Expectation::WholeLoad);
    history.record(key(2), OpenKind::WholeLoadRead, None, after(21));
    assert_eq!(history.expect(&key(1), &NOTHING, &[], after(22)), Expectation::WholeLoad);
}

#[test]
fn a_scan_that_keeps_coming_back_is_a_load() {
    let mut history = History::default();
    assert!(!history.record(key(1), OpenKind::HashScan, None, after(0)));
    assert_eq!(history.expect(&key(1), &NOTHING, &[], after(60)), Expectation::Unknown);
    assert!(history.record(key(1), OpenKind::HashScan, None, after(60)));
    assert_eq!(history.expect(&key(1), &BLOCKS, &[], after(120)), Expectation::WholeLoad);
    assert_eq!(history.expect(&key(1), &NOTHING, &[], after(10_000)), Expectation::Unknown);
    assert!(!history.record(key(1), OpenKind::HashScan, None, after(10_000)), "a nightly check is no use");
}

#[test]
fn each_whole_load_replaces_the_order() {
    let mut history = History::default();
    let mut record = |kind, tensors: &[usize]| {
        history.record(key(1), kind, Some(order(tensors)), START);
        history.order(&key(1)).map(Order::to_vec)
    };
    assert_eq!(record(OpenKind::HashScan, &[0, 1]), None);
    assert_eq!(record(OpenKind::WholeLoadRead, &[2, 0, 1]), Some(vec![2, 0, 1]));
    assert_eq!(record(OpenKind::Partial, &[0]), Some(vec![2, 0, 1]));
    assert_eq!(record(OpenKind::WholeLoadMapped, &[1, 0, 2]), Some(vec![1, 0, 2]));
}

#[test]
fn the_files_used_longest_ago_are_forgotten() {
    let mut history = History::default();
    let files = MAX_FILES as u64;
    for file in 0..files {
        history.record(key(file), OpenKind::WholeLoadRead, Some(order(&[1])), START);
    }
    history.record(key(0), OpenKind::WholeLoadRead, None, START);
    assert_eq!(history.len(), MAX_FILES);
    history.record(key(files), OpenKind::WholeLoadRead, Some(order(&[1])), START);
    assert!(history.len() <= MAX_FILES && history.len() >= MAX_FILES - MAX_FILES / DROP_SHARE);
    let known = |file| history.order(&key(file)).is_some();
    assert!(known(0) && known(files) && known(files - 1) && known(files / 2));
    assert!(!known(1) && !known(2));
}

#[test]
fn orders_are_dropped_before_they_take_much_memory() {
    let mut history = History::default();
    let scattered = order(&(0..32_000).step_by(2).collect::<Vec<_>>());
    let count = MAX_RUNS as u64 / 16_000 + 1;
    for file in 0..count {
        history.record(key(file), OpenKind::WholeLoadRead, Some(scattered.clone()), START);
    }
    assert!(history.runs <= MAX_RUNS);
    assert!(history.order(&key(0)).is_none() && history.order(&key(count - 1)).is_some());
    assert_eq!(history.expect(&key(0), &NOTHING, &[], START), Expectation::WholeLoad);
}

#[test]
fn the_speed_of_devices_is_remembered_and_small_changes_are_no_news() {
    let mut history = History::default();
    assert_eq!(history.speed(1), None);
    assert!(history.record_speed(1, GIB));
    assert!(!history.record_speed(1, GIB + GIB / 10));
    assert!(history.record_speed(1, 2 * GIB));
    let restored: History = serde_json::from_str(&serde_json::to_string(&history).unwrap()).unwrap();
    assert_eq!((restored.speed(1), restored.speed(2)), (Some(2 * GIB), None));
    (0..1000).for_each(|device| _ = history.record_speed(device, GIB));
    assert_eq!((0..1000).filter(|device| history.speed(*device).is_some()).count(), MAX_DEVICES);
}

#[test]
fn a_history_of_another_version_is_refused() {
    let error = serde_json::from_str::<History>(r#"{"version":2,"files":[]}"#).unwrap_err();
    assert!(error.to_string().contains("version 2"), "{error}");
}

fn kind() -> impl Strategy<Value = OpenKind> {
    use OpenKind::*;
    prop::sample::select(vec![HeaderPeek, HashScan, WholeLoadRead, WholeLoadMapped, Partial])
}

proptest! {
    #[test]
    fn a_saved_history_expects_the_same(
        opens in prop::collection::vec((0u64..8, kind(), 0u64..5000, prop::collection::vec(0usize..99, 0..9)), 0..60),
    ) {
        let mut history = History::default();
        let mut seconds = 0;
        for (file, kind, step, tensors) in opens {
            seconds += step;
            history.record(key(file), kind, Some(order(&tensors)), after(seconds));
        }
        let saved = serde_json::to_string(&history).unwrap();
        let restored: History = serde_json::from_str(&saved).unwrap();
        prop_assert_eq!(serde_json::to_string(&restored).unwrap(), saved);
        prop_assert_eq!((restored.len(), restored.runs), (history.len(), history.runs));
        // Walks are not saved, and are over by then.
        let later = after(seconds + 200);
        for file in 0..8 {
            let expected = history.expect(&key(file), &NOTHING, &[], later);
            prop_assert_eq!(restored.expect(&key(file), &NOTHING, &[], later), expected);
            prop_assert_eq!(restored.order(&key(file)), history.order(&key(file)));
        }
    }
}
