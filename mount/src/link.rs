//! What supervisor and worker say to each other: datagrams on a socket pair, with descriptors.
//!
//! A message that was sent outlives its sender, with its descriptors: that is what makes parking safe.

use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

use nix::sys::socket::{
    AddressFamily, ControlMessage, ControlMessageOwned, MsgFlags, SockFlag, SockType, recvmsg, sendmsg, socketpair,
};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use weightfs::arena::Pages;
use weightfs::journal::{Parked, Parking, VERSION};

use crate::settings::{Settings, path_bytes};
use crate::source::Facts;

/// Descriptors that one message can carry: the kernel's limit is 253.
pub const MOST_DESCRIPTORS: usize = 250;
/// Bytes of the longest message.
const LONGEST: usize = 128 << 10;

/// Of the messages. Whoever changes them raises it.
const FORM: u32 = 2;

/// The form of all that a worker is handed, the journal included. A program of another form cannot take over.
pub fn form() -> u32 {
    VERSION << 16 | FORM
}

/// From the supervisor.
#[derive(Debug, Serialize, Deserialize)]
pub enum Order {
    /// With the descriptors of devices and sources, one of each for every mount, then the arena's directory, the
    /// listener, and the journal's three.
    Setup(Box<Setup>),
    /// With a descriptor for each.
    Parked(Vec<Parked>),
    /// Everything was handed over.
    Begin,
    /// Another takes over: end in order, and leave the mounts.
    Yield,
    /// The answer to a wish to be upgraded.
    Upgraded(Result<(), String>),
}

#[derive(Debug, Serialize, Deserialize)]
pub struct Setup {
    pub settings: Settings,
    pub pages: Pages,
    /// What the kernel introduced itself with, for every mount.
    pub introductions: Vec<Vec<u8>>,
    /// What is known of the sources, which may not answer.
    pub facts: Vec<Facts>,
    /// Workers before this one.
    pub restarts: u64,
    /// Those of them that were killed and may not have ended.
    pub lingering: Vec<u32>,
    pub notes: Vec<String>,
}

/// From the worker.
#[derive(Debug, Serialize, Deserialize)]
pub enum Report {
    /// With one descriptor.
    Park(Parked),
    Unpark(Parked),
    /// A thread that waits for nothing but the supervisor: it ends when the process is ended, also while others of its
    /// threads are stuck in the kernel.
    Canary {
        thread: i32,
    },
    /// Every mount answers.
    Ready {
        notes: Vec<String>,
    },
    /// It cannot begin. For a person.
    Failed(String),
    /// Its mounts have ended, in order. It has nothing more to do than to exit, which can take long: threads that wait
    /// for a source are waited for.
    Done,
    Upgrade {
        #[serde(with = "path_bytes")]
        program: PathBuf,
    },
}

/// One end.
#[derive(Debug)]
pub struct Link {
    socket: OwnedFd,
    /// Where messages are received.
    buffer: Mutex<Vec<u8>>,
    /// Nobody is at the other end any more.
    alone: AtomicBool,
}

