//! What it costs to understand a header, and to plan what to read for a touch.
//!
//! A library of 20,000 models is looked at when a program starts: a millisecond for each would be 20 seconds.

use std::fmt::Write;
use std::hint::black_box;
use std::ops::Range;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use weightfs::extent::{Window, plan, requests};
use weightfs::format::{Bytes, TensorMap, read};

/// Tensors of a LoRA, of a diffusion model, and of a large language model.
const TENSORS: [u64; 3] = [400, 2_000, 40_000];

const MIB: u64 = 1 << 20;

/// A touch as a loader makes it.
const TOUCH: u64 = 2 * MIB;

const WINDOW: Window = Window { demand: 64 * MIB, ahead: 256 * MIB };

/// A model of which only the header is there. Its data reads as zeros: a reader of headers may read on into it.
struct Header {
    bytes: Vec<u8>,
    size: u64,
}

impl Bytes for Header {
    fn size(&self) -> u64 {
        self.size
    }

    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> std::io::Result<()> {
        if offset + buffer.len() as u64 > self.size {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        let header = self.bytes.get(offset as usize..).unwrap_or_default();
        let (from_header, data) = buffer.split_at_mut(header.len().min(buffer.len()));
        from_header.copy_from_slice(&header[..from_header.len()]);
        data.fill(0);
        Ok(())
    }
}

/// Tensors of 4 MiB each.
fn safetensors(tensors: u64) -> Header {
    let mut text = String::from("{\"__metadata__\":{\"format\":\"pt\"}");
    for index in 0..tensors {
        let (start, end) = (index * 4 * MIB, (index + 1) * 4 * MIB);
        write!(
            text,
            ",\"model.diffusion_model.blocks.{index}.attn.to_q.weight\":\
             {{\"dtype\":\"F16\",\"shape\":[1024,2048],\"data_offsets\":[{start},{end}]}}"
        )
        .expect("a String takes what is written to it");
    }
    text.push('}');
    let mut bytes = (text.len() as u64).to_le_bytes().to_vec();
    bytes.extend_from_slice(text.as_bytes());
    Header { size: bytes.len() as u64 + tensors * 4 * MIB, bytes }
}

fn gguf(tensors: u64) -> Header {
    let mut bytes = b"GGUF".to_vec();
    bytes.extend_from_slice(&3u32.to_le_bytes());
    bytes.extend_from_slice(&tensors.to_le_bytes());
    bytes.extend_from_slice(&0u64.to_le_bytes());
    for index in 0..tensors {
        let name = format!("blk.{index}.attn_q.weight");
        bytes.extend_from_slice(&(name.len() as u64).to_le_bytes());
        bytes.extend_from_slice(name.as_bytes());
        bytes.extend_from_slice(&2u32.to_le_bytes());
        bytes.extend_from_slice(&2048u64.to_le_bytes());
        bytes.extend_from_slice(&1024u64.to_le_bytes());
        // Half precision.
        bytes.extend_from_slice(&1u32.to_le_bytes());
        bytes.extend_from_slice(&(index * 4 * MIB).to_le_bytes());
    }
    bytes.resize(bytes.len().next_multiple_of(32), 0);
    Header { size: bytes.len() as u64 + tensors * 4 * MIB, bytes }
}

fn map(header: &Header) -> TensorMap {
    read(header).expect("a header that is right")
}

fn headers(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("header");
    for (name, make) in [("safetensors", safetensors as fn(u64) -> Header), ("GGUF", gguf)] {
        for tensors in TENSORS {
            let header = make(tensors);
            assert_eq!(map(&header).tensors().len() as u64, tensors);
            group.throughput(Throughput::Elements(tensors));
            let id = BenchmarkId::new(name, tensors);
            group.bench_with_input(id, &header, |bencher, header| bencher.iter(|| map(header)));
        }
    }
    group.finish();
}

fn plans(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("plan of a touch");
    for tensors in TENSORS {
        let map = map(&safetensors(tensors));
        // Read last time from the end to the start.
        let learned: Vec<u32> = (0..tensors as u32).rev().collect();
        let touches: Vec<Range<u64>> = (0..64)
            .map(|index| {
                let start = map.header().end + index * 40_503 % tensors * 4 * MIB;
                start..start + TOUCH
            })
            .collect();
        for (name, learned) in [("in file order", &[] as &[u32]), ("as learned", &learned)] {
            let mut next = touches.iter().cycle();
            group.bench_function(BenchmarkId::new(name, tensors), |bencher| {
                bencher.iter(|| {
                    let touch = next.next().expect("there is no end to them").clone();
                    let planned = plan(&map, touch, learned, WINDOW);
                    // Half of it is there already.
                    requests(planned.demand.into_iter().chain(planned.prefetch), |extent| extent % 2 == 0, 4 * MIB)
                        .map(black_box)
                        .count()
                });
            });
        }
    }
    group.finish();
}

criterion_group!(benches, headers, plans);
criterion_main!(benches);
