//! What the worker hears from its supervisor while it serves: whether it is to be upgraded, that it is to go, and by
//! silence that nobody will succeed it.

use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use parking_lot::Mutex;
use weightfs::control::ControlError;

use crate::link::{Link, Order, Report};
use crate::mounted::Ended;

/// How long the supervisor may take to look at a new program.
const PATIENCE: Duration = Duration::from_secs(30);

type Answer = Result<(), String>;

pub struct Upgrades {
    link: Arc<Link>,
    answers: Mutex<Receiver<Answer>>,
}

impl Upgrades {
    pub fn start(link: Arc<Link>, ended: Arc<Ended>) -> std::io::Result<Self> {
        let (answered, answers) = channel();
        let (begun, begins) = channel();
        let listening = Arc::clone(&link);
        std::thread::Builder::new().name("supervisor".to_owned()).spawn(move || {
            let thread = rustix::thread::gettid().as_raw_pid();
            // Whoever started this waits for it.
            let _ = begun.send(listening.send(&Report::Canary { thread }, &[]));
            listen(&listening, &ended, &answered);
        })?;
        begins.recv().map_err(std::io::Error::other)??;
        Ok(Self { link, answers: Mutex::new(answers) })
    }

    /// Asks to be replaced by `program`. When this returns without an error, it is about to be.
    pub fn ask(&self, program: &Path) -> Result<(), ControlError> {
        // One at a time.
        let answers = self.answers.lock();
        while answers.try_recv().is_ok() {}
        let failed =
            |error: &dyn std::fmt::Display| ControlError::Failed(format!("the supervisor does not answer: {error}"));
        self.link.send(&Report::Upgrade { program: program.to_owned() }, &[]).map_err(|error| failed(&error))?;
        answers.recv_timeout(PATIENCE).map_err(|error| failed(&error))?.map_err(ControlError::Failed)
    }
}

fn listen(link: &Link, ended: &Ended, answered: &Sender<Answer>) {
    loop {
        match link.receive::<Order>() {
            Ok(Some((Order::Upgraded(answer), _))) => {
                // Who asked may have given up.
                let _ = answered.send(answer);
            }
            Ok(Some((Order::Yield, _))) => ended.yield_mounts(),
            Ok(Some(_)) => tracing::warn!("the supervisor says something out of turn"),
            Ok(None) | Err(_) => {
                tracing::error!(
                    "the supervisor is gone; this process goes on, but nobody takes its place when it ends: unmount and \
                     mount anew when that suits"
                );
                return link.leave_alone();
            }
        }
    }
}
