//! The process that `weightfs mount` leaves behind. It opens, mounts, keeps descriptors, and starts a worker that does
//! everything else; when that dies it starts another.
//!
//! It has one thread, reads nothing that a client or a file has written, and never waits for anything but its worker.

mod depot;
mod holdings;
mod remains;
mod strikes;
mod worker;

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::Child;
use std::time::{Duration, Instant};

use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use weightfs::failpoint;

use crate::device::DeviceError;
use crate::link::{Order, Report};
use crate::runtime_dir::RuntimeDirError;
use crate::settings::Settings;
use crate::tuning;
use crate::worker::YIELDED;
pub use depot::Depot;
use holdings::Holdings;
pub use remains::Remains;
use strikes::Strikes;
pub use worker::Launch;
use worker::{Gone, Worker};

/// How long a worker may take to end its mounts when it is told to.
const ENDING: Duration = Duration::from_secs(30);
/// How long a worker may take to finish what it has in hand.
const YIELDING: Duration = Duration::from_secs(5);

#[derive(Debug, thiserror::Error)]
pub enum SupervisorError {
    #[error("cannot open {}: {error}", .path.display())]
    Source { path: PathBuf, error: io::Error },
    #[error(transparent)]
    Device(#[from] DeviceError),
    #[error("the kernel does not speak at {}: {error}", .mountpoint.display())]
    Introduction { mountpoint: PathBuf, error: io::Error },
    #[error(transparent)]
    Arena(#[from] weightfs::arena::ArenaError),
    #[error(transparent)]
    Socket(#[from] RuntimeDirError),
    #[error("there is no memory for the journal: {0}")]
    Journal(io::Error),
    #[error("a daemon serves at most {most} folders, not {0}: give the others to another", most = holdings::MOST_MOUNTS)]
    TooMany(usize),
    #[error("cannot start the worker: {0}")]
    Spawn(io::Error),
    /// The worker's own words.
    #[error("{0}")]
    Refused(String),
    #[error("the worker died before its mounts were ready ({0}); the log may say why")]
    Died(Gone),
    #[error(
        "the worker died ({0}) and this kernel (before Linux 6.9) cannot hand its mounts to another; they were ended"
    )]
    NoTakeover(Gone),
    #[error("the worker died again and again, the last time with {0}; its mounts were ended")]
    GaveUp(Gone),
    #[error("signals cannot be waited for: {0}")]
    Signals(#[from] io::Error),
}

/// Mounts, calls `ready` once every mount answers, and sees to it that they are served until the last one is gone.
pub fn run(
    settings: Settings,
    launch: Launch,
    depot: Depot,
    ready: impl FnOnce(&[String]),
) -> Result<(), SupervisorError> {
    supervise(|| Holdings::acquire(settings, depot), (0, None), launch, ready)
}

/// As [`run`], for the mounts of a supervisor that died.
pub fn go_on(remains: Remains, launch: Launch, ready: impl FnOnce(&[String])) -> Result<(), SupervisorError> {
    let (workers, last) = (remains.workers, remains.worker);
    tracing::warn!(workers, "the supervisor had died; its mounts go on");
    supervise(|| Ok(Holdings::inherit(remains)), (workers, Some(last)), launch, ready)
}

fn supervise(
    holdings: impl FnOnce() -> Result<Holdings, SupervisorError>,
    (restarts, last): (u64, Option<u32>),
    launch: Launch,
    ready: impl FnOnce(&[String]),
) -> Result<(), SupervisorError> {
    let mut signals = SigSet::empty();
    for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGCHLD] {
        signals.add(signal);
    }
    signals.thread_block().map_err(io::Error::from)?;
    let signals =
        SignalFd::with_flags(&signals, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK).map_err(io::Error::from)?;
    tuning::raise_descriptor_limit();
    worker::protect();
    let holdings = holdings()?;
    let mut supervisor =
        Supervisor { holdings, launch, signals, restarts, last, strikes: Strikes::default(), lingering: Vec::new() };
    let ended = supervisor.serve(ready);
    if ended.is_err() {
        supervisor.holdings.unmount_all();
    }
    supervisor.holdings.give_up();
    ended
}

struct Supervisor {
    holdings: Holdings,
    launch: Launch,
    signals: SignalFd,
    /// Workers before this one.
    restarts: u64,
    /// The last worker of a supervisor that died.
    last: Option<u32>,
    strikes: Strikes,
    /// Dead workers that are stuck in the kernel.
    lingering: Vec<Child>,
}

/// What a worker has said, and was told, on its way to its end.
struct Course {
    asked: Asked,
    /// Its last words, where it could not begin.
    refusal: Option<String>,
    /// It only has to exit.
    done: bool,
    /// When it is killed.
    deadline: Option<Instant>,
}

impl Course {
    /// Whether it is left to end by itself, however long threads of it that have ended stay.
    fn is_patient(&self) -> bool {
        self.done && self.deadline.is_some()
    }
}

/// How a worker came to its end, as far as the supervisor had a part in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Asked {
    Nothing,
    /// To end the mounts.
    End,
    /// To make room for another.
    Yield,
}

