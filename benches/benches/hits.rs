//! What a read costs that the arena answers: the path of the daemon for each request of a streamed file.
//!
//! The bytes are not copied here, which the kernel does: this is what comes on top.

use std::fs::File;
use std::hint::black_box;
use std::sync::Arc;
use std::thread::sleep;

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use weightfs::fill::{EngineChoice, SourceFile};
use weightfs::predict::Access;
use weightfs::store::{Opened, SETTLE, Store, StoreConfig};

const MIB: u64 = 1 << 20;
const SIZE: u64 = 64 * MIB;

/// As the kernel asks: what a page fault wants, what it reads ahead, and the largest request.
const READS: [u64; 3] = [4 << 10, 128 << 10, 4 << 20];

fn store() -> Arc<Store> {
    let config = StoreConfig {
        budget: 2 * SIZE,
        reserve: None,
        high_watermark: 98,
        low_watermark: 96,
        engine: EngineChoice::Auto,
        history: None,
    };
    Store::start(config).expect("a store")
}

/// A file of which all is in the arena.
fn resident(store: &Arc<Store>, source: &Arc<SourceFile>) -> Arc<Opened> {
    let opened = Arc::new(store.open(source).expect("a file that has settled"));
    opened.begin();
    for start in (0..SIZE).step_by(MIB as usize) {
        let (send, answer) = std::sync::mpsc::channel();
        store.read(&opened, start..start + MIB, Access::Read, move |result| {
            send.send(result.map(<[u8]>::len)).expect("somebody waits");
        });
        answer.recv().expect("an answer").expect("the bytes");
    }
    while !opened.generation.is_complete() {
        sleep(std::time::Duration::from_millis(10));
    }
    opened
}

fn hits(criterion: &mut Criterion) {
    let place = tempfile::tempdir_in("/var/tmp").expect("a folder");
    let path = place.path().join("model.bin");
    std::fs::write(&path, vec![1; SIZE as usize]).expect("a file");
    sleep(SETTLE + std::time::Duration::from_secs(1));
    let store = store();
    let opened = resident(&store, &Arc::new(SourceFile::new(File::open(&path).expect("the file"))));
    let mut group = criterion.benchmark_group("a read out of the arena");
    for size in READS {
        let mut offset = 0;
        group.bench_function(BenchmarkId::from_parameter(format!("{} KiB", size >> 10)), |bencher| {
            bencher.iter(|| {
                offset = (offset + size) % SIZE;
                store.read(&opened, offset..offset + size, Access::Read, |result| {
                    black_box(result.expect("the bytes").as_ptr());
                });
            });
        });
    }
    group.finish();
    drop(opened);
    store.stop();
}

criterion_group!(benches, hits);
criterion_main!(benches);
