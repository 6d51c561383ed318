//! A source that fails at random, against what each byte should be: every read gives the right bytes or an error.

use std::fs::File;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use weightfs_tests::Mount;
use weightfs_tests::data::{self, Random};

use crate::{MIB, can_mount, faulty, is_right, read_at};

const MODELS: [(&str, u64, u64); 4] = [
    ("a.safetensors", 1, 14 * MIB + 1),
    ("b.gguf", 2, 9 * MIB),
    ("c.bin", 3, 23 * MIB + 4097),
    ("d.safetensors", 4, 5 * MIB - 3),
];

/// Of each way to read.
const TIME: Duration = Duration::from_secs(6);

#[test]
fn every_read_is_right_or_an_error() {
    if !can_mount() {
        return;
    }
    let mut random = Random::from_environment();
    let (_folder, faulty) = faulty(&MODELS);
    for io in ["auto", "threads"] {
        // Less than all of them take: what fails is also evicted, bypassed and read again.
        let mount = Mount::start(faulty.path(), &["--ram", "32M", "--io", io, "--open-wait", "100ms"]);
        faulty.script.at_random(random.fork(), 6);
        let (right, failed) = (AtomicU64::new(0), AtomicU64::new(0));
        let end = Instant::now() + TIME;
        std::thread::scope(|scope| {
            for _ in 0..4 {
                let mut random = random.fork();
                let (mount, right, failed) = (&mount, &right, &failed);
                scope.spawn(move || {
                    while Instant::now() < end {
                        let (name, seed, size) = *random.pick(&MODELS);
                        let Ok(file) = File::open(mount.join(name)) else {
                            failed.fetch_add(1, Ordering::Relaxed);
                            continue;
                        };
                        for _ in 0..1 + random.below(12) {
                            let offset = random.below(size);
                            let length = 1 + random.below(3 * MIB) as usize;
                            match read_at(&file, offset, length) {
                                Ok(bytes) => {
                                    assert!(!bytes.is_empty(), "{name}: nothing at {offset} of {size}");
                                    assert_eq!(data::check(seed, offset, &bytes), Ok(()), "{name}");
                                    right.fetch_add(1, Ordering::Relaxed);
                                }
                                Err(_) => drop(failed.fetch_add(1, Ordering::Relaxed)),
                            }
                        }
                    }
                });
            }
        });
        let injected = faulty.script.injected();
        println!("{io}: {right:?} right, {failed:?} failed, {injected} faults");
        assert!(right.load(Ordering::Relaxed) > 0 && injected > 0, "both happen");
        faulty.script.clear();
        for (name, seed, size) in MODELS {
            is_right(&mount, name, seed, size).unwrap_or_else(|error| panic!("{io}, afterwards, {name}: {error}"));
        }
        mount.status().check_contract();
        mount.stop();
    }
}
