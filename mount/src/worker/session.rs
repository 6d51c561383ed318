//! Begins a FUSE session on a device that was introduced before: for the first worker of a mount and for every other one
//! in the same way.
//!
//! The FUSE library insists on the kernel's introduction. The supervisor has read it from the device; here it is said
//! again over a socket pair, in whose place the device is put once the library has answered. The kernel takes the answer
//! once, and from whoever gives it first.

use std::io::{self, IoSlice};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use fuser::{Session, SessionACL};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};

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

/// A session, and what it has agreed on with the kernel. `agreed` is what an earlier worker has.
pub fn begin(
    adapter: Adapter,
    device: &OwnedFd,
    introduction: &[u8],
    agreed: Option<&[u8]>,
) -> io::Result<(Session<Adapter>, Vec<u8>)> {
    let (ours, theirs) = socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC)?;
    let said = agreed.map_or_else(|| introduction.to_vec(), |agreed| narrowed(introduction, agreed));
    rustix::io::write(&ours, &said)?;
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
    weightfs::sys::replace_descriptor(session.as_fd(), device.as_fd())?;
    match rustix::io::writev(device, &[IoSlice::new(&answer)]) {
        // An earlier worker has answered; or the mount has ended, which the session notices by itself.
        Ok(_) | Err(rustix::io::Errno::NOENT | rustix::io::Errno::NODEV | rustix::io::Errno::PERM) => {}
        Err(error) => return Err(error.into()),
    }
    Ok((session, answer))
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
