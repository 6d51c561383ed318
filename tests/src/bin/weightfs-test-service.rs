//! Becomes a service as a service manager starts it: `weightfs-test-service PROGRAM ARGUMENTS…` waits for a line with
//! names on its standard input, a socket, and for a descriptor for each; puts them where sd_listen_fds(3) finds them, and
//! runs the program.

use std::io::{self, IoSliceMut};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use nix::sys::socket::{ControlMessageOwned, MsgFlags, recvmsg};

const FIRST: RawFd = 3;

fn main() {
    let arguments: Vec<_> = std::env::args_os().skip(1).collect();
    let [program, arguments @ ..] = &arguments[..] else { panic!("usage: PROGRAM ARGUMENTS…") };
    let names = line();
    let number = names.split(':').count() as RawFd;
    // Beyond where they are to be.
    let beyond = |descriptor: OwnedFd| {
        rustix::io::fcntl_dupfd_cloexec(descriptor, FIRST + number + 16).expect("descriptors are left")
    };
    let descriptors: Vec<OwnedFd> = (0..number).map(|_| beyond(receive())).collect();
    for (place, descriptor) in (FIRST..).zip(&descriptors) {
        let mut target = weightfs::sys::owned_fd(place);
        rustix::io::dup2(descriptor, &mut target).expect("put it there");
        std::mem::forget(target);
    }
    let error = Command::new(program)
        .args(arguments)
        .env("LISTEN_FDNAMES", names)
        .env("LISTEN_PID", std::process::id().to_string())
        .env("LISTEN_FDS", number.to_string())
        .stdin(Stdio::null())
        .exec();
    panic!("{} cannot be run: {error}", program.display());
}

fn line() -> String {
    let mut text = Vec::new();
    let mut byte = [0; 1];
    while rustix::io::read(io::stdin(), &mut byte).expect("read") == 1 && byte != *b"\n" {
        text.extend(byte);
    }
    if text.is_empty() {
        // Nobody needs it.
        std::process::exit(0);
    }
    String::from_utf8(text).expect("names are text")
}

fn receive() -> OwnedFd {
    let (mut byte, mut space) = ([0; 1], nix::cmsg_space!([RawFd; 1]));
    let mut buffers = [IoSliceMut::new(&mut byte)];
    let flags = MsgFlags::MSG_CMSG_CLOEXEC;
    let message = recvmsg::<()>(io::stdin().as_raw_fd(), &mut buffers, Some(&mut space), flags).expect("receive");
    for control in message.cmsgs().expect("it fits") {
        if let ControlMessageOwned::ScmRights(numbers) = control {
            return weightfs::sys::owned_fd(numbers[0]);
        }
    }
    panic!("there are fewer descriptors than were said")
}
