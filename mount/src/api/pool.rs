//! Where answers are worked out: on a few threads of their own, never on the one that all connections share.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;
use weightfs::control::ControlError;

/// Answers worked out at a time, of each kind and for each kind of people.
const AT_A_TIME: usize = 2;

/// Threads that are needed for that.
pub const THREADS: usize = 4 * AT_A_TIME;

/// How long a request may wait for its turn.
const TURN: Duration = Duration::from_secs(5);

/// What an answer takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effort {
    /// Looks at what is in memory.
    Glance,
    /// May walk folders, read headers, or wait for the end of something.
    Work,
}

/// Masters, who have the right to do everything, do not wait for others.
#[derive(Clone, Debug)]
pub struct Pool {
    glances: [Arc<Semaphore>; 2],
    works: [Arc<Semaphore>; 2],
}

impl Default for Pool {
    fn default() -> Self {
        let two = || [(); 2].map(|()| Arc::new(Semaphore::new(AT_A_TIME)));
        Self { glances: two(), works: two() }
    }
}

impl Pool {
    /// Runs `work` on a thread that may block.
    pub async fn run<T: Send + 'static>(
        &self,
        effort: Effort,
        master: bool,
        work: impl FnOnce() -> Result<T, ControlError> + Send + 'static,
    ) -> Result<T, ControlError> {
        let turns = match effort {
            Effort::Glance => &self.glances,
            Effort::Work => &self.works,
        };
        let turn = Arc::clone(&turns[usize::from(master)]).acquire_owned();
        let turn = tokio::time::timeout(TURN, turn).await.map_err(|_| ControlError::Overloaded)?;
        let done = tokio::task::spawn_blocking(move || {
            let _turn = turn;
            catch_unwind(AssertUnwindSafe(work))
        });
        match done.await {
            Ok(Ok(answer)) => answer,
            _ => Err(ControlError::Failed("the daemon failed on this; see its log".to_owned())),
        }
    }
}
