//! Begins a FUSE session on a device that was introduced before: for the first worker of a mount and for every other one
//! in the same way.
//!
//! The FUSE library insists on the kernel's introduction. The supervisor has read it from the device; here it is said
//! again over a socket pair, in whose place the device is put once the library has answered. The kernel takes the answer
//! once, and from whoever gives it first.

use std::io::{self, IoSlice};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::{Arc, Barrier};

use fuser::{Session, SessionACL};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, setsockopt, socketpair, sockopt};

use crate::aside::REQUEST_THREADS;
use crate::fuse::Adapter;

/// Where words lie in the kernel's introduction and in our answer, in bytes: linux/fuse.h.
const ASKED_FLAGS: usize = 40 + 12;
const ASKED_FLAGS_2: usize = 40 + 16;
const AGREED_FLAGS: usize = 16 + 12;
const AGREED_FLAGS_2: usize = 16 + 32;
/// FUSE_INIT_EXT: there is a second word of flags.
const EXTENDED: u32 = 1 << 30;
/// FUSE_HAS_RESEND, of the second word.
const HAS_RESEND: u32 = 1 << 7;
/// FUSE_NOTIFY_RESEND.
const RESEND: i32 = 7;
/// The handle of a request that no client has made.
pub const REHEARSED: u64 = u64::MAX;
/// Bytes of data in it: as most programs write at most, and as any user may queue in a socket.
const LARGEST_REHEARSAL: usize = 1 << 20;
const SMALLEST_REHEARSAL: usize = 128 << 10;
/// FUSE_UNIQUE_RESEND: the request was read before.
pub const RESENT: u64 = 1 << 63;

fn word(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).map_or(0, |word| u32::from_ne_bytes(word.try_into().expect("four bytes")))
}

/// Whether requests that a dead worker has read can be had again.
pub fn can_be_taken_over(introduction: &[u8]) -> bool {
    word(introduction, ASKED_FLAGS) & EXTENDED != 0 && word(introduction, ASKED_FLAGS_2) & HAS_RESEND != 0
}

/// What the kernel offered, less what was not agreed on: it will not be asked again.
fn narrowed(introduction: &[u8], agreed: &[u8]) -> Vec<u8> {
    let mut narrowed = introduction.to_vec();
    for (asked, agreed_at, always) in [(ASKED_FLAGS, AGREED_FLAGS, EXTENDED), (ASKED_FLAGS_2, AGREED_FLAGS_2, 0)] {
        let flags = word(introduction, asked) & (word(agreed, agreed_at) | always);
        if let Some(target) = narrowed.get_mut(asked..asked + 4) {
            target.copy_from_slice(&flags.to_ne_bytes());
        }
    }
    narrowed
}

/// A session that has agreed with the kernel and does not listen to it yet.
pub struct Begun {
    /// To be run by a thread.
    pub session: Session<Adapter>,
    pub answer: Vec<u8>,
    pub rehearsal: Rehearsal,
}

/// `agreed` is what an earlier worker has agreed on with the kernel.
pub fn begin(adapter: Adapter, introduction: &[u8], agreed: Option<&[u8]>) -> io::Result<Begun> {
    let (ours, theirs) = socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC)?;
    let said = agreed.map_or_else(|| introduction.to_vec(), |agreed| narrowed(introduction, agreed));
    rustix::io::write(&ours, &said)?;
    let stage = Arc::clone(&adapter.stage);
    let session = Session::from_fd(adapter, theirs, SessionACL::All, config())?;
    let mut answer = vec![0; 4096];
    let length = rustix::io::read(&ours, &mut answer[..])?;
    answer.truncate(length);
    if let Some(agreed) = agreed {
        let same = |at| word(&answer, at) == word(agreed, at);
        if !same(AGREED_FLAGS) || !same(AGREED_FLAGS_2) {
            return Err(io::Error::other(
                "this program cannot go on with what was agreed on with the kernel: mount anew",
            ));
        }
    }
    let rehearsal = Rehearsal { socket: ours, session: session.as_fd().as_raw_fd(), stage };
    Ok(Begun { session, answer, rehearsal })
}

