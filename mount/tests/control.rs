//! The control protocol over a real socket, with clients of every kind.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use tempfile::TempDir;
use weightfs::control::{
    ControlError, IoStatus, MountStatus, Outcome, RamStatus, RefusalKind, Reply, Request, Status, WorkerStatus,
};
use weightfs_mount::control_client::{ClientError, ControlClient, FindError};
use weightfs_mount::control_server::{Control, ControlServer};
use weightfs_mount::runtime_dir::{RuntimeDir, daemon_name, listen};

/// A daemon with one mount at `/m`; unmounting `/slow` waits for `release`, and `/panic` panics.
struct Daemon {
    unmounts: AtomicUsize,
    entered: mpsc::SyncSender<()>,
    release: Mutex<mpsc::Receiver<()>>,
}

impl Control for Daemon {
    fn status(&self) -> Status {
        Status {
            mounts: vec![MountStatus { mountpoint: "/m".into(), source: "/s".into(), passthrough: false }],
            ram: RamStatus { budget_bytes: 7, ..RamStatus::default() },
            io: IoStatus::default(),
            worker: WorkerStatus::default(),
            version: "test".into(),
            notes: vec!["a note".into()],
        }
    }

    fn unmount(&self, mountpoint: &Path) -> Result<(), ControlError> {
        match mountpoint.to_str() {
            Some("/m") => {}
            Some("/slow") => {
                self.entered.send(()).unwrap();
                self.release.lock().unwrap().recv().unwrap();
            }
            Some("/busy") => return Err(ControlError::Busy(mountpoint.into())),
            Some("/panic") => panic!("as the test wants"),
            _ => return Err(ControlError::NotMounted(mountpoint.into())),
        }
        self.unmounts.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    fn carry_out(&self, request: &Request) -> Result<Reply, ControlError> {
        match request {
            Request::Evict { .. } => Ok(Reply::Outcome(Outcome { files: 1, bytes: 2, left_bytes: 3 })),
            _ => Err(ControlError::Failed("not in this test".into())),
        }
    }
}

struct Fixture {
    place: TempDir,
    daemon: Arc<Daemon>,
    server: Option<ControlServer>,
    entered: mpsc::Receiver<()>,
    release: mpsc::Sender<()>,
}

impl Fixture {
    fn new() -> Self {
        let place = tempfile::tempdir().unwrap();
        let (entered_sender, entered) = mpsc::sync_channel(1);
        let (release, release_receiver) = mpsc::channel();
        let daemon = Arc::new(Daemon {
            unmounts: AtomicUsize::new(0),
            entered: entered_sender,
            release: Mutex::new(release_receiver),
        });
        let listener = listen(&place.path().join("control.sock")).unwrap();
        let server = ControlServer::start(listener, Arc::clone(&daemon) as Arc<dyn Control>).unwrap();
        Self { place, daemon, server: Some(server), entered, release }
    }

    fn socket(&self) -> PathBuf {
        self.place.path().join("control.sock")
    }

    fn client(&self) -> ControlClient {
        ControlClient::new(self.socket())
    }

