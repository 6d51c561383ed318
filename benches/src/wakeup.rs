//! What it takes to wake a thread on another core and to be woken by it. Whoever asks a daemon waits for both, however
//! fast the daemon is.

use std::io::{PipeReader, PipeWriter, Read, Write, pipe};
use std::thread;
use std::time::{Duration, Instant};

use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;

use crate::error::{BenchError, Doing, Result};
use crate::measure::Spread;

const TIMES: usize = 500;

/// Between two of them the asking core works, as a program does with what it was told, and the other one falls idle.
const WORK: Duration = Duration::from_micros(200);

/// Microseconds from a byte that is sent to its echo. None where there is only one core to run on.
pub fn there_and_back() -> Result<Option<Spread>> {
    let allowed = sched_getaffinity(Pid::from_raw(0)).doing(|| "ask for the cores of this program".to_owned())?;
    let mut cores = (0..CpuSet::count()).filter(|core| allowed.is_set(*core).unwrap_or(false));
    let (Some(mine), Some(other)) = (cores.next(), cores.next()) else { return Ok(None) };
    let pipe = || pipe().doing(|| "make a pipe".to_owned());
    let ((there, mut ask), (mut answer, back)) = (pipe()?, pipe()?);
    thread::scope(|scope| {
        let echoing = scope.spawn(move || echo(other, there, back));
        // A thread of its own, so that only it stays on its core. The echo ends with what it reads from.
        let asking = scope.spawn(move || round_trips(mine, &mut ask, &mut answer));
        let times = asking.join().map_err(|_| BenchError::Unfit("a thread panicked".to_owned()))?;
        echoing.join().map_err(|_| BenchError::Unfit("a thread panicked".to_owned()))??;
        Ok(Some(Spread::of(&times?)))
    })
}

fn round_trips(core: usize, ask: &mut PipeWriter, answer: &mut PipeReader) -> Result<Vec<f64>> {
    stay_on(core)?;
    let mut times = Vec::new();
    for _ in 0..TIMES {
        let begun = Instant::now();
        while begun.elapsed() < WORK {
            std::hint::spin_loop();
        }
        let asked = Instant::now();
        let mut byte = [1];
        ask.write_all(&byte).and_then(|()| answer.read_exact(&mut byte)).doing(|| "ask a thread".to_owned())?;
        times.push(asked.elapsed().as_secs_f64() * 1e6);
    }
    Ok(times)
}

fn echo(core: usize, mut there: PipeReader, mut back: PipeWriter) -> Result<()> {
    stay_on(core)?;
    let what = || "answer a thread".to_owned();
    let mut byte = [0];
    while there.read(&mut byte).doing(what)? == 1 {
        back.write_all(&byte).doing(what)?;
    }
    Ok(())
}

fn stay_on(core: usize) -> Result<()> {
    let mut cores = CpuSet::new();
    cores.set(core).and_then(|()| sched_setaffinity(Pid::from_raw(0), &cores)).doing(|| format!("run on core {core}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_echo_takes_some_time_and_its_threads_end() {
        let before = sched_getaffinity(Pid::from_raw(0)).unwrap();
        if let Some(spread) = there_and_back().unwrap() {
            assert!(spread.min > 0.0 && spread.min <= spread.median, "{spread:?}");
        }
        assert_eq!(sched_getaffinity(Pid::from_raw(0)).unwrap(), before, "the caller runs where it did");
    }
}