/// Where the threads of a session meet.
#[derive(Debug)]
pub struct Stage {
    /// All have come, and all may go.
    barriers: [Barrier; 2],
}

impl Default for Stage {
    fn default() -> Self {
        Self { barriers: [Barrier::new(REQUEST_THREADS + 1), Barrier::new(REQUEST_THREADS + 1)] }
    }
}

impl Stage {
    /// A thread of the session has got its request.
    pub fn enter(&self) {
        self.barriers.iter().for_each(|barrier| _ = barrier.wait());
    }
}

/// Puts the device in the socket's place, once every thread of the session has taken a large request of ours.
///
/// The kernel copies a request into the buffer of the thread that takes it. If the thread is killed while a page of the
/// buffer is still missing, the kernel gives the client an error; where none is missing, the request comes to the next
/// worker. So no client's request is the first that a buffer sees.
pub struct Rehearsal {
    socket: OwnedFd,
    /// The session's descriptor.
    session: RawFd,
    stage: Arc<Stage>,
}

impl Rehearsal {
    /// To be called once the session runs.
    pub fn perform(self, device: &OwnedFd, answer: &[u8]) -> io::Result<()> {
        let mut size = LARGEST_REHEARSAL;
        // A user may not queue as much in a socket as root.
        if setsockopt(&self.socket, sockopt::SndBufForce, &(2 * size)).is_err() {
            size = SMALLEST_REHEARSAL;
        }
        for _ in 0..REQUEST_THREADS {
            let request = rehearsed_request(size);
            match rustix::io::write(&self.socket, &request) {
                Err(rustix::io::Errno::MSGSIZE) => {
                    size = SMALLEST_REHEARSAL;
                    rustix::io::write(&self.socket, &rehearsed_request(size))?;
                }
                sent => _ = sent?,
            }
        }
        let [come, go] = &self.stage.barriers;
        come.wait();
        weightfs::sys::replace_descriptor(self.session, device.as_fd())?;
        let answered = rustix::io::writev(device, &[IoSlice::new(answer)]);
        go.wait();
        match answered {
            // An earlier worker has answered; or the mount has ended, which the session notices by itself.
            Ok(_) | Err(rustix::io::Errno::NOENT | rustix::io::Errno::NODEV | rustix::io::Errno::PERM) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

/// A write to a handle that no client has: fuse_in_header, fuse_write_in, and the data.
fn rehearsed_request(size: usize) -> Vec<u8> {
    let mut request = vec![0; 80 + size];
    let mut put = |at: usize, bytes: &[u8]| request[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, &(80 + size as u32).to_ne_bytes());
    // FUSE_WRITE.
    put(4, &16u32.to_ne_bytes());
    put(8, &2u64.to_ne_bytes());
    put(16, &1u64.to_ne_bytes());
    put(40, &REHEARSED.to_ne_bytes());
    put(56, &(size as u32).to_ne_bytes());
    request
}

/// Requests that a dead worker has read come again.
pub fn resend(device: BorrowedFd<'_>) -> io::Result<()> {
    let mut message = [0; 16];
    message[..4].copy_from_slice(&16u32.to_ne_bytes());
    message[4..8].copy_from_slice(&RESEND.to_ne_bytes());
    match rustix::io::writev(device, &[IoSlice::new(&message)]) {
        Ok(_) | Err(rustix::io::Errno::NODEV | rustix::io::Errno::PERM | rustix::io::Errno::NOTCONN) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

fn config() -> fuser::Config {
    let mut config = fuser::Config::default();
    config.acl = SessionACL::All;
    config.n_threads = Some(REQUEST_THREADS);
    // Requests that were read through a cloned descriptor are lost with the process that cloned it.
    config.clone_fd = false;
    config
}