    /// Sends `bytes` as they are and returns all that comes back.
    fn send(&self, bytes: &[u8]) -> String {
        let mut stream = UnixStream::connect(self.socket()).unwrap();
        // The server may have heard enough before all is written.
        let _ = stream.write_all(bytes);
        let _ = stream.shutdown(Shutdown::Write);
        let mut reply = Vec::new();
        let _ = stream.read_to_end(&mut reply);
        String::from_utf8(reply).unwrap()
    }
}

#[test]
fn a_client_gets_the_status_that_the_daemon_has() {
    let fixture = Fixture::new();
    assert_eq!(fixture.client().status().unwrap(), fixture.daemon.status());
}

#[test]
fn an_unmount_is_carried_out_or_refused_with_its_reason() {
    let fixture = Fixture::new();
    fixture.client().unmount(Path::new("/m")).unwrap();
    assert_eq!(fixture.daemon.unmounts.load(Ordering::Relaxed), 1);
    for (mountpoint, kind) in [("/busy", RefusalKind::Busy), ("/other", RefusalKind::NotMounted)] {
        match fixture.client().unmount(Path::new(mountpoint)) {
            Err(ClientError::Refused(refusal)) => {
                assert_eq!(refusal.kind, kind);
                assert!(refusal.message.contains(mountpoint), "{refusal}");
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(fixture.daemon.unmounts.load(Ordering::Relaxed), 1);
}

#[test]
fn garbage_is_refused_and_the_next_client_is_served() {
    let fixture = Fixture::new();
    let deep = [b'['; 60_000];
    let cases: [&[u8]; 6] = [b"\0\xff\xfe\n", b"GET / HTTP/1.1\r\n\r\n", b"{\"request\":\n", b"null\n", b"{\n", &deep];
    for bytes in cases {
        let reply = fixture.send(bytes);
        assert!(reply.contains("bad_request") && reply.ends_with("}}\n"), "{bytes:?}: {reply}");
    }
    assert_eq!(fixture.send(b""), "");
    assert!(fixture.client().status().is_ok());
}

#[test]
fn an_endless_request_is_cut_off_at_its_limit() {
    let fixture = Fixture::new();
    let reply = fixture.send(&vec![b' '; 1 << 20]);
    assert!(reply.contains("bad_request") && reply.contains("65536"), "{reply}");
    assert!(fixture.client().status().is_ok());
}

#[test]
fn clients_that_say_nothing_take_only_the_places_of_their_user() {
    let fixture = Fixture::new();
    let idle: Vec<_> = (0..200).map(|_| UnixStream::connect(fixture.socket()).unwrap()).collect();
    // Those beyond the limit were told so at once; one place is given back.
    let mut told = String::new();
    (&idle[199]).read_to_string(&mut told).unwrap();
    assert!(told.contains("overloaded"), "{told}");
    drop(idle);
    assert!(fixture.client().status().is_ok());
}

#[test]
fn a_client_that_takes_no_reply_does_not_hold_up_others() {
    let fixture = Fixture::new();
    let deaf: Vec<_> = (0..8)
        .map(|_| {
            let mut stream = UnixStream::connect(fixture.socket()).unwrap();
            stream.write_all(b"{\"request\":\"status\"}\n").unwrap();
            stream
        })
        .collect();
    assert!(fixture.client().status().is_ok());
    drop(deaf);
}

#[test]
fn a_long_unmount_does_not_hold_up_a_look_and_is_answered_before_the_end() {
    let mut fixture = Fixture::new();
    let client = fixture.client();
    let unmount = std::thread::spawn(move || client.unmount(Path::new("/slow")));
    fixture.entered.recv().unwrap();
    assert!(fixture.client().status().is_ok());
    fixture.release.send(()).unwrap();
    drop(fixture.server.take());
    unmount.join().unwrap().unwrap();
    assert!(matches!(fixture.client().status(), Err(ClientError::Dead(_))));
}

#[test]
fn the_end_does_not_wait_for_half_a_request() {
    let mut fixture = Fixture::new();
    let mut half = UnixStream::connect(fixture.socket()).unwrap();
    half.write_all(b"{\"request\":").unwrap();
    half.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    assert!(fixture.client().status().is_ok());
    drop(fixture.server.take());
    let mut reply = String::new();
    half.read_to_string(&mut reply).unwrap();
    assert!(reply.is_empty() || reply.contains("bad_request"), "{reply}");
}

#[test]
fn a_fault_in_the_daemon_is_an_answer_and_not_the_end() {
    let fixture = Fixture::new();
    match fixture.client().unmount(Path::new("/panic")) {
        Err(ClientError::Refused(refusal)) => assert_eq!(refusal.kind, RefusalKind::Failed),
        other => panic!("{other:?}"),
    }
    assert!(fixture.client().status().is_ok());
}

#[test]
fn a_daemon_is_found_by_its_mountpoint_or_by_being_alone() {
    let place = tempfile::tempdir().unwrap();
    let dir = RuntimeDir::at(place.path().into());
    let dirs = [dir.clone()];
    assert!(matches!(ControlClient::only_one(&dirs), Err(FindError::NoneRunning)));

    // A daemon that died leaves its socket, which the next look removes.
    let dead = dir.socket(&daemon_name(Path::new("/dead")));
    drop(UnixListener::bind(&dead).unwrap());
    let fixture = Fixture::new();
    let socket = dir.socket(&daemon_name(Path::new("/m")));
    std::os::unix::fs::symlink(fixture.socket(), &socket).unwrap();
    assert_eq!(ControlClient::only_one(&dirs).unwrap().socket(), socket);
    assert!(!dead.exists());
    assert_eq!(ControlClient::of_path(Path::new("/m"), &dirs).unwrap().socket(), socket);
    assert!(matches!(ControlClient::of_path(Path::new("/proc"), &dirs), Err(FindError::NotInMount(_))));

    let second = Fixture::new();
    std::os::unix::fs::symlink(second.socket(), dir.socket("second")).unwrap();
    let error = ControlClient::only_one(&dirs).unwrap_err();
    assert!(matches!(&error, FindError::Several(all) if all.len() == 2));
    assert!(error.to_string().contains("\n  /m"), "{error}");
}

#[test]
fn an_answer_from_who_is_no_daemon_is_an_error_that_says_so() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("x.sock");
    let listener = UnixListener::bind(&path).unwrap();
    let answers: [&[u8]; 4] = [b"hello\n", b"{\"status\":{}}\n", b"\"done\"\n", b"{\"error\":\"no\"}\n"];
    let server = std::thread::spawn(move || {
        for answer in answers {
            let (mut stream, _) = listener.accept().unwrap();
            stream.write_all(answer).unwrap();
        }
        drop(listener.accept().unwrap());
    });
    for answer in answers {
        let error = ControlClient::new(path.clone()).status().unwrap_err();
        assert!(matches!(error, ClientError::NotUnderstood { .. }), "{answer:?}: {error}");
    }
    let error = ControlClient::new(path.clone()).status().unwrap_err();
    assert!(matches!(error, ClientError::NoAnswer { .. }), "{error}");
    server.join().unwrap();
}
