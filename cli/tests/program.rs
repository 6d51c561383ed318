//! The program from outside: what it prints and how it ends, without a mount.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use serde_json::Value;
use tempfile::TempDir;
use weightfs::control::{
    CONTROL_XATTR, IoStatus, MountStatus, Outcome, PinRequest, Problem, ProblemKind, RamStatus, Status, WorkerStatus,
};
use weightfs_mount::runtime_dir::listen;

/// With no setting of the outside in the way.
fn program(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_weightfs"));
    command.env_clear().args(arguments);
    command
}

/// The exit code, standard output and standard error.
fn run(command: &mut Command) -> (i32, String, String) {
    let Output { status, stdout, stderr } = command.output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (status.code().unwrap(), text(stdout), text(stderr))
}

/// `models` with one file, and the empty folder `empty`.
fn place() -> (TempDir, impl Fn(&str) -> String) {
    let place = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let root = place.path().to_owned();
    fs::create_dir(root.join("models")).unwrap();
    fs::write(root.join("models/m.bin"), "x").unwrap();
    fs::create_dir(root.join("empty")).unwrap();
    (place, move |name| root.join(name).to_str().unwrap().to_owned())
}

#[test]
fn what_cannot_be_mounted_is_refused_with_what_to_do() {
    let (_place, at) = place();
    let (models, empty, none) = (at("models"), at("empty"), at("none"));
    let cases: [(&[&str], i32, &str); 8] = [
        (&["mount"], 2, "weightfs mount SOURCE"),
        (&["mount", &none], 1, "does not exist"),
        (&["mount", &models, &none], 1, "mkdir -p"),
        (&["mount", &empty, &models], 1, "not empty"),
        (&["mount", &models, "--ram", "9000T"], 2, "more than this machine has"),
        (&["mount", &models, "--ram=0"], 2, "hold nothing"),
        (&["mount", &models, "--low-watermark=99", "--high-watermark=98"], 2, "--high-watermark 98"),
        (&["mount", &models, "--foreground", "--io=fast"], 2, "auto, uring or threads"),
    ];
    for (arguments, expected, words) in cases {
        let (code, output, errors) = run(&mut program(arguments));
        assert!(code == expected && errors.contains(words), "{arguments:?}: {code} {errors}");
        assert_eq!(output, "");
    }
}

#[test]
fn the_environment_and_the_file_are_listened_to() {
    let (place, at) = place();
    let models = at("models");
    let (code, _, errors) = run(program(&["mount", &models]).env("WEIGHTFS_RAM", "0"));
    assert!(code == 2 && errors.contains("hold nothing"), "{errors}");
    let (code, _, errors) = run(program(&["mount", &models]).env("WEIGHTFS_HIGH_WATERMARK", "all"));
    assert!(code == 2 && errors.contains("WEIGHTFS_HIGH_WATERMARK"), "{errors}");

    fs::write(place.path().join("c.toml"), "source = 'models'\nram = 0\n").unwrap();
    let (code, _, errors) = run(&mut program(&["mount", "--config", &at("c.toml")]));
    assert!(code == 2 && errors.contains("hold nothing"), "{errors}");
    fs::write(place.path().join("c.toml"), "source = 'models'\n\nhigh_watermark = 3\n").unwrap();
    let (code, _, errors) = run(&mut program(&["mount", "--config", &at("c.toml")]));
    assert!(code == 2 && errors.contains("line 3") && errors.contains("high-watermark"), "{errors}");
}

#[test]
fn mount_finds_its_helper_by_name_and_gets_its_codes() {
    let (place, at) = place();
    let helper = place.path().join("mount.weightfs");
    symlink(env!("CARGO_BIN_EXE_weightfs"), &helper).unwrap();
    let (models, empty) = (at("models"), at("empty"));
    let call = |arguments: &[&str]| run(Command::new(&helper).env_clear().args(arguments));
    let (code, _, errors) = call(&[&models, &empty, "-o", "rw,rma=1G"]);
    assert!(code == 1 && errors.contains("'rma'"), "{errors}");
    let (code, _, errors) = call(&[&empty, &models, "-fo", "ro,ram=50%,x-systemd.automount,nofail"]);
    assert!(code == 32 && errors.contains("not empty"), "{errors}");
}

#[test]
fn without_a_daemon_there_is_nothing_to_see_or_end() {
    let (_place, at) = place();
    let (code, _, errors) = run(&mut program(&["status", &at("models")]));
    assert!(code == 3 && errors.contains("not in a weightfs mount"), "{errors}");
    let (code, _, errors) = run(&mut program(&["unmount", &at("models")]));
    assert!(code == 3 && errors.contains("not mounted"), "{errors}");
    let (code, _, errors) = run(&mut program(&["unmount", "/proc"]));
    assert!(code == 1 && errors.contains("umount /proc"), "{errors}");
    let (code, _, errors) = run(&mut program(&["status", &at("none")]));
    assert!(code == 1 && errors.contains("does not exist"), "{errors}");
}

fn status() -> Status {
    Status {
        mounts: vec![MountStatus { mountpoint: "/m".into(), source: "/s".into(), passthrough: true }],
        ram: RamStatus { budget_bytes: 8 << 30, resident_bytes: 4 << 30, ..RamStatus::default() },
        io: IoStatus { engine: "uring".into(), ..IoStatus::default() },
        worker: WorkerStatus { pid: 42, restarts: 1 },
        version: "9.9".into(),
        ..Status::default()
    }
}

