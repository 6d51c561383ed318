//! Answers the control protocol on a Unix socket.
//!
//! One thread accepts, one short-lived thread answers each connection, which carries one request. Everything a client
//! can waste is bounded: the request's length, the time until it is complete and its reply is taken, and the
//! connections that a user may have, so that one user's idle connections do not keep out another's. Root and the
//! daemon's user have places of their own.

use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use nix::sys::socket::{getsockopt, sockopt};
use parking_lot::Mutex;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use weightfs::control::{ControlError, MAX_REQUEST, Refusal, Reply, Request, Status};

use crate::control_line::{LineError, read_line, write_line};

/// How long a client may take to send its request, and again to take the reply.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long to leave the listener alone when accepting fails, as it does without free descriptors.
const ACCEPT_PAUSE: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
const MAX_OF_ONE_USER: usize = 16;
const MAX_OF_STRANGERS: usize = 64;
const MAX_OF_OWNERS: usize = 32;
/// Requests are parsed and answered without deep recursion.
const STACK: usize = 256 << 10;

/// What the protocol steers. Methods are called from several threads at once and may block.
pub trait Control: Send + Sync {
    fn status(&self) -> Status;

    /// Ends the mount at `mountpoint`, exactly as it was reported, and returns once it is gone. Must not wait for the
    /// control server to end: the reply is still to be sent.
    fn unmount(&self, mountpoint: &Path) -> Result<(), ControlError>;

    /// Every other request, from somebody who may make it.
    fn carry_out(&self, request: &Request) -> Result<Reply, ControlError>;
}

/// Answers until it is dropped; requests already received are answered before the drop returns.
#[derive(Debug)]
pub struct ControlServer {
    stop: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl ControlServer {
    pub fn start(listener: UnixListener, control: Arc<dyn Control>) -> io::Result<Self> {
        listener.set_nonblocking(true)?;
        let stop = Arc::new(eventfd(0, EventfdFlags::CLOEXEC)?);
        let stopped = Arc::clone(&stop);
        let thread = thread::Builder::new()
            .name("control".into())
            .stack_size(STACK)
            .spawn(move || serve(&listener, control.as_ref(), &stopped))?;
        Ok(Self { stop, thread: Some(thread) })
    }
}

impl Drop for ControlServer {
    fn drop(&mut self) {
        // Cannot fail: the counter of an eventfd that is written once does not overflow.
        let _ = rustix::io::write(&self.stop, &1u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn serve(listener: &UnixListener, control: &dyn Control, stop: &OwnedFd) {
    let open = Connections::new(rustix::process::geteuid().as_raw());
    thread::scope(|scope| {
        loop {
            let mut wanted = [PollFd::new(stop, PollFlags::IN), PollFd::new(listener, PollFlags::IN)];
            let _ = poll(&mut wanted, None);
            if !wanted[0].revents().is_empty() {
                break;
            }
            let stream = match listener.accept() {
                Ok((stream, _)) => stream,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a control connection");
                    let _ = poll(&mut [PollFd::new(stop, PollFlags::IN)], Some(&ACCEPT_PAUSE));
                    continue;
                }
            };
            let connection = match open.admit(stream) {
                Ok(connection) => connection,
                Err(stream) => {
                    turn_away(&stream);
                    continue;
                }
            };
            let answer = move || connection.answer(control);
            // Without a thread the connection is closed, which tells its client as much as can be told.
            if let Err(error) = thread::Builder::new().stack_size(STACK).spawn_scoped(scope, answer) {
                tracing::warn!(%error, "cannot answer a control connection");
            }
        }
        open.end_requests();
    });
}

/// Tells a client that there is no place for it, without waiting for it.
fn turn_away(stream: &UnixStream) {
    let sent = stream.set_nonblocking(true).is_ok()
        && serde_json::to_vec(&Reply::Error(Refusal::from(&ControlError::Overloaded)))
            .is_ok_and(|reply| write_line(stream, reply, Instant::now() + Duration::from_millis(1)).is_ok());
    tracing::debug!(sent, "too many control connections");
}

/// Who may steer.
fn is_owner(uid: u32, daemon_uid: u32) -> bool {
    uid == 0 || uid == daemon_uid
}

/// Whether `uid` may have one more connection beside those of the users `open`.
fn has_room(uid: u32, daemon_uid: u32, open: impl Iterator<Item = u32>) -> bool {
    let owner = is_owner(uid, daemon_uid);
    let (mut of_user, mut of_kind) = (0, 0);
    for other in open {
        of_user += usize::from(other == uid);
        of_kind += usize::from(is_owner(other, daemon_uid) == owner);
    }
    if owner { of_kind < MAX_OF_OWNERS } else { of_kind < MAX_OF_STRANGERS && of_user < MAX_OF_ONE_USER }
}

/// The connections that are open, by user.
struct Connections {
    daemon_uid: u32,
    open: Mutex<Open>,
}

#[derive(Default)]
struct Open {
    next: u64,
    streams: HashMap<u64, (u32, Arc<UnixStream>)>,
}

impl Connections {
    fn new(daemon_uid: u32) -> Self {
        Self { daemon_uid, open: Mutex::default() }
    }

    fn admit(&self, stream: UnixStream) -> Result<Connection<'_>, UnixStream> {
        let Ok(peer) = getsockopt(&stream, sockopt::PeerCredentials) else { return Err(stream) };
        let uid = peer.uid();
        let mut open = self.open.lock();
        let room = has_room(uid, self.daemon_uid, open.streams.values().map(|(uid, _)| *uid));
        // An accepted socket does not inherit O_NONBLOCK, but says so only on Linux.
        if !room || stream.set_nonblocking(false).is_err() {
            return Err(stream);
        }
        let id = open.next;
        open.next += 1;
        let stream = Arc::new(stream);
        open.streams.insert(id, (uid, Arc::clone(&stream)));
        Ok(Connection { id, uid, stream, connections: self })
    }

    /// Lets those who still send their request see the end of it.
    fn end_requests(&self) {
        for (_, stream) in self.open.lock().streams.values() {
            let _ = stream.shutdown(std::net::Shutdown::Read);
        }
    }
}

struct Connection<'a> {
    id: u64,
    uid: u32,
    stream: Arc<UnixStream>,
    connections: &'a Connections,
}

impl Connection<'_> {
    fn answer(&self, control: &dyn Control) {
        let reply = match read_line(&self.stream, MAX_REQUEST, Instant::now() + PATIENCE) {
            Ok(line) if line.is_empty() => return,
            Ok(line) => self.reply_to(&line, control),
            Err(LineError::Io(error)) => {
                tracing::debug!(%error, uid = self.uid, "control connection lost");
                return;
            }
            Err(error) => Err(ControlError::BadRequest(error.to_string())),
        };
        let reply = reply.unwrap_or_else(|error| Reply::Error(Refusal::from(&error)));
        let sent = serde_json::to_vec(&reply)
            .map_err(|error| LineError::Io(error.into()))
            .and_then(|line| write_line(&self.stream, line, Instant::now() + PATIENCE));
        if let Err(error) = sent {
            tracing::debug!(%error, uid = self.uid, "control reply not sent");
        }
    }

