//! The engine on real files.

use std::fs::File;
use std::io::Write;
use std::ops::Range;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};

use rustix::io::Errno;

use super::*;
use crate::sys::cachestat::all_cached;

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

/// Numbers below `limit`, the same in each run.
fn numbers(mut state: u64) -> impl FnMut(u64) -> u64 {
    move |limit| {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 33) % limit
    }
}

#[test]
fn many_jobs_at_once_each_get_their_own_bytes() {
    let bytes = pattern(24 * MIB + 123);
    let source = Arc::new(SourceFile::new(file_of(&bytes, true)));
    for engine in engines() {
        let mut number = numbers(1);
        let mut jobs = Vec::new();
        for _ in 0..60 {
            let start = number(bytes.len() as u64) / BLOCK * BLOCK;
            let end = (start + (1 + number(1200)) * BLOCK).min(bytes.len() as u64);
            let at = (number(16) * BLOCK) as usize;
            let memory = memory_of(at + (end - start) as usize);
            let (job, answers) = job(&source, start..end, &memory, at, Class::ALL[number(3) as usize]);
            let id = engine.submit(job);
            if number(3) == 0 {
                engine.promote(id, Class::Demand);
            }
            jobs.push((start as usize..end as usize, memory, at, answers));
        }
        for (range, memory, at, answers) in jobs {
            assert_eq!(answer(&answers), Ok(()));
            assert!(memory.bytes(at..at + range.len()) == &bytes[range.clone()], "{range:?}, {}", engine.kind());
            assert!(memory.bytes(0..at).iter().all(|byte| *byte == 0));
        }
    }
}

/// Fills 5 MiB and a bit from a file with these faults.
fn fill_with(engine: &Engine, faults: &[(u64, Fault)]) -> (Result<(), FillError>, Arc<SourceFile>) {
    let bytes = pattern(5 * MIB + 3);
    let source = Arc::new(SourceFile::with_faults(file_of(&bytes, true), Faults::new(faults.iter().copied())));
    let memory = memory_of(bytes.len());
    let (job, answers) = job(&source, 0..bytes.len() as u64, &memory, 0, Class::OpenWait);
    engine.submit(job);
    let result = answer(&answers);
    if result.is_ok() {
        assert!(memory.bytes(0..bytes.len()) == bytes, "{faults:?}, {}", engine.kind());
    }
    (result, source)
}

#[test]
fn faults_that_pass_cost_nothing_but_time() {
    use Fault::{Error, Short};
    let tail = 5 * MIB as u64 + 1;
    let passing: [&[(u64, Fault)]; 7] = [
        &[(0, Short(4096)), (2 << 20, Short(5000)), (4 << 20, Short(1))],
        &[(0, Short(100)), (0, Short(100)), (4096, Short(4095))],
        &[(tail, Short(1)), (tail, Short(1))],
        &[(0, Error(Errno::INTR)), (0, Error(Errno::AGAIN)), (tail, Error(Errno::INTR))],
        &[(0, Error(Errno::IO)), (0, Error(Errno::IO)), (0, Error(Errno::IO))],
        &[(0, Error(Errno::IO)), (0, Error(Errno::IO)), (0, Short(8192)), (8192, Error(Errno::IO))],
        &[(2 << 20, Error(Errno::NOMEM)), (tail, Error(Errno::IO))],
    ];
    for engine in engines() {
        for faults in passing {
            assert_eq!(fill_with(&engine, faults).0, Ok(()), "{faults:?}, {}", engine.kind());
        }
        assert_eq!(engine.counters().errors, 0);
    }
}

#[test]
fn a_hard_error_reaches_its_job_alone() {
    for engine in engines() {
        let faults = vec![(3 << 20, Fault::Error(Errno::IO)); 4];
        let (result, _) = fill_with(&engine, &faults);
        assert_eq!(result, Err(FillError::Io { offset: 2 << 20, errno: Errno::IO.raw_os_error() }));
        assert_eq!((engine.counters().retries, engine.counters().errors), (3, 1));
        assert_eq!(fill_with(&engine, &[]).0, Ok(()));
    }
}

#[test]
fn a_filesystem_that_refuses_direct_reads_is_read_through_the_page_cache() {
    for engine in engines() {
        let (result, source) = fill_with(&engine, &[(0, Fault::Error(Errno::INVAL))]);
        assert_eq!(result, Ok(()));
        assert!(!source.is_direct());
        assert_eq!(engine.counters().retries, 0);
    }
}

#[test]
fn a_source_that_has_shrunk_is_an_error_and_one_that_has_grown_is_not() {
    for engine in engines() {
        for size in [0, 1, 4096, 2 * MIB, 3 * MIB + 5] {
            let source = Arc::new(SourceFile::new(file_of(&pattern(size), true)));
            let (job, answers) = job(&source, 0..4 << 20, &memory_of(4 * MIB), 0, Class::Demand);
            engine.submit(job);
            let result = answer(&answers);
            assert!(matches!(result, Err(FillError::Truncated { offset }) if offset >= size as u64), "{result:?}");
        }
        let bytes = pattern(2 * MIB);
        let source = Arc::new(SourceFile::new(file_of(&bytes, true)));
        let memory = memory_of(MIB);
        let (job, answers) = job(&source, 0..MIB as u64 - 10, &memory, 0, Class::Demand);
        engine.submit(job);
        assert_eq!(answer(&answers), Ok(()));
        assert!(memory.bytes(0..MIB - 10) == &bytes[..MIB - 10]);
        assert_eq!(memory.bytes(MIB - 10..MIB), [0; 10]);
    }
}