impl Supervisor {
    fn serve(&mut self, ready: impl FnOnce(&[String])) -> Result<(), SupervisorError> {
        let mut ready = Some(ready);
        loop {
            let begun = Instant::now();
            let lingering = self.lingering.iter().map(Child::id).chain(self.last).collect();
            let mut worker = Worker::start(&self.launch, &mut self.holdings, self.restarts, lingering)
                .map_err(SupervisorError::Spawn)?;
            let was_ready = ready.is_none();
            let (how, Course { asked, refusal, done, .. }) = self.watch(&mut worker, &mut ready)?;
            if how.0.is_none() {
                tracing::warn!("threads of a dead worker are stuck in the kernel");
                self.lingering.push(worker.into_child());
            }
            let in_order = done || how.0.is_some_and(|status| status.success());
            let yielded = how.0.and_then(|status| status.code()) == Some(i32::from(YIELDED)) || asked == Asked::Yield;
            if in_order || asked == Asked::End {
                if !in_order {
                    tracing::warn!(%how, "the worker did not end in order");
                    self.holdings.unmount_all();
                }
                return Ok(());
            }
            if !was_ready && ready.is_some() && self.restarts == 0 {
                return Err(refusal.map_or(SupervisorError::Died(how), SupervisorError::Refused));
            }
            self.restarts += 1;
            if yielded {
                continue;
            }
            let lived = begun.elapsed();
            tracing::error!(%how, ?lived, restarts = self.restarts, "the worker died; another goes on");
            if !self.holdings.can_be_taken_over() {
                return Err(SupervisorError::NoTakeover(how));
            }
            if failpoint::in_use() {
                continue;
            }
            match self.strikes.after(lived) {
                Some(pause) => std::thread::sleep(pause),
                None => return Err(SupervisorError::GaveUp(how)),
            }
        }
    }

    /// Until the worker has ended.
    fn watch(
        &mut self,
        worker: &mut Worker,
        ready: &mut Option<impl FnOnce(&[String])>,
    ) -> Result<(Gone, Course), SupervisorError> {
        let mut course = Course { asked: Asked::Nothing, refusal: None, done: false, deadline: None };
        loop {
            let (heard, dying) = self.wait(worker, &course);
            if heard && let Some(said) = worker.next() {
                self.hear(said, worker, &mut course, ready);
            }
            while let Ok(Some(signal)) = self.signals.read_signal() {
                if signal.ssi_signo == Signal::SIGCHLD as u32 {
                    // Those that cannot be asked are nobody's children any more.
                    self.lingering.retain_mut(|child| matches!(child.try_wait(), Ok(None)));
                } else {
                    tracing::info!(signal = signal.ssi_signo, "ending");
                    worker.signal(rustix::process::Signal::TERM);
                    course.asked = Asked::End;
                    course.deadline.get_or_insert(Instant::now() + ENDING);
                }
            }
            if dying {
                // It may just have said that it ends.
                self.hear_all(worker, &mut course, ready);
            }
            if let Some(how) = worker.gone(dying && !course.is_patient())? {
                self.hear_all(worker, &mut course, ready);
                return Ok((how, course));
            }
            if course.deadline.is_some_and(|deadline| deadline <= Instant::now()) {
                tracing::warn!("the worker takes too long to end");
                worker.signal(rustix::process::Signal::KILL);
                course.deadline = None;
            }
        }
    }

