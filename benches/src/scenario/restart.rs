//! Loads after somebody was killed: the worker of the daemon, and the program that loads.

use std::time::Duration;

use super::{Bench, Scenario};
use crate::caches;
use crate::data::Model;
use crate::error::Result;
use crate::measure::{Spread, interleave};
use crate::readers::helper::Helper;
use crate::readers::{Loaded, Reader};
use crate::report::{Bar, Comparison, Figure, Outcome, Relation, Sample, Sides, Unit};

/// A load takes a twentieth of a second, and whoever else runs then counts: more of them cost little.
const TIMES: usize = 2;

/// So long a worker lives at least.
const LIFE: Duration = Duration::from_millis(1200);

/// A load of a resident model, and the same behind a worker that has just been replaced.
pub fn worker(bench: &mut Bench, scenario: &Scenario) -> Result<Vec<Outcome>> {
    let weightfs = bench.weightfs.clone();
    weightfs.forget_history()?;
    let tensors = bench.library.tensors(Model::Large)?;
    let path = bench.through_mount(Model::Large);
    let mut mounted = weightfs.mount(&[])?;
    mounted.prefetch(std::slice::from_ref(&path))?;
    let mut gaps = Vec::new();
    let pairs = {
        let readers = std::cell::RefCell::new(&mut bench.readers);
        let mounted = std::cell::RefCell::new(&mut mounted);
        let load = || -> Result<Sample> {
            let before = mounted.borrow().work()?;
            let loaded = readers.borrow_mut().load(Reader::Pread, &path, &tensors)?;
            let work = mounted.borrow().work()?.since(before);
            let oddity = (work.passthrough_opens == 0).then(|| "not opened in passthrough".to_owned());
            Ok(Sample { value: speed(loaded), work: Some(work), oddity })
        };
        // Workers that die at once, again and again, are not replaced for ever. Both sides come out of the same rest.
        let rest = || std::thread::sleep(LIFE);
        let resident = || {
            rest();
            load()
        };
        interleave(TIMES * bench.pairs, resident, || {
            rest();
            gaps.push(mounted.borrow_mut().kill_worker()?.as_secs_f64() * 1e3);
            load()
        })?
    };
    bench.verify(Model::Large)?;
    mounted.unmount()?;
    let judged = (Relation::Ratio, Some(Bar::AtLeast(0.95)));
    let compared = Comparison::of(scenario.id, scenario.title, Unit::GigabytesPerSecond, judged, &pairs);
    let gap = Spread::of(&gaps);
    let figure = |id: &str, title: &str, value| {
        let id = format!("{}-{id}", scenario.id);
        Outcome::Figure(Figure::of(id, title, Unit::Milliseconds, value, None))
    };
    Ok(vec![
        Outcome::Compared(compared.between(Sides::of("resident", "after the kill"))),
        figure("gap", "from the kill of the worker to the first answer of the next, median", gap.median),
        figure("gap-most", "from the kill of the worker to the first answer of the next, most", gap.max),
    ])
}

/// A program loads a model and is killed while it holds it; another loads it again. With the page cache, and with the
/// model resident.
pub fn client(bench: &mut Bench, scenario: &Scenario) -> Result<Vec<Outcome>> {
    let weightfs = bench.weightfs.clone();
    weightfs.forget_history()?;
    let native = bench.native(Model::Medium);
    let through_mount = bench.through_mount(Model::Medium);
    let mounted = weightfs.mount(&[])?;
    caches::drop_all()?;
    let sample = |path: &std::path::Path| -> Result<Sample> {
        let mut first = Helper::start(&[])?;
        first.load(Reader::Pread, path, &native)?;
        first.begin_hold(path)?;
        first.held()?;
        first.kill()?;
        let loaded = Helper::start(&[])?.load(Reader::Pread, path, &native)?;
        Ok(Sample::of(speed(loaded)))
    };
    let pairs = interleave(
        bench.pairs,
        || sample(&native),
        || {
            let before = mounted.work()?;
            let sample = sample(&through_mount)?;
            Ok(Sample { work: Some(mounted.work()?.since(before)), ..sample })
        },
    )?;
    bench.verify(Model::Medium)?;
    mounted.unmount()?;
    let judged = (Relation::Ratio, None);
    Ok(vec![Outcome::Compared(Comparison::of(scenario.id, scenario.title, Unit::GigabytesPerSecond, judged, &pairs))])
}

fn speed(loaded: Loaded) -> f64 {
    loaded.bytes as f64 / 1e9 / loaded.time.as_secs_f64()
}