#[test]
fn the_page_cache_is_used_where_it_has_the_bytes_and_left_as_it_was() {
    let bytes = pattern(6 * MIB + 77);
    for engine in engines() {
        for (cold, direct) in [(true, true), (true, false), (false, true), (false, false)] {
            let file = file_of(&bytes, cold);
            let cached = |file: &File| all_cached(file, 0, 1 << 20);
            if cached(&file) != Some(!cold) {
                // The kernel does not tell, or this filesystem lives in memory.
                continue;
            }
            let source = if direct { SourceFile::new(file) } else { SourceFile::with_direct(file, None) };
            let (source, memory) = (Arc::new(source), memory_of(bytes.len()));
            let before = engine.counters();
            let (job, answers) = job(&source, 0..bytes.len() as u64, &memory, 0, Class::Prefetch);
            engine.submit(job);
            assert_eq!(answer(&answers), Ok(()));
            assert!(memory.bytes(0..bytes.len()) == bytes);
            let after = engine.counters();
            let len = bytes.len() as u64;
            assert_eq!(after.source_read_bytes - before.source_read_bytes, len);
            assert_eq!(after.page_cache_bytes - before.page_cache_bytes, if cold { 0 } else { len });
            assert_eq!(cached(source.file()), Some(!cold), "cold {cold}, direct {direct}, {}", engine.kind());
        }
    }
}

#[test]
fn a_job_whose_reason_has_gone_is_not_read() {
    for engine in engines() {
        let source = Arc::new(SourceFile::new(file_of(&pattern(MIB), false)));
        let (mut job, answers) = job(&source, 0..MIB as u64, &memory_of(MIB), 0, Class::Prefetch);
        let ticket = Cancel::new();
        job.ticket = Some(Arc::clone(&ticket));
        ticket.cancel();
        engine.submit(job);
        assert_eq!(answer(&answers), Err(FillError::Cancelled));
        assert_eq!(engine.counters().requests, 0);
    }
}

/// Submits many jobs, ends the engine in the middle, and expects one true answer to each.
fn ended_while_busy(engine: Engine, end: impl FnOnce(Engine)) {
    let bytes = pattern(16 * MIB + 9);
    let source = Arc::new(SourceFile::new(file_of(&bytes, true)));
    let mut jobs = Vec::new();
    for class in Class::ALL.into_iter().cycle().take(12) {
        let memory = memory_of(bytes.len());
        let (job, answers) = job(&source, 0..bytes.len() as u64, &memory, 0, class);
        engine.submit(job);
        jobs.push((memory, answers));
    }
    let first = jobs[0].1.recv().unwrap();
    assert_eq!(first, Ok(()));
    end(engine);
    for (memory, answers) in &jobs[1..] {
        match answer(answers) {
            Ok(()) => assert!(memory.bytes(0..bytes.len()) == bytes),
            Err(error) => assert_eq!(error, FillError::Shutdown),
        }
        assert_eq!(Arc::strong_count(memory), 1, "nobody can write there any more");
    }
}

#[test]
fn every_job_is_answered_once_when_the_engine_ends() {
    for engine in engines() {
        let late = engine.clone();
        ended_while_busy(engine, Engine::shutdown);
        let source = Arc::new(SourceFile::new(file_of(&[1], true)));
        let (job, answers) = job(&source, 0..1, &memory_of(1), 0, Class::Demand);
        late.submit(job);
        assert_eq!(answer(&answers), Err(FillError::Shutdown));
    }
    for engine in engines() {
        ended_while_busy(engine, drop);
    }
}

#[test]
fn the_last_handle_may_go_where_a_job_is_answered() {
    for engine in engines() {
        let source = Arc::new(SourceFile::new(file_of(&pattern(MIB), true)));
        let (mut job, answers) = job(&source, 0..MIB as u64, &memory_of(MIB), 0, Class::Demand);
        let (held, go) = channel::<Engine>();
        let answered = std::mem::replace(&mut job.done, Box::new(|_| ()));
        job.done = Box::new(move |result| {
            drop(go.recv());
            answered(result);
        });
        engine.submit(job);
        held.send(engine).unwrap();
        assert_eq!(answer(&answers), Ok(()));
    }
}

#[test]
fn who_cannot_have_io_uring_is_told_what_to_do() {
    let told = |errno: Errno| EngineError::Uring { error: errno.into() }.to_string();
    assert!(told(Errno::PERM).contains("kernel.io_uring_disabled=0"));
    assert!(told(Errno::NOMEM).contains("ulimit -l"));
    assert!(told(Errno::NOSYS).contains("Linux 5.11"));
}