    fn reply_to(&self, line: &[u8], control: &dyn Control) -> Result<Reply, ControlError> {
        let request: Request =
            serde_json::from_slice(line).map_err(|error| ControlError::BadRequest(error.to_string()))?;
        if request.steers() {
            self.must_own()?;
        }
        let carried_out = catch_unwind(AssertUnwindSafe(|| match request {
            Request::Status => Ok(Reply::Status(Box::new(control.status()))),
            Request::Unmount { mountpoint } => control.unmount(&mountpoint).map(|()| Reply::Done),
            other => control.carry_out(&other),
        }));
        carried_out.unwrap_or_else(|_| Err(ControlError::Failed("the daemon failed on this; see its log".into())))
    }

    fn must_own(&self) -> Result<(), ControlError> {
        let daemon_uid = self.connections.daemon_uid;
        if is_owner(self.uid, daemon_uid) {
            Ok(())
        } else {
            Err(ControlError::NotPermitted { uid: self.uid, daemon_uid })
        }
    }
}

impl Drop for Connection<'_> {
    fn drop(&mut self) {
        self.connections.open.lock().streams.remove(&self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::iter;

    #[test]
    fn strangers_keep_out_neither_owners_nor_each_other() {
        let (daemon, stranger, other) = (7, 1000, 1001);
        let idle = || iter::repeat_n(stranger, MAX_OF_ONE_USER);
        assert!(!has_room(stranger, daemon, idle()));
        assert!(has_room(other, daemon, idle()));
        let many = || (0..MAX_OF_STRANGERS as u32).map(|index| 2000 + index);
        assert!(!has_room(other, daemon, many()));
        assert!(has_room(0, daemon, many()) && has_room(daemon, daemon, many()));
        assert!(!has_room(0, daemon, iter::repeat_n(daemon, MAX_OF_OWNERS)));
    }

    #[test]
    fn only_root_and_the_daemons_user_steer() {
        assert!(is_owner(0, 7) && is_owner(7, 7));
        assert!(!is_owner(1000, 7));
    }
}
