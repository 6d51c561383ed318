//! The control interface over a real socket, with clients of every kind. No mount is behind it.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tempfile::TempDir;
use weightfs::control::{EventKind, PrefetchRequest, Problem, ProblemKind};
use weightfs::fill::EngineChoice;
use weightfs::journal::Legacy;
use weightfs::store::{Store, StoreConfig};
use weightfs_mount::api::{self, ControlServer, METRICS};
use weightfs_mount::control::{Control, Parts, Standing};
use weightfs_mount::control_client::{ClientError, ControlClient, Told};
use weightfs_mount::runtime_dir::listen;

struct Fixture {
    place: TempDir,
    store: Arc<Store>,
    server: Option<ControlServer>,
}

impl Fixture {
    fn new() -> Self {
        let place = tempfile::tempdir().unwrap();
        let store = Store::start(StoreConfig {
            budget: 64 << 20,
            reserve: None,
            high_watermark: 98,
            low_watermark: 96,
            engine: EngineChoice::Threads,
            history: None,
        })
        .unwrap();
        let legacy = Legacy::of_nobody().unwrap();
        let control = Control::start(Parts {
            store: Arc::clone(&store),
            mounts: Vec::new(),
            notes: vec!["a note".into()],
            state_dir: place.path().join("state"),
            group: None,
            open: true,
            listen: None,
            restarts: 2,
            standing: Standing::new(None, &legacy).unwrap(),
            legacy,
            upgrade: Some(Box::new(|program| match program.to_str() {
                Some("/panic") => panic!("as the test wants"),
                _ => Ok(()),
            })),
        })
        .unwrap();
        let listener = listen(&place.path().join("control.sock")).unwrap();
        let server = Some(ControlServer::start(listener, control).unwrap());
        Self { place, store, server }
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
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        // The server may have heard enough before all is written.
        let _ = stream.write_all(bytes);
        // Half a request ends with this. Whoever has sent a whole one and hangs up does not wait for the answer.
        if !bytes.windows(4).any(|end| end == b"\r\n\r\n") {
            let _ = stream.shutdown(Shutdown::Write);
        }
        let mut reply = Vec::new();
        let _ = stream.read_to_end(&mut reply);
        String::from_utf8(reply).unwrap()
    }

    fn post(&self, path: &str, body: &str) -> String {
        let (length, head) = (body.len(), "host: w\r\nconnection: close\r\ncontent-type: application/json");
        self.send(format!("POST {path} HTTP/1.1\r\n{head}\r\ncontent-length: {length}\r\n\r\n{body}").as_bytes())
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        self.server = None;
        self.store.stop();
    }
}

