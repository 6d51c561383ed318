//! The engine on real files.

use std::fs::File;
use std::io::Write;
use std::ops::Range;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};

use super::*;

const MIB: usize = 1 << 20;

/// Bytes that differ from each other at every scale.
fn pattern(len: usize) -> Vec<u8> {
    let mut state = 0x9E37_79B9_7F4A_7C15u64;
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        bytes.extend_from_slice(&(state ^ (state >> 29)).to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

/// A file on the disk that holds the working directory, with nothing of it in the page cache if `cold`.
fn file_of(bytes: &[u8], cold: bool) -> File {
    let mut file = tempfile::tempfile_in(env!("CARGO_MANIFEST_DIR")).unwrap();
    file.write_all(bytes).unwrap();
    file.sync_all().unwrap();
    if cold {
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
    }
    file
}

fn memory_of(len: usize) -> Arc<Mapping> {
    let file = tempfile::tempfile_in("/dev/shm").unwrap();
    let len = len.next_multiple_of(BLOCK as usize).max(BLOCK as usize);
    file.set_len(len as u64).unwrap();
    Arc::new(Mapping::shared(&file, len).unwrap())
}

fn engines() -> Vec<Engine> {
    let choices = [EngineChoice::Auto, EngineChoice::Threads];
    choices.into_iter().map(|choice| Engine::start(choice, Storage::Fast).unwrap()).collect()
}

type Answers = Receiver<Result<(), FillError>>;

fn job(source: &Arc<SourceFile>, bytes: Range<u64>, memory: &Arc<Mapping>, at: usize, class: Class) -> (Job, Answers) {
    let (send, answers) = channel();
    let done = Box::new(move |result| send.send(result).unwrap());
    let (source, memory) = (Arc::clone(source), Arc::clone(memory));
    (Job { source, bytes, memory, at, class, ticket: None, done }, answers)
}

/// The one answer to a job: `recv` fails after it, because its sender is gone.
fn answer(answers: &Answers) -> Result<(), FillError> {
    let result = answers.recv().unwrap();
    assert!(answers.recv().is_err(), "a job is answered once");
    result
}

#[test]
fn files_of_odd_sizes_arrive_whole_and_nothing_past_them_is_touched() {
    let sizes = [1, 4095, 4096, 4097, 2 * MIB - 1, 2 * MIB, 2 * MIB + 1, 5 * MIB + 3];
    for engine in engines() {
        for (cold, size) in sizes.into_iter().flat_map(|size| [(true, size), (false, size)]) {
            let bytes = pattern(size);
            let source = Arc::new(SourceFile::new(file_of(&bytes, cold)));
            let memory = memory_of(size + 4096);
            memory.target(size..memory.len()).fill(0x55);
            let (job, answers) = job(&source, 0..size as u64, &memory, 0, Class::Demand);
            engine.submit(job);
            assert_eq!(answer(&answers), Ok(()));
            assert!(memory.bytes(0..size) == bytes, "{size} bytes, cold {cold}, {}", engine.kind());
            assert!(memory.bytes(size..memory.len()).iter().all(|byte| *byte == 0x55), "{size}");
        }
        engine.shutdown();
    }
}