    /// Takes in what a worker that dies has said. What it has asked for is not done any more.
    fn hear_all(&mut self, worker: &mut Worker, course: &mut Course, ready: &mut Option<impl FnOnce(&[String])>) {
        while let Some(said) = worker.next_now() {
            if !matches!(said.0, Report::Upgrade { .. }) {
                self.hear(said, worker, course, ready);
            }
        }
    }

    /// Takes in one thing that the worker has said.
    fn hear(
        &mut self,
        (report, descriptors): (Report, Vec<OwnedFd>),
        worker: &mut Worker,
        course: &mut Course,
        ready: &mut Option<impl FnOnce(&[String])>,
    ) {
        match report {
            Report::Canary { thread } => worker.watch_canary(thread),
            Report::Ready { notes } => {
                if let Some(ready) = ready.take() {
                    ready(&notes);
                }
            }
            Report::Failed(words) => course.refusal = Some(words),
            Report::Done => {
                course.done = true;
                course.deadline.get_or_insert(Instant::now() + ENDING);
            }
            Report::Upgrade { .. } if course.asked == Asked::End || course.done => {
                // A worker that does not hear this has ended.
                let _ = worker.link.send(&Order::Upgraded(Err("its mounts are ending".to_owned())), &[]);
            }
            Report::Upgrade { program } => {
                if self.upgrade(worker, &program) {
                    (course.asked, course.deadline) = (Asked::Yield, Some(Instant::now() + YIELDING));
                }
            }
            Report::Park(what) => self.holdings.park(what, descriptors),
            Report::Unpark(what) => self.holdings.unpark(what),
        }
    }

    /// Until something has happened or the deadline is there: whether the worker has something to say, and whether it
    /// dies.
    fn wait(&self, worker: &Worker, course: &Course) -> (bool, bool) {
        let wait = course.deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let timeout = wait.and_then(|wait| Timespec::try_from(wait).ok());
        let mut wanted = vec![PollFd::new(&self.signals, PollFlags::IN)];
        if worker.hears() {
            wanted.push(PollFd::from_borrowed_fd(worker.link.as_socket().as_fd(), PollFlags::IN));
        }
        let others = wanted.len();
        let canary = worker.canary().filter(|_| !course.is_patient());
        wanted.extend(canary.map(|canary| PollFd::from_borrowed_fd(canary, PollFlags::IN)));
        // Interrupted or not: everything is looked at.
        let _ = poll(&mut wanted, timeout.as_ref());
        let heard = wanted[1..others].iter().any(|fd| !fd.revents().is_empty());
        (heard, wanted[others..].iter().any(|fd| !fd.revents().is_empty()))
    }

    /// Replaces the worker by `program`, if that can take over. Whether it goes.
    fn upgrade(&mut self, worker: &Worker, program: &Path) -> bool {
        let answer = self.launch.examine(program).and_then(|()| {
            self.holdings.can_be_taken_over().then_some(()).ok_or_else(|| {
                "this kernel (before Linux 6.9) cannot hand a mount to another process: unmount, then mount anew"
                    .to_owned()
            })
        });
        let accepted = answer.is_ok();
        if accepted {
            tracing::info!(program = %program.display(), "upgrading");
            self.launch.replace(program);
        }
        // A worker that does not hear this has died, which is seen soon.
        let _ = worker.link.send(&Order::Upgraded(answer), &[]);
        accepted && worker.link.send(&Order::Yield, &[]).is_ok()
    }
}