fn problem(answer: Result<impl std::fmt::Debug, ClientError>) -> Problem {
    match answer {
        Err(ClientError::Refused(problem)) => problem,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_client_gets_the_status_that_the_daemon_has() {
    let fixture = Fixture::new();
    let status = fixture.client().status().unwrap();
    assert_eq!((status.notes.as_slice(), status.worker.restarts), (&["a note".to_owned()][..], 2));
    assert_eq!((status.ram.limit_bytes, status.io.engine.as_str()), (64 << 20, "threads"));
    assert!(fixture.client().all_files(&Default::default()).unwrap().files.is_empty());
    assert_eq!(fixture.client().doctor().unwrap().checks.len(), 3);
}

#[test]
fn what_cannot_be_done_is_told_with_its_kind() {
    let fixture = Fixture::new();
    let client = fixture.client();
    assert_eq!(problem(client.unmount(Path::new("/m"))).kind, ProblemKind::NotMounted);
    assert_eq!(problem(client.explain(Path::new("/m/a"))).kind, ProblemKind::NotMounted);
    assert_eq!(problem(client.job("1", Duration::ZERO)).kind, ProblemKind::NotFound);
    assert_eq!(problem(client.stop_trace()).kind, ProblemKind::Failed);
    let nothing = PrefetchRequest { paths: vec![], tensors: None, component: None, to: None, into: None };
    assert_eq!(problem(client.prefetch(&nothing)).kind, ProblemKind::BadRequest);
    client.upgrade(Path::new("/bin/true")).unwrap();
    // A fault in the daemon is an answer and not the end.
    assert_eq!(problem(client.upgrade(Path::new("/panic"))).kind, ProblemKind::Failed);
    assert!(client.status().is_ok());
}

#[test]
fn garbage_is_refused_and_the_next_client_is_served() {
    let fixture = Fixture::new();
    for bytes in [
        &b"\0\xff\xfe\n\r\n\r\n"[..],
        b"{\"request\":\"status\"}\n",
        b"GET / HTTP/9\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\n",
    ] {
        let reply = fixture.send(bytes);
        assert!(reply.is_empty() || reply.starts_with("HTTP/1.1 4"), "{bytes:?}: {reply}");
    }
    assert_eq!(fixture.send(b""), "");
    let deep = "[".repeat(100_000);
    for body in ["", "null", "{", "{\"path\":1}", "{\"path\":\"/m\",\"more\":1}", "[]", "\"\u{0}\"", &deep] {
        let reply = fixture.post("/v1/unpin", body);
        assert!(reply.starts_with("HTTP/1.1 400") && reply.contains("urn:weightfs:problem:bad_request"), "{reply}");
    }
    for query in ["limit=x", "limit=0", "limit=10001", "cursor=x", "sort=y", "more=1", "resident=2", "limit=1&limit=2"]
    {
        let reply =
            fixture.send(format!("GET /v1/files?{query} HTTP/1.1\r\nhost: w\r\nconnection: close\r\n\r\n").as_bytes());
        assert!(reply.starts_with("HTTP/1.1 400"), "{query}: {reply}");
    }
    assert!(fixture.client().status().is_ok());
}

#[test]
fn endless_requests_are_cut_off_at_their_limits() {
    let fixture = Fixture::new();
    let long = "x".repeat(20 << 10);
    for head in [format!("GET /{long} HTTP/1.1\r\n\r\n"), format!("GET / HTTP/1.1\r\nx: {long}\r\n\r\n")] {
        let reply = fixture.send(head.as_bytes());
        assert!(reply.starts_with("HTTP/1.1 4"), "{reply}");
    }
    let reply = fixture.post("/v1/unpin", &format!("{{\"path\":\"/{}\"}}", "x".repeat(1 << 20)));
    assert!(reply.starts_with("HTTP/1.1 413") && reply.contains("1048576"), "{reply}");
    // One that does not say how long it is.
    let mut stream = UnixStream::connect(fixture.socket()).unwrap();
    let head =
        "POST /v1/unpin HTTP/1.1\r\nhost: w\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n";
    stream.write_all(head.as_bytes()).unwrap();
    let chunk = format!("10000\r\n{}\r\n", "x".repeat(0x10000));
    let sent = (0..10_000).take_while(|_| stream.write_all(chunk.as_bytes()).is_ok()).count();
    assert!(sent < 1000, "{sent} chunks were taken");
    assert!(fixture.client().status().is_ok());
}

#[test]
fn clients_that_say_nothing_are_bounded_and_told_so() {
    let fixture = Fixture::new();
    let idle: Vec<_> = (0..200).map(|_| UnixStream::connect(fixture.socket()).unwrap()).collect();
    let mut told = String::new();
    (&idle[199]).read_to_string(&mut told).unwrap();
    assert!(told.starts_with("HTTP/1.1 503") && told.contains("overloaded"), "{told}");
    drop(idle);
    assert!(fixture.client().status().is_ok());
}

#[test]
fn a_client_that_takes_no_answer_does_not_hold_up_others() {
    let fixture = Fixture::new();
    let deaf: Vec<_> = (0..16)
        .map(|_| {
            let mut stream = UnixStream::connect(fixture.socket()).unwrap();
            stream.set_nonblocking(true).unwrap();
            let request = b"GET /v1/openapi.json HTTP/1.1\r\nhost: w\r\n\r\n".repeat(100);
            // As much as there is room for.
            let _ = stream.write_all(&request);
            stream
        })
        .collect();
    assert!(fixture.client().status().is_ok());
    drop(deaf);
}

#[test]
fn those_who_listen_hear_what_they_asked_for_until_the_end() {
    let mut fixture = Fixture::new();
    let heard = fixture.client().events(&[EventKind::Budget]).unwrap();
    let listener = std::thread::spawn(move || heard.map(Result::unwrap).collect::<Vec<_>>());
    let asked = weightfs::control::BudgetRequest { limit_bytes: Some(32 << 20), seconds: None };
    assert_eq!(fixture.client().budget(&asked).unwrap().budget_bytes, 32 << 20);
    drop(fixture.server.take());
    let heard = listener.join().unwrap();
    assert!(
        heard.iter().all(|told| matches!(told, Told::Event(event) if event.kind == EventKind::Budget)),
        "{heard:?}"
    );
    assert!(matches!(fixture.client().status(), Err(ClientError::Dead(_))));
}

#[test]
fn the_end_does_not_wait_for_half_a_request() {
    let mut fixture = Fixture::new();
    let mut half = UnixStream::connect(fixture.socket()).unwrap();
    half.write_all(b"GET /v1/st").unwrap();
    half.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    assert!(fixture.client().status().is_ok());
    drop(fixture.server.take());
    let mut reply = String::new();
    half.read_to_string(&mut reply).unwrap();
    assert!(reply.is_empty() || reply.starts_with("HTTP/1.1 4"), "{reply}");
}

#[test]
fn the_page_is_served_with_its_own_rules_and_asks_nobody_else() {
    let fixture = Fixture::new();
    let page = fixture.client().dashboard(None).unwrap();
    assert!(page.url.starts_with("http://127.0.0.1:") && page.url.ends_with(&format!("/#token={}", page.token)));
    assert_eq!(fixture.client().dashboard(None).unwrap(), page);
    let ask = |text: String| {
        let mut stream = std::net::TcpStream::connect(&page.listen).unwrap();
        stream.write_all(text.as_bytes()).unwrap();
        let mut reply = String::new();
        stream.read_to_string(&mut reply).unwrap();
        reply
    };
    let get = |path: &str, host: &str| ask(format!("GET {path} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n"));
    for path in ["/", "/main.js", "/page.css"] {
        let reply = get(path, "localhost");
        assert!(reply.starts_with("HTTP/1.1 200") && reply.contains("content-security-policy: default-src 'none'"));
        assert!(!reply.replace("http://www.w3.org", "").contains("http://"), "{path} asks somebody else");
    }
    assert!(get("/v1/status", "evil.example").starts_with("HTTP/1.1 403"));
    let flush = |token: &str| {
        let head = format!("host: {}\r\nauthorization: Bearer {token}\r\ncontent-type: application/json", page.listen);
        ask(format!("POST /v1/flush HTTP/1.1\r\n{head}\r\nconnection: close\r\ncontent-length: 2\r\n\r\n{{}}"))
    };
    assert!(flush("").starts_with("HTTP/1.1 403") && flush("0").starts_with("HTTP/1.1 403"));
    assert!(flush(&page.token).starts_with("HTTP/1.1 200"));
}

#[test]
fn every_metric_is_there_with_its_help() {
    let fixture = Fixture::new();
    let text = fixture.client().metrics().unwrap();
    for metric in METRICS {
        assert!(text.contains(&format!("# HELP {} {}\n# TYPE {} ", metric.name, metric.help, metric.name)));
    }
    let is_declared = |line: &&str| METRICS.iter().any(|metric| line.starts_with(metric.name));
    assert_eq!(text.lines().filter(|line| !line.starts_with('#')).find(|line| !is_declared(line)), None);
}

/// `WEIGHTFS_WRITE=1 cargo test -p weightfs-mount --test api` writes it anew.
#[test]
fn the_description_that_is_checked_in_is_current() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("openapi.json");
    let current = api::openapi() + "\n";
    if std::env::var_os("WEIGHTFS_WRITE").is_some() {
        std::fs::write(&file, &current).unwrap();
    }
    let known = std::fs::read_to_string(&file).unwrap_or_default();
    assert!(known == current, "mount/openapi.json is out of date; see the note at this test");
}
