//! Threads for what may block, as many as are blocked: the threads that take requests never wait for storage.
//!
//! Every task belongs to a lane, which is the device that it may wait for. A lane has threads of its own, started as
//! they are needed and ended when they have been idle for a while. A device that no longer answers holds up the tasks
//! of its own lane, and no others.

use std::collections::{HashMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

/// Told whether it may do its work: false once the threads are to end.
type Task = Box<dyn FnOnce(bool) + Send>;

/// Threads that one lane may have. A program that waits for a device holds one, so that this many can.
const LANE_THREADS: usize = 96;

/// Of all lanes together: far below the limits on processes of usual systems.
const ALL_THREADS: usize = 512;

/// How long a thread waits for another task before it ends.
const IDLE: Duration = Duration::from_secs(5);

/// How long tasks that have begun may take when the threads are to end. What waits for a device that does not answer is
/// left to the end of the process.
const LAST_TASKS: Duration = Duration::from_secs(3);

#[derive(Default)]
struct Lane {
    tasks: VecDeque<Task>,
    /// There is a task, or an end.
    changed: Arc<Condvar>,
    threads: usize,
    idle: usize,
}

#[derive(Default)]
struct State {
    lanes: HashMap<u64, Lane>,
    threads: usize,
    next_name: u64,
    stopping: bool,
}

struct Shared {
    name: String,
    state: Mutex<State>,
    /// A thread has ended.
    ended: Condvar,
}

/// Runs the tasks of each lane in the order in which they came, as many at once as it takes.
pub struct Background {
    shared: Arc<Shared>,
}

impl Background {
    /// `name` is what the threads are called, with a number behind it. One is tried, so that it is known that there can
    /// be some.
    pub fn start(name: &str) -> std::io::Result<Self> {
        let (state, name) = (Mutex::default(), name.to_owned());
        let shared = Arc::new(Shared { name, state, ended: Condvar::new() });
        shared.state.lock().add_thread(0);
        if let Err(error) = spawn_thread(&shared, 0, 0) {
            shared.state.lock().remove_thread(0);
            return Err(error);
        }
        Ok(Self { shared })
    }

    /// Queues a task, to be told `true`. What comes after [`Background::stop`] is told `false` at once, on this thread:
    /// it may hold somebody's answer.
    pub fn spawn(&self, lane: u64, task: impl FnOnce(bool) + Send + 'static) {
        let mut state = self.shared.state.lock();
        if state.stopping {
            drop(state);
            return task(false);
        }
        let all = state.threads;
        let queue = state.lanes.entry(lane).or_default();
        queue.tasks.push_back(Box::new(task));
        if queue.idle >= queue.tasks.len() {
            queue.changed.notify_one();
            return;
        }
        // A lane always gets its first thread.
        if queue.threads > 0 && (queue.threads >= LANE_THREADS || all >= ALL_THREADS) {
            return;
        }
        let name = state.add_thread(lane);
        drop(state);
        if let Err(error) = spawn_thread(&self.shared, lane, name) {
            self.without_a_thread(lane, &error);
        }
    }

    /// The machine has no more threads to give: others of the lane do the work, or else whoever asks for it.
    fn without_a_thread(&self, lane: u64, error: &std::io::Error) {
        tracing::warn!(%error, "a thread cannot be started; raise the limit on processes (ulimit -u, or pids.max)");
        let mut state = self.shared.state.lock();
        state.remove_thread(lane);
        let left = state.lanes.get_mut(&lane).filter(|lane| lane.threads == 0);
        let tasks = left.map(|lane| std::mem::take(&mut lane.tasks)).unwrap_or_default();
        state.tidy(lane);
        drop(state);
        tasks.into_iter().for_each(run);
    }

    /// Ends the threads once the queues are empty, or when what is left is stuck.
    pub fn stop(&self) {
        let mut state = self.shared.state.lock();
        state.stopping = true;
        state.lanes.values().for_each(|lane| {
            lane.changed.notify_all();
        });
        let deadline = Instant::now() + LAST_TASKS;
        // The last holder may be one of these threads.
        let own = usize::from(std::thread::current().name().is_some_and(|name| is_named(name, &self.shared.name)));
        while state.threads > own {
            if self.shared.ended.wait_until(&mut state, deadline).timed_out() {
                if state.threads > own {
                    tracing::warn!(
                        threads = state.threads - own,
                        "a source does not answer; what waits for it is left"
                    );
                }
                break;
            }
        }
        let stuck: Vec<Task> = state.lanes.values_mut().flat_map(|lane| lane.tasks.drain(..)).collect();
        drop(state);
        stuck.into_iter().for_each(|task| task(false));
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        self.stop();
    }
}

impl State {
    fn add_thread(&mut self, lane: u64) -> u64 {
        self.lanes.entry(lane).or_default().threads += 1;
        self.threads += 1;
        self.next_name += 1;
        self.next_name - 1
    }

    fn remove_thread(&mut self, lane: u64) {
        self.threads -= 1;
        if let Some(lane) = self.lanes.get_mut(&lane) {
            lane.threads -= 1;
        }
        self.tidy(lane);
    }

    /// A lane that nothing is left of is forgotten.
    fn tidy(&mut self, lane: u64) {
        if self.lanes.get(&lane).is_some_and(|lane| lane.threads == 0 && lane.tasks.is_empty()) {
            self.lanes.remove(&lane);
        }
    }
}

fn is_named(thread: &str, name: &str) -> bool {
    thread.strip_prefix(name).is_some_and(|rest| rest.starts_with('-'))
}

fn spawn_thread(shared: &Arc<Shared>, lane: u64, number: u64) -> std::io::Result<()> {
    let (name, shared) = (format!("{}-{number}", shared.name), Arc::clone(shared));
    std::thread::Builder::new().name(name).spawn(move || serve(&shared, lane)).map(drop)
}

/// Runs the tasks of a lane until there has been none for a while.
fn serve(shared: &Shared, lane: u64) {
    let mut state = shared.state.lock();
    while let Some(own) = state.lanes.get_mut(&lane) {
        if let Some(task) = own.tasks.pop_front() {
            drop(state);
            run(task);
            state = shared.state.lock();
            continue;
        }
        if state.stopping {
            break;
        }
        let until = Instant::now() + IDLE;
        let own = state.lanes.get_mut(&lane).expect("it has this thread");
        own.idle += 1;
        let changed = Arc::clone(&own.changed);
        let mut timed_out = false;
        while !timed_out && !state.stopping && state.lanes[&lane].tasks.is_empty() {
            timed_out = changed.wait_until(&mut state, until).timed_out();
        }
        let own = state.lanes.get_mut(&lane).expect("it has this thread");
        own.idle -= 1;
        if timed_out && own.tasks.is_empty() {
            break;
        }
    }
    state.remove_thread(lane);
    shared.ended.notify_all();
}

/// One bad file must not take a thread away from all the others.
fn run(task: Task) {
    if catch_unwind(AssertUnwindSafe(|| task(true))).is_err() {
        tracing::error!("a task in the background panicked");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::sync::mpsc::channel;

    #[test]
    fn every_task_has_run_when_it_has_stopped() {
        let count = Arc::new(AtomicU32::new(0));
        let background = Background::start("test").unwrap();
        for number in 0..1000 {
            let count = Arc::clone(&count);
            background.spawn(number % 7, move |runs| {
                count.fetch_add(u32::from(runs), Ordering::Relaxed);
            });
        }
        background.stop();
        assert_eq!(count.load(Ordering::Relaxed), 1000);
        assert_eq!(background.shared.state.lock().threads, 0);
        let late = Arc::clone(&count);
        background.spawn(1, move |runs| {
            assert!(!runs);
            late.fetch_add(1, Ordering::Relaxed);
        });
        assert_eq!(count.load(Ordering::Relaxed), 1001);
    }

    #[test]
    fn a_panic_leaves_the_threads_to_the_others() {
        let background = Background::start("test").unwrap();
        let ran = Arc::new(AtomicU32::new(0));
        let flag = Arc::clone(&ran);
        background.spawn(0, |_| panic!("expected by the test"));
        background.spawn(0, move |_| flag.store(1, Ordering::Relaxed));
        background.stop();
        assert_eq!(ran.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn a_lane_that_is_stuck_holds_up_no_other_and_goes_on_afterwards() {
        let background = Background::start("test").unwrap();
        let (release, gate) = channel::<()>();
        let gate = Arc::new(Mutex::new(gate));
        let (done, ended) = channel();
        for _ in 0..2 * LANE_THREADS {
            let (gate, done) = (Arc::clone(&gate), done.clone());
            background.spawn(1, move |_| {
                // Ends when the other end is dropped.
                let _ = gate.lock().recv();
                done.send(1).unwrap();
            });
        }
        background.spawn(2, move |_| done.send(2).unwrap());
        assert_eq!(ended.recv(), Ok(2), "the other lane is served while the first is stuck");
        assert!(background.shared.state.lock().threads <= LANE_THREADS + 2);
        drop(release);
        assert_eq!(ended.iter().take(2 * LANE_THREADS).count(), 2 * LANE_THREADS);
    }
}
