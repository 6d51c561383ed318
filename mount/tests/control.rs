//! The client: how it finds daemons, and what it makes of their answers. The daemons are canned.

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use weightfs::control::{EventKind, MountStatus, PinRequest, Problem, ProblemKind, Status};
use weightfs_mount::control_client::{ClientError, ControlClient, FindError, Told};
use weightfs_mount::runtime_dir::{RuntimeDir, daemon_name};

/// Answers every request with the same bytes, and tells what was asked.
fn canned(socket: &Path, answer: impl Into<Vec<u8>>) -> Receiver<String> {
    let (listener, answer) = (UnixListener::bind(socket).unwrap(), answer.into());
    let (asked, seen) = channel();
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let request = read_request(&stream);
            let _ = (&stream).write_all(&answer);
            // Looks that only see whether somebody listens say nothing.
            if !request.is_empty() && asked.send(request).is_err() {
                return;
            }
        }
    });
    seen
}

fn read_request(mut stream: &UnixStream) -> String {
    let (mut request, mut chunk) = (Vec::new(), [0; 4096]);
    let length = |text: &str| {
        let head = text.split_once("\r\n\r\n")?.0;
        let field = head.lines().find_map(|line| line.strip_prefix("content-length: "));
        Some(head.len() + 4 + field.map_or(0, |length| length.parse::<usize>().unwrap()))
    };
    loop {
        let text = String::from_utf8(request.clone()).unwrap();
        match stream.read(&mut chunk) {
            _ if length(&text).is_some_and(|length| text.len() >= length) => return text,
            Ok(0) | Err(_) => return text,
            Ok(count) => request.extend(&chunk[..count]),
        }
        let text = String::from_utf8(request.clone()).unwrap();
        if length(&text).is_some_and(|length| text.len() >= length) {
            return text;
        }
    }
}

fn answer(status: u16, body: &str) -> String {
    format!("HTTP/1.1 {status} X\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}", body.len())
}

fn status_of(mountpoint: &str) -> String {
    let mount = MountStatus { mountpoint: mountpoint.into(), source: "/s".into(), passthrough: true };
    let status = Status { mounts: vec![mount], ..Status::default() };
    answer(200, &serde_json::to_string(&status).unwrap())
}

fn place() -> (tempfile::TempDir, PathBuf) {
    let place = tempfile::tempdir().unwrap();
    let socket = place.path().join("control.sock");
    (place, socket)
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
    let socket = dir.socket(&daemon_name(Path::new("/m")));
    let _first = canned(&socket, status_of("/m"));
    assert_eq!(ControlClient::only_one(&dirs).unwrap().socket(), socket);
    assert!(!dead.exists());
    assert_eq!(ControlClient::of_path(Path::new("/m"), &dirs).unwrap().socket(), socket);
    assert!(matches!(ControlClient::of_path(Path::new("/proc"), &dirs), Err(FindError::NotInMount(_))));

    let _second = canned(&dir.socket("second"), status_of("/other"));
    let error = ControlClient::only_one(&dirs).unwrap_err();
    assert!(matches!(&error, FindError::Several(all) if all.len() == 2));
    assert!(error.to_string().contains("\n  /m") && error.to_string().contains("\n  /other"), "{error}");
}

#[test]
fn what_is_asked_travels_as_it_was_meant() {
    let (_place, socket) = place();
    let asked = canned(&socket, answer(200, r#"{"files":1,"bytes":2,"left_bytes":0,"more":"from a newer daemon"}"#));
    let client = ControlClient::new(socket);
    let request = PinRequest { path: "/m/a b".into(), tensors: None, priority: None };
    assert_eq!(client.pin(&request).unwrap().bytes, 2);
    let text = asked.recv().unwrap();
    assert!(text.starts_with("POST /v1/pin HTTP/1.1\r\n") && text.ends_with(r#"{"path":"/m/a b"}"#), "{text}");
    assert!(text.to_lowercase().contains("content-type: application/json"), "{text}");
    // The answer is to another question, but the question is right.
    assert!(client.explain(Path::new("/m/ä&b=c")).is_err());
    let text = asked.recv().unwrap();
    assert!(text.starts_with("GET /v1/explain?path=%2Fm%2F%C3%A4%26b%3Dc HTTP/1.1"), "{text}");
}

#[test]
fn a_name_that_is_no_text_is_said_to_be_unsendable() {
    use std::os::unix::ffi::OsStrExt;
    let client = ControlClient::new("/none".into());
    let error = client.unpin(Path::new(std::ffi::OsStr::from_bytes(b"/m/\xff"))).unwrap_err();
    assert!(matches!(error, ClientError::Unsendable(..)), "{error}");
}

#[test]
fn problems_keep_their_kind_and_words() {
    let (_place, socket) = place();
    let problem =
        Problem { kind: ProblemKind::Busy, title: "In use".into(), status: 409, detail: "/m is in use".into() };
    let _asked = canned(&socket, answer(409, &serde_json::to_string(&problem).unwrap()));
    match ControlClient::new(socket).unmount(Path::new("/m")) {
        Err(ClientError::Refused(refused)) => assert_eq!(refused, problem),
        other => panic!("{other:?}"),
    }
}

#[test]
fn events_come_one_by_one_and_losses_are_told() {
    let (_place, socket) = place();
    let told = "event: evicted\ndata: {\"kind\":\"evicted\",\"at\":1.5,\"path\":\"/m/a\",\"bytes\":7}\n\n: keep-alive\n\n\
                event: lost\ndata: {\"lost\":3}\n\n";
    let _asked = canned(&socket, format!("HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n{told}"));
    let events: Vec<_> = ControlClient::new(socket).events(&[]).unwrap().map(Result::unwrap).collect();
    match events.as_slice() {
        [Told::Event(event), Told::Lost(3)] => {
            assert_eq!((event.kind, event.path.as_deref(), event.bytes), (EventKind::Evicted, Some("/m/a"), Some(7)));
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn an_answer_from_who_is_no_daemon_is_an_error_that_says_so() {
    let answers =
        ["hello\n".to_owned(), answer(200, "{}"), answer(200, "\"done\""), answer(500, "no"), answer(404, "")];
    for answer in answers {
        let (_place, socket) = place();
        let _asked = canned(&socket, answer.clone());
        let error = ControlClient::new(socket).status().unwrap_err();
        assert!(matches!(error, ClientError::NotUnderstood { .. }), "{answer:?}: {error:?}");
    }
    let (_place, socket) = place();
    let _asked = canned(&socket, "");
    let error = ControlClient::new(socket).status().unwrap_err();
    assert!(matches!(error, ClientError::NoAnswer { .. }), "{error:?}");
}

#[test]
fn a_daemon_without_room_is_asked_again() {
    let (_place, socket) = place();
    let listener = UnixListener::bind(&socket).unwrap();
    let server = std::thread::spawn(move || {
        for text in [
            answer(503, r#"{"type":"urn:weightfs:problem:overloaded","title":"","status":503,"detail":""}"#),
            status_of("/m"),
        ] {
            let (mut stream, _) = listener.accept().unwrap();
            // As a daemon without room does: it answers at once, and reads nothing.
            if text.contains("overloaded") {
                stream.write_all(text.as_bytes()).unwrap();
                continue;
            }
            read_request(&stream);
            stream.write_all(text.as_bytes()).unwrap();
            std::thread::sleep(Duration::from_millis(10));
        }
    });
    assert_eq!(ControlClient::new(socket).status().unwrap().mounts.len(), 1);
    server.join().unwrap();
}
