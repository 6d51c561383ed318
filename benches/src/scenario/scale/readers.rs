//! More and more programs that read the same model at once, each all of it.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Barrier;
use std::time::Instant;

use super::{Curves, RUNS};
use crate::data::Format;
use crate::error::{BenchError, Doing, Result};
use crate::report::{Growth, Outcome, Unit};
use crate::scenario::{Bench, Scenario};

const PIECE: usize = 2 << 20;

pub fn run(bench: &mut Bench, counts: &[u64], scenario: &Scenario) -> Result<Vec<Outcome>> {
    let weightfs = bench.weightfs.clone();
    let native = bench.library.table(&bench.library.folder, Format::Safetensors);
    let through_mount = bench.library.table(&weightfs.mountpoint, Format::Safetensors);
    let mut curves = Curves::default();
    for _ in 0..RUNS {
        // Warm: the first pass of one reader is not counted.
        read_all(&native, 1)?;
        for count in counts.iter().copied() {
            curves.add("native, page cache", count, read_all(&native, count)?);
        }
        for (name, options) in [("weightfs, resident", &[] as &[&str]), ("weightfs, streamed", &["--no-passthrough"])] {
            let mounted = weightfs.mount(options)?;
            mounted.prefetch(std::slice::from_ref(&through_mount))?;
            for count in counts.iter().copied() {
                curves.add(name, count, read_all(&through_mount, count)?);
            }
            mounted.unmount()?;
        }
    }
    let lines = ["native, page cache", "weightfs, resident", "weightfs, streamed"].map(|curve| {
        // The time of all is what they read by how fast that went.
        curves.line(curve, |count| count as f64, |count, speed| count / speed)
    });
    let explained = format!(
        "Each of them opens the model and reads all of it, so that twice as many read twice as much. They share the \
         cores of this machine: more readers than cores add nothing, and should take nothing. The power is that of the \
         time until all have read everything: with 1 each reader costs the same. ({RUNS} runs of each.)"
    );
    let title = "speed of parallel readers, all together";
    let across = ("programs that read at once", Unit::GigabytesPerSecond);
    Ok(vec![Outcome::Growth(Growth::of(scenario.id, title, across, lines.into(), &explained))])
}

/// GB a second of so many threads, each with the file opened for itself and a buffer of its own.
pub fn read_all(path: &Path, count: u64) -> Result<f64> {
    let what = || format!("read {}", path.display());
    let (begin, size) = (Barrier::new(count as usize + 1), std::fs::metadata(path).doing(what)?.len());
    let read = || -> std::io::Result<()> {
        // Not zeros: those would be pages that nobody has touched yet.
        let mut buffer = vec![1; PIECE];
        begin.wait();
        let file = File::open(path)?;
        let mut offset = 0;
        while offset < size {
            offset += match file.read_at(&mut buffer, offset)? {
                0 => return Err(std::io::ErrorKind::UnexpectedEof.into()),
                length => length as u64,
            };
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..count).map(|_| scope.spawn(read)).collect();
        begin.wait();
        let start = Instant::now();
        for thread in threads {
            thread.join().map_err(|_| BenchError::Unfit("a reader panicked".to_owned()))?.doing(what)?;
        }
        Ok((count * size) as f64 / 1e9 / start.elapsed().as_secs_f64())
    })
}