/// The status and the body of the answer to a request.
fn answer(request: &str) -> (u16, Value) {
    let refused = |kind: ProblemKind, detail: &str| {
        let problem = Problem { kind, title: kind.title().into(), status: kind.status(), detail: detail.to_owned() };
        (kind.status(), serde_json::to_value(problem).unwrap())
    };
    let (head, body) = request.split_once("\r\n\r\n").unwrap();
    match head.split("\r\n").next().unwrap() {
        "GET /v1/status HTTP/1.1" => (200, serde_json::to_value(status()).unwrap()),
        "POST /v1/pin HTTP/1.1" => match serde_json::from_str::<PinRequest>(body).unwrap().tensors {
            Some(tensors) if tensors.as_str() == "te.*" => {
                (200, serde_json::to_value(Outcome { files: 2, bytes: 3 << 30, left_bytes: 0 }).unwrap())
            }
            _ => refused(ProblemKind::NoRoom, "no room"),
        },
        _ => refused(ProblemKind::Failed, "not in this test"),
    }
}

/// Says what a daemon would, a request a connection, until it is dropped.
struct Daemon {
    socket: PathBuf,
    ending: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Daemon {
    fn start(socket: &Path) -> Self {
        let listener = listen(socket).unwrap();
        let ending = Arc::new(AtomicBool::new(false));
        let end = Arc::clone(&ending);
        let thread = std::thread::spawn(move || {
            for stream in listener.incoming().take_while(|_| !end.load(Ordering::SeqCst)) {
                serve(stream.unwrap());
            }
        });
        Self { socket: socket.to_owned(), ending, thread: Some(thread) }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.ending.store(true, Ordering::SeqCst);
        let _ = UnixStream::connect(&self.socket);
        self.thread.take().unwrap().join().unwrap();
    }
}

/// Whoever only looks whether somebody listens sends nothing.
fn serve(mut stream: UnixStream) {
    let mut request = String::new();
    let mut chunk = [0; 4096];
    while !is_whole(&request) {
        match stream.read(&mut chunk) {
            Ok(0) | Err(_) => return,
            Ok(count) => request += std::str::from_utf8(&chunk[..count]).unwrap(),
        }
    }
    let (status, body) = answer(&request);
    let body = body.to_string();
    let head = format!("HTTP/1.1 {status} x\r\ncontent-length: {}\r\nconnection: close\r\n\r\n", body.len());
    // A client that is gone wants nothing more.
    let _ = stream.write_all((head + &body).as_bytes());
}

fn is_whole(request: &str) -> bool {
    request.split_once("\r\n\r\n").is_some_and(|(head, body)| {
        let length = head.split("\r\n").find_map(|line| line.strip_prefix("content-length: ")?.parse().ok());
        body.len() >= length.unwrap_or(0)
    })
}

/// A file that names the socket of a daemon, as every file of a mount does.
fn file_of_a_daemon(place: &Path) -> (Daemon, PathBuf) {
    let socket = place.join("x.sock");
    let server = Daemon::start(&socket);
    let file = place.join("models/m.bin");
    let value = socket.to_str().unwrap().as_bytes();
    rustix::fs::setxattr(&file, CONTROL_XATTR, value, rustix::fs::XattrFlags::empty()).unwrap();
    (server, file)
}

#[test]
fn status_is_found_by_a_path_and_printed_for_people_and_programs() {
    let (place, _) = place();
    let (_server, file) = file_of_a_daemon(place.path());
    let file = file.to_str().unwrap();
    let (code, text, _) = run(&mut program(&["status", file, "--json"]));
    assert_eq!((code, serde_json::from_str::<Status>(&text).unwrap()), (0, status()));
    let (code, text, _) = run(&mut program(&["status", file]));
    assert_eq!(code, 0);
    assert!(text.starts_with("/m  from /s  passthrough\n") && text.contains("4.0 GiB of 8.0 GiB (50 %)"), "{text}");
    assert!(!text.contains('\x1b'), "{text}");
}

#[test]
fn a_pin_is_asked_for_with_its_tensors_and_a_refusal_is_told() {
    let (place, _) = place();
    let (_server, file) = file_of_a_daemon(place.path());
    let file = file.to_str().unwrap();
    let (code, text, _) = run(&mut program(&["pin", file, "--tensors", "te.*"]));
    assert_eq!((code, text), (0, format!("{file}: 3.0 GiB pinned, 2 files\n")));
    let (code, _, errors) = run(&mut program(&["pin", file]));
    assert!(code == 1 && errors.contains("no room"), "{errors}");
}

#[test]
fn a_socket_of_the_dead_is_no_daemon() {
    let (place, _) = place();
    let (server, file) = file_of_a_daemon(place.path());
    drop(server);
    let (code, _, errors) = run(&mut program(&["status", file.to_str().unwrap()]));
    assert!(code == 3 && errors.contains("has ended"), "{errors}");
}

#[test]
fn a_reader_that_stops_reading_is_no_failure() {
    let (place, _) = place();
    let (_server, file) = file_of_a_daemon(place.path());
    let script = format!("{} status {} | :", env!("CARGO_BIN_EXE_weightfs"), file.display());
    let (code, _, errors) = run(Command::new("/bin/sh").arg0("sh").args(["-c", &script]));
    assert_eq!((code, errors.as_str()), (0, ""));
}
