//! A few threads for what may block: the threads that take requests never wait for storage.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::JoinHandle;

use parking_lot::{Condvar, Mutex};

/// Told whether it may do its work: false once the threads are to end.
type Task = Box<dyn FnOnce(bool) + Send>;

#[derive(Default)]
struct Queue {
    tasks: Mutex<(VecDeque<Task>, bool)>,
    changed: Condvar,
}

/// Runs tasks in the order in which they came, a few at a time.
pub struct Background {
    queue: Arc<Queue>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Background {
    /// `name` is what the threads are called, with a number behind it.
    pub fn start(name: &str, threads: usize) -> std::io::Result<Self> {
        let queue = Arc::<Queue>::default();
        let spawn = |number| {
            let queue = Arc::clone(&queue);
            std::thread::Builder::new().name(format!("{name}-{number}")).spawn(move || run(&queue))
        };
        let threads = (0..threads).map(spawn).collect::<std::io::Result<Vec<_>>>()?;
        Ok(Self { queue, threads: Mutex::new(threads) })
    }

    /// Queues a task, to be told `true`. What comes after [`Background::stop`] is told `false` at once, on this thread:
    /// it may hold somebody's answer.
    pub fn spawn(&self, task: impl FnOnce(bool) + Send + 'static) {
        let mut tasks = self.queue.tasks.lock();
        if tasks.1 {
            drop(tasks);
            return task(false);
        }
        tasks.0.push_back(Box::new(task));
        self.queue.changed.notify_one();
    }

    /// Ends the threads once the queue is empty.
    pub fn stop(&self) {
        self.queue.tasks.lock().1 = true;
        self.queue.changed.notify_all();
        for thread in self.threads.lock().drain(..) {
            // The last holder may be one of these threads.
            if thread.thread().id() != std::thread::current().id() && thread.join().is_err() {
                tracing::error!("a background thread panicked");
            }
        }
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        self.stop();
    }
}

fn run(queue: &Queue) {
    loop {
        let task = {
            let mut tasks = queue.tasks.lock();
            loop {
                if let Some(task) = tasks.0.pop_front() {
                    break task;
                }
                if tasks.1 {
                    return;
                }
                queue.changed.wait(&mut tasks);
            }
        };
        // The threads are few: one bad file must not take one away from all the others.
        if catch_unwind(AssertUnwindSafe(|| task(true))).is_err() {
            tracing::error!("a task in the background panicked");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};

    #[test]
    fn every_task_has_run_when_it_has_stopped() {
        let count = Arc::new(AtomicU32::new(0));
        let background = Background::start("test", 3).unwrap();
        for _ in 0..100 {
            let count = Arc::clone(&count);
            background.spawn(move |runs| {
                count.fetch_add(u32::from(runs), Ordering::Relaxed);
            });
        }
        background.stop();
        assert_eq!(count.load(Ordering::Relaxed), 100);
        let late = Arc::clone(&count);
        background.spawn(move |runs| {
            assert!(!runs);
            late.fetch_add(1, Ordering::Relaxed);
        });
        assert_eq!(count.load(Ordering::Relaxed), 101);
    }

    #[test]
    fn a_panic_leaves_the_threads_to_the_others() {
        let background = Background::start("test", 1).unwrap();
        let ran = Arc::new(AtomicU32::new(0));
        let flag = Arc::clone(&ran);
        background.spawn(|_| panic!("expected by the test"));
        background.spawn(move |_| flag.store(1, Ordering::Relaxed));
        background.stop();
        assert_eq!(ran.load(Ordering::Relaxed), 1);
    }
}
