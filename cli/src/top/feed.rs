//! Asks the daemon, on threads of its own: how it is once a second, and what keys want.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::Duration;

use weightfs::control::{EvictRequest, FileSort, FilesQuery, PinRequest, PrefetchRequest};
use weightfs::units::ByteSize;
use weightfs_mount::control_client::{ClientError, ControlClient};

use super::update::{Action, Input};
use crate::output;
use crate::output::figures::shown;

/// How often the daemon is asked.
const PERIOD: Duration = Duration::from_secs(1);

/// The most files that are listed.
const MOST_FILES: u32 = 2000;

pub struct Feed {
    inputs: Receiver<Input>,
    actions: Sender<Action>,
    /// Has the next look come at once.
    again: Sender<()>,
    resident_only: Arc<AtomicBool>,
}

impl Feed {
    pub fn start(daemon: ControlClient) -> io::Result<Self> {
        let (sender, inputs) = channel();
        let (actions, asked) = channel();
        let (again, look) = channel();
        let resident_only = Arc::new(AtomicBool::new(false));
        let watcher =
            Watcher { daemon: daemon.clone(), sender: sender.clone(), look, resident_only: Arc::clone(&resident_only) };
        thread::Builder::new().name("look".to_owned()).spawn(move || watcher.run())?;
        let after = again.clone();
        thread::Builder::new().name("act".to_owned()).spawn(move || act(&daemon, &asked, &sender, &after))?;
        Ok(Self { inputs, actions, again, resident_only })
    }

    /// What has come, if anything.
    pub fn next(&self) -> Option<Input> {
        self.inputs.try_recv().ok()
    }

    pub fn ask(&self, action: Action) {
        // Its thread lives as long as this.
        let _ = self.actions.send(action);
    }

    pub fn list(&self, resident_only: bool) {
        self.resident_only.store(resident_only, Ordering::Relaxed);
        let _ = self.again.send(());
    }
}

struct Watcher {
    daemon: ControlClient,
    sender: Sender<Input>,
    look: Receiver<()>,
    resident_only: Arc<AtomicBool>,
}

impl Watcher {
    /// Until nobody wants to know any more.
    fn run(self) {
        if let Ok(history) = self.daemon.history() {
            let _ = self.sender.send(Input::History(Box::new(history)));
        }
        loop {
            let sent = match self.look() {
                Ok(inputs) => inputs.into_iter().all(|input| self.sender.send(input).is_ok()),
                Err(error) => self.sender.send(Input::Lost(error.to_string())).is_ok(),
            };
            if !sent || self.look.recv_timeout(PERIOD) == Err(RecvTimeoutError::Disconnected) {
                return;
            }
        }
    }

    fn look(&self) -> Result<[Input; 2], ClientError> {
        let status = self.daemon.status()?;
        let query = FilesQuery {
            resident: self.resident_only.load(Ordering::Relaxed).then_some(true),
            sort: Some(FileSort::Resident),
            limit: Some(MOST_FILES),
            ..FilesQuery::default()
        };
        let files = self.daemon.files(&query)?;
        Ok([Input::Status(Box::new(status)), Input::Files(Box::new(files))])
    }
}

fn act(daemon: &ControlClient, asked: &Receiver<Action>, sender: &Sender<Input>, again: &Sender<()>) {
    for action in asked {
        let input = match carry_out(daemon, action) {
            Ok(words) => Input::Done(words),
            Err(error) => Input::Failed(error.to_string()),
        };
        if sender.send(input).is_err() {
            return;
        }
        let _ = again.send(());
    }
}

/// What came of it, in words.
fn carry_out(daemon: &ControlClient, action: Action) -> Result<String, ClientError> {
    match action {
        Action::Pin(path) => {
            let name = shown(&path);
            let done = daemon.pin(&PinRequest { path, tensors: None, priority: None })?;
            Ok(format!("{name}: {} pinned", ByteSize(done.bytes)))
        }
        Action::Unpin(path) => {
            let done = daemon.unpin(&path)?;
            Ok(format!("{}: {} no longer pinned", shown(&path), ByteSize(done.bytes)))
        }
        Action::Prefetch(path) => {
            let name = shown(&path);
            let job = daemon.prefetch(&PrefetchRequest { paths: vec![path], tensors: None, component: None })?;
            let left = job.bytes_total.saturating_sub(job.bytes_done);
            Ok(if left == 0 {
                format!("{name} is in RAM already")
            } else {
                format!("{name}: {} are being read", ByteSize(left))
            })
        }
        Action::Evict(path) => {
            let name = shown(&path);
            let done = daemon.evict(&EvictRequest { path, tensors: None })?;
            let stay = output::staying(done.left_bytes);
            Ok(format!("{name}: {} freed{stay}", ByteSize(done.bytes)))
        }
    }
}