impl Link {
    /// The supervisor's end, and the one that a worker gets as its standard input.
    pub fn pair() -> io::Result<(Self, OwnedFd)> {
        let (ours, theirs) = socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC)?;
        Ok((Self::of(ours), theirs))
    }

    /// The worker's end.
    pub fn of(socket: OwnedFd) -> Self {
        Self { socket, buffer: Mutex::new(vec![0; LONGEST]), alone: AtomicBool::new(false) }
    }

    pub fn as_socket(&self) -> &OwnedFd {
        &self.socket
    }

    /// Nobody listens any more, and nobody will.
    pub fn leave_alone(&self) {
        self.alone.store(true, Ordering::Release);
    }

    pub fn is_alone(&self) -> bool {
        self.alone.load(Ordering::Acquire)
    }

    pub fn send<M: Serialize>(&self, message: &M, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        let bytes = postcard::to_stdvec(message).map_err(io::Error::other)?;
        let numbers: Vec<RawFd> = descriptors.iter().map(AsRawFd::as_raw_fd).collect();
        let rights = [ControlMessage::ScmRights(&numbers)];
        let control = if numbers.is_empty() { &rights[..0] } else { &rights[..] };
        loop {
            match sendmsg::<()>(self.socket.as_raw_fd(), &[IoSlice::new(&bytes)], control, MsgFlags::MSG_NOSIGNAL, None)
            {
                Ok(_) => return Ok(()),
                Err(nix::errno::Errno::EINTR) => {}
                // Too many descriptors are on their way: the other end takes them.
                Err(nix::errno::Errno::ETOOMANYREFS) => std::thread::yield_now(),
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// The next message; None where the other end has gone.
    pub fn receive<M: for<'a> Deserialize<'a>>(&self) -> io::Result<Option<(M, Vec<OwnedFd>)>> {
        self.receive_with(MsgFlags::MSG_CMSG_CLOEXEC)
    }

    /// As [`Link::receive`], and None too where there is no message now.
    pub fn receive_now<M: for<'a> Deserialize<'a>>(&self) -> io::Result<Option<(M, Vec<OwnedFd>)>> {
        match self.receive_with(MsgFlags::MSG_CMSG_CLOEXEC | MsgFlags::MSG_DONTWAIT) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            received => received,
        }
    }

    fn receive_with<M: for<'a> Deserialize<'a>>(&self, flags: MsgFlags) -> io::Result<Option<(M, Vec<OwnedFd>)>> {
        let mut bytes = self.buffer.lock();
        let mut space = nix::cmsg_space!([RawFd; MOST_DESCRIPTORS]);
        let (length, descriptors) = loop {
            let mut buffers = [IoSliceMut::new(&mut bytes)];
            match recvmsg::<()>(self.socket.as_raw_fd(), &mut buffers, Some(&mut space), flags) {
                Ok(message) => {
                    let mut descriptors = Vec::new();
                    for control in message.cmsgs()? {
                        if let ControlMessageOwned::ScmRights(numbers) = control {
                            descriptors.extend(numbers.into_iter().map(weightfs::sys::owned_fd));
                        }
                    }
                    break (message.bytes, descriptors);
                }
                Err(nix::errno::Errno::EINTR) => {}
                Err(nix::errno::Errno::ECONNRESET) => return Ok(None),
                Err(error) => return Err(error.into()),
            }
        };
        if length == 0 {
            return Ok(None);
        }
        Ok(Some((postcard::from_bytes(&bytes[..length]).map_err(io::Error::other)?, descriptors)))
    }
}

impl Parking for Link {
    fn park(&self, what: Parked, descriptor: BorrowedFd<'_>) -> io::Result<()> {
        match self.send(&Report::Park(what), &[descriptor]) {
            // Nobody will go on after this process, which is no reason to stop.
            Err(error) if matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset) => {
                self.leave_alone();
                Ok(())
            }
            sent => sent,
        }
    }

    fn unpark(&self, what: Parked) {
        if !self.is_alone()
            && let Err(error) = self.send(&Report::Unpark(what), &[])
        {
            tracing::warn!(%error, "the supervisor keeps a descriptor that nobody needs");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::io::Read;
    use std::os::fd::AsFd;
    use weightfs::ids::GenerationId;

    #[test]
    fn what_was_parked_outlives_who_parked_it() {
        let (ours, theirs) = Link::pair().unwrap();
        let worker = Link::of(theirs);
        let mut file = tempfile::tempfile().unwrap();
        std::io::Write::write_all(&mut file, b"kept").unwrap();
        worker.park(Parked::Source(GenerationId(3)), file.as_fd()).unwrap();
        drop((worker, file));
        let (report, descriptors) = ours.receive::<Report>().unwrap().unwrap();
        assert!(matches!(report, Report::Park(Parked::Source(GenerationId(3)))));
        let mut text = String::new();
        let mut again = File::from(descriptors.into_iter().next().unwrap());
        std::io::Seek::rewind(&mut again).unwrap();
        again.read_to_string(&mut text).unwrap();
        assert_eq!(text, "kept");
        assert!(ours.receive::<Report>().unwrap().is_none());
    }
}
