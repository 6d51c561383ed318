//! The daemon's side of the cuFile process: starts it when it is needed, and survives whatever becomes of it.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, BufRead, BufReader, IoSlice, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};
use parking_lot::Mutex;

use super::protocol::{Answer, Filled, LONGEST_LINE, ORDER, Order};

/// How long it may be silent: reading [`super::serve`]'s step from a slow disk takes less.
const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Debug, thiserror::Error)]
pub enum GdsError {
    /// It says why.
    #[error("{0}")]
    Refused(String),
    #[error("the process for cuFile cannot be started: {0}")]
    Start(io::Error),
    #[error("the process for cuFile ended or does not answer ({0}); 'weightfs doctor' tries cuFile out")]
    Lost(io::Error),
}

/// A process for cuFile that is started on demand.
#[derive(Debug)]
pub struct Gds {
    program: PathBuf,
    arguments: Vec<OsString>,
    environment: Vec<(OsString, OsString)>,
    patience: Duration,
    running: Mutex<Option<Running>>,
}

#[derive(Debug)]
struct Running {
    child: Child,
    socket: UnixStream,
}

impl Drop for Running {
    fn drop(&mut self) {
        // It has no state that would be lost, and may hang.
        let _ = self.child.kill();
        let _ = self.child.try_wait();
    }
}

impl Gds {
    /// `program` with `arguments` serves the socket that is its standard input: see [`super::serve::serve`].
    pub fn new(program: PathBuf, arguments: Vec<OsString>) -> Self {
        Self { program, arguments, environment: Vec::new(), patience: PATIENCE, running: Mutex::new(None) }
    }

    /// Sets a variable of its environment.
    pub fn env(mut self, name: impl Into<OsString>, value: impl Into<OsString>) -> Self {
        self.environment.push((name.into(), value.into()));
        self
    }

    /// How long the process may be silent.
    pub fn patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// Carries out an order, after those before it. `progress` hears of bytes that have arrived, and says whether to go
    /// on; the process is ended where it says no. Blocks until it is done.
    pub fn fill(&self, file: &File, order: &Order, progress: &mut dyn FnMut(u64) -> bool) -> Result<Filled, GdsError> {
        let mut running = self.running.lock();
        // One that has ended for want of work is no failure.
        let is_fresh = running.is_none();
        let mut result = self.attempt(&mut running, file, order, progress);
        if !is_fresh && matches!(&result, Err(GdsError::Lost(error)) if is_gone(error)) {
            *running = None;
            result = self.attempt(&mut running, file, order, progress);
        }
        if matches!(result, Err(GdsError::Lost(_))) {
            *running = None;
        }
        result
    }

    fn attempt(
        &self,
        running: &mut Option<Running>,
        file: &File,
        order: &Order,
        progress: &mut dyn FnMut(u64) -> bool,
    ) -> Result<Filled, GdsError> {
        let process = match running {
            Some(process) => process,
            None => running.insert(self.start().map_err(GdsError::Start)?),
        };
        send(&process.socket, file, order).map_err(GdsError::Lost)?;
        loop {
            match receive(&process.socket).map_err(GdsError::Lost)? {
                Answer::Filled(filled) => return Ok(filled),
                Answer::Refused(reason) => return Err(GdsError::Refused(reason)),
                Answer::Progress(bytes) if progress(bytes) => {}
                Answer::Progress(_) => {
                    *running = None;
                    return Err(GdsError::Refused("it was stopped".to_owned()));
                }
            }
        }
    }

    fn start(&self) -> io::Result<Running> {
        let (socket, theirs) = UnixStream::pair()?;
        socket.set_read_timeout(Some(self.patience))?;
        socket.set_write_timeout(Some(self.patience))?;
        let child = Command::new(&self.program)
            .args(&self.arguments)
            .envs(self.environment.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(Stdio::null())
            .spawn()?;
        Ok(Running { child, socket })
    }
}

/// The process had ended before it was asked, or ended without a word.
fn is_gone(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
    matches!(error.kind(), BrokenPipe | ConnectionReset | UnexpectedEof)
}

/// Sends an order with its file, the daemon's half of the protocol.
pub fn send(mut socket: &UnixStream, file: &File, order: &Order) -> io::Result<()> {
    let descriptors = [file.as_raw_fd()];
    let control = [ControlMessage::ScmRights(&descriptors)];
    sendmsg::<()>(socket.as_raw_fd(), &[IoSlice::new(&[ORDER])], &control, MsgFlags::MSG_NOSIGNAL, None)?;
    let mut line = serde_json::to_vec(order)?;
    line.push(b'\n');
    if line.len() > LONGEST_LINE {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "the order is too long"));
    }
    socket.write_all(&line)
}

/// One answer. Answers follow each other at once, so that it is read byte by byte: they are short and few.
pub fn receive(socket: &UnixStream) -> io::Result<Answer> {
    let mut line = Vec::new();
    BufReader::with_capacity(1, socket.take(LONGEST_LINE as u64)).read_until(b'\n', &mut line)?;
    if line.last() != Some(&b'\n') {
        return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "it has ended"));
    }
    serde_json::from_slice(&line).map_err(io::Error::from)
}
