//! Workflows that do not fit: what is read again is compared with what a cache that knows the future would read.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use weightfs::ids::FileId;
use weightfs::residency::{PolicyKind, RefetchCost, UseKind};
use weightfs::trace::{Event, Trace, What, optimum, replay};
use weightfs::units::extent_count;
use weightfs_tests::load::load;
use weightfs_tests::system::{drop_page_cache, let_files_settle, temporary_folder, wait_until};
use weightfs_tests::{Mount, data};

use crate::{MIB, PATIENCE, can_mount};

/// Models in a folder, and a mount of it.
struct Library {
    _source: tempfile::TempDir,
    mount: Mount,
    models: Vec<PathBuf>,
    sizes: Vec<u64>,
}

impl Library {
    fn new(megabytes: &[u64], options: &[&str]) -> Library {
        let source = temporary_folder("source");
        let names: Vec<String> = (0..megabytes.len()).map(|index| format!("{index}.safetensors")).collect();
        let mut sizes = Vec::new();
        for (index, (name, megabytes)) in names.iter().zip(megabytes).enumerate() {
            let real = source.path().join(name);
            data::write_safetensors(&real, 1000 * index as u64, *megabytes);
            sizes.push(std::fs::metadata(&real).expect("it was written").len());
            drop_page_cache(&real);
        }
        let_files_settle();
        let mount = Mount::start(source.path(), options);
        let models = names.iter().map(|name| mount.join(name)).collect();
        Library { _source: source, mount, models, sizes }
    }

    fn source_read(&self) -> u64 {
        self.mount.status().source_read()
    }
}

/// The same reads as a trace.
fn trace(sizes: &[u64], order: &[usize]) -> Trace {
    let cost = RefetchCost::from_bytes_per_second(1 << 30);
    let mut events: Vec<What> =
        sizes.iter().zip(0..).map(|(size, file)| What::File { file: FileId(file), size: *size, cost }).collect();
    for file in order {
        events.push(What::Open { open: 0, file: FileId(*file as u64), kind: UseKind::Load });
        events.push(What::Read { open: 0, extents: 0..extent_count(sizes[*file]) });
        events.push(What::Close { open: 0, kind: UseKind::Load });
    }
    Trace { events: events.into_iter().zip(0..).map(|(what, at_ms)| Event { at_ms, what }).collect() }
}

/// Three files in turn, six rounds. `most` is in percent of what a cache of `ram` bytes that knows the future would read:
/// the marks and the buffers of what is read past the arena are part of `ram`, and threads that read on both sides of an
/// extent may have it read twice.
fn check_loop(megabytes: u64, ram: u64, most: u64, options: &[&str]) {
    let ram_text = ram.to_string();
    let library = Library::new(&[megabytes; 3], &[&["--ram", &ram_text], options].concat());
    let started = Instant::now();
    let mut read = Vec::new();
    for _ in 0..6 {
        let before = library.source_read();
        library.models.iter().for_each(|model| {
            load(model);
        });
        read.push((library.source_read() - before) / MIB);
    }
    let took = started.elapsed();
    let trace = trace(&library.sizes, &[0, 1, 2].repeat(6));
    // Three files, and three events for each load.
    let counted = 3 + 9..trace.events.len();
    let least = optimum(&trace, ram, counted.clone()).missed / MIB;
    let lru = replay(&trace, PolicyKind::Lru, ram, counted).missed / MIB;
    let later: u64 = read[1..].iter().sum();
    println!("read {read:?} MiB in {took:.1?}; rounds 2 to 6: {later}, the optimum {least}, LRU {lru}");
    assert!(later * 100 <= least * most, "{later} MiB were read, the least is {least}: {:#}", library.mount.status().0);
    assert!(later * 100 < lru * 80, "{later} MiB were read, LRU would read {lru}");
    library.mount.stop();
}

#[test]
fn a_loop_over_more_than_fits_reads_little_more_than_it_must() {
    if can_mount() {
        // So small a budget is nearly all marks and buffers.
        check_loop(96, 192 * MIB, 130, &[]);
    }
}

/// Set `WEIGHTFS_LONG=1` for this: it writes and reads gigabytes.
#[test]
fn a_loop_over_three_large_files_reads_little_more_than_it_must() {
    if std::env::var("WEIGHTFS_LONG").as_deref() == Ok("1") && can_mount() {
        check_loop(512, 1024 * MIB, 115, &[]);
    }
}

#[test]
fn what_is_kept_moves_to_the_model_that_is_still_used() {
    if !can_mount() {
        return;
    }
    let library = Library::new(&[64, 112], &["--ram", "144M"]);
    let [encoder, diffusion] = &library.models[..] else { unreachable!("two models") };
    for _ in 0..4 {
        load(encoder);
        load(diffusion);
    }
    let rounds = 2;
    for _ in 0..rounds {
        load(diffusion);
        // The sampler runs for longer than the policy takes to hear of the reads.
        std::thread::sleep(Duration::from_millis(500));
    }
    let settled = wait_until(PATIENCE, || library.mount.status().resident() >= library.sizes[1]);
    assert!(settled, "not all of it is resident after two rounds: {:#}", library.mount.status().0);
    let before = library.source_read();
    load(diffusion);
    let read = library.source_read() - before;
    assert!(read < 2 * MIB, "{read} bytes were read after two rounds: {:#}", library.mount.status().0);
    library.mount.stop();
}
