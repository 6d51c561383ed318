//! A stand-in for a service manager: it keeps the descriptors that its service sends (sd_notify(3), FDSTORE), and starts
//! it again with them (sd_listen_fds(3)).

use std::io::{IoSlice, IoSliceMut, Write};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use nix::sys::socket::{ControlMessage, ControlMessageOwned, MsgFlags, recvmsg, sendmsg};
use parking_lot::Mutex;
use tempfile::TempDir;

use crate::mount::{Mount, program};
use crate::system::{temporary_folder, wait_until};

/// Descriptors that one message can carry.
const MOST: usize = 253;

#[derive(Default)]
struct State {
    kept: Mutex<Vec<(String, OwnedFd)>>,
    ready: AtomicU64,
    heard: AtomicU64,
}

/// A process that waits to become the service.
pub struct Successor {
    child: Child,
    socket: UnixStream,
}

pub struct Manager {
    folder: TempDir,
    state: Arc<State>,
}

impl Manager {
    pub fn start() -> Manager {
        let folder = temporary_folder("notify");
        let socket = UnixDatagram::bind(folder.path().join("socket")).expect("listen");
        let state = Arc::<State>::default();
        let hearing = Arc::clone(&state);
        // It ends with the test.
        std::thread::spawn(move || while hearing.hear(&socket) {});
        Manager { folder, state }
    }

    /// What `NOTIFY_SOCKET` is.
    pub fn socket(&self) -> PathBuf {
        self.folder.path().join("socket")
    }

    /// How often the service has said that it is ready.
    pub fn ready(&self) -> u64 {
        self.state.ready.load(Ordering::Acquire)
    }

    /// The names of what is kept.
    pub fn kept(&self) -> Vec<String> {
        self.hear_all();
        self.state.kept.lock().iter().map(|(name, _)| name.clone()).collect()
    }

    /// A process that becomes the service, once it is told to: `weightfs` with `arguments`.
    ///
    /// To be started before anybody has a file of the mount open: a new process closes what it inherits of the one that
    /// starts it, and the mount, which nobody serves then, would not answer.
    pub fn successor(&self, mount: &Mount, arguments: &[&str]) -> Successor {
        let (ours, theirs) = UnixStream::pair().expect("make a pair of sockets");
        let service = program(mount.private_folder());
        let mut command = Command::new(Manager::program());
        command.arg(service.get_program()).args(arguments).env("NOTIFY_SOCKET", self.socket());
        for (name, value) in service.get_envs() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        command.stdin(Stdio::from(OwnedFd::from(theirs)));
        Successor { child: mount.spawn(command), socket: ours }
    }

    /// Starts the service again, with everything that is kept.
    pub fn again(&self, successor: Successor) -> Child {
        self.hear_all();
        let Successor { child, mut socket } = successor;
        let kept = self.state.kept.lock();
        let names: Vec<&str> = kept.iter().map(|(name, _)| name.as_str()).collect();
        socket.write_all(format!("{}\n", names.join(":")).as_bytes()).expect("send the names");
        for (_, descriptor) in kept.iter() {
            let numbers = [descriptor.as_raw_fd()];
            let rights = [ControlMessage::ScmRights(&numbers)];
            sendmsg::<()>(socket.as_raw_fd(), &[IoSlice::new(b"x")], &rights, MsgFlags::empty(), None).expect("send");
        }
        child
    }

    /// What becomes the service.
    fn program() -> PathBuf {
        crate::actor::Actor::program().with_file_name("weightfs-test-service")
    }

    /// Until all that was said so far is heard.
    fn hear_all(&self) {
        let before = self.state.heard.load(Ordering::Acquire);
        let sender = UnixDatagram::unbound().expect("make a socket");
        sender.send_to(b"X_LAST=1", self.socket()).expect("send");
        let heard = || self.state.heard.load(Ordering::Acquire) > before;
        assert!(wait_until(Duration::from_secs(10), heard), "the manager is gone");
    }
}

impl State {
    fn hear(&self, socket: &UnixDatagram) -> bool {
        let (mut bytes, mut space) = (vec![0; 64 << 10], nix::cmsg_space!([RawFd; MOST]));
        let mut buffers = [IoSliceMut::new(&mut bytes)];
        let flags = MsgFlags::MSG_CMSG_CLOEXEC;
        let Ok(message) = recvmsg::<()>(socket.as_raw_fd(), &mut buffers, Some(&mut space), flags) else {
            return false;
        };
        let mut descriptors = Vec::new();
        for control in message.cmsgs().expect("it fits") {
            if let ControlMessageOwned::ScmRights(numbers) = control {
                descriptors.extend(numbers.into_iter().map(weightfs::sys::owned_fd));
            }
        }
        let length = message.bytes;
        let text = String::from_utf8_lossy(&bytes[..length]).into_owned();
        let says = |line: &str| text.lines().any(|said| said == line);
        let name = text.lines().find_map(|line| line.strip_prefix("FDNAME=")).unwrap_or("stored").to_owned();
        if says("FDSTORE=1") {
            self.kept.lock().extend(descriptors.into_iter().map(|descriptor| (name.clone(), descriptor)));
        }
        if says("FDSTOREREMOVE=1") {
            self.kept.lock().retain(|(kept, _)| *kept != name);
        }
        if says("READY=1") {
            self.ready.fetch_add(1, Ordering::AcqRel);
        }
        if says("X_LAST=1") {
            self.heard.fetch_add(1, Ordering::AcqRel);
        }
        true
    }
}
