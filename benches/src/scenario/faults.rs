//! The latency of page faults of one program while another reads a model as fast as it can.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::{Bench, Scenario};
use crate::caches;
use crate::data::Model;
use crate::error::{BenchError, Result};
use crate::measure::{interleave, percentile};
use crate::memory;
use crate::readers::{Held, Pool};
use crate::report::{Comparison, Outcome, Relation, Sample, Unit};

/// Faults in a sample, if the bulk read lasts as long.
const FAULTS: u64 = 64;

/// Between two of them: a program does something with what it has.
const APART: Duration = Duration::from_millis(2);

/// Fewer say nothing of their 99th in a hundred.
const FEW: usize = 16;

pub fn run(bench: &mut Bench, scenario: &Scenario) -> Result<Vec<Outcome>> {
    let weightfs = bench.weightfs.clone();
    let room = 2 * (bench.size(Model::Large)? + bench.size(Model::Medium)?);
    let size = bench.size(Model::Medium)?;
    let tensors = bench.library.tensors(Model::Large)?;
    let sample = |bulk: &std::path::Path, mapped: &std::path::Path| -> Result<Vec<f64>> {
        caches::drop_all()?;
        memory::back(room)?;
        let held = Held::of(mapped)?;
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let reading = scope.spawn(|| {
                let read = Pool::new().load(bulk, &tensors, false);
                is_over.store(true, Ordering::Relaxed);
                read
            });
            let mut times = Vec::new();
            // All over the file, and never twice near each other.
            for index in 1..=FAULTS {
                if is_over.load(Ordering::Relaxed) {
                    break;
                }
                std::thread::sleep(APART);
                let place = (index * 40_503 % 65_536) * (size / 65_536);
                times.push(held.fault(place).as_secs_f64() * 1e3);
            }
            reading.join().map_err(|_| BenchError::Unfit("the bulk reader panicked".to_owned()))??;
            Ok(times)
        })
    };
    let (bulk, mapped) = (
        (bench.native(Model::Large), bench.through_mount(Model::Large)),
        (bench.native(Model::Medium), bench.through_mount(Model::Medium)),
    );
    let rounds = interleave(
        bench.pairs,
        || sample(&bulk.0, &mapped.0),
        || {
            weightfs.forget_history()?;
            let mounted = weightfs.mount(&[])?;
            let times = sample(&bulk.1, &mapped.1)?;
            mounted.unmount()?;
            Ok(times)
        },
    )?;
    let outcome = |share: f64| {
        let name = format!("p{:.0}", share * 100.0);
        let sample = |times: &Vec<f64>| Sample {
            oddity: (times.len() < FEW).then(|| format!("fewer than {FEW} faults before the bulk read ended")),
            ..Sample::of(percentile(times, share))
        };
        let pairs: Vec<_> = rounds.iter().map(|(native, mount)| (sample(native), sample(mount))).collect();
        let (id, title) = (format!("{}-{name}", scenario.id), format!("{}, {name}", scenario.title));
        Outcome::Compared(Comparison::of(id, title, Unit::Milliseconds, (Relation::Difference, None), &pairs))
    };
    Ok(vec![outcome(0.5), outcome(0.99)])
}
