//! Asks a daemon over HTTP on its socket, without the client that is under test.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::process::{Gid, Uid};
use serde_json::Value;

/// Answers come in far less; only a broken daemon needs it.
const PATIENCE: Duration = Duration::from_secs(30);

/// The control interface of one daemon, asked as one user.
#[derive(Clone, Debug)]
pub struct Api {
    socket: PathBuf,
    /// Another user and group than that of the test.
    user: Option<u32>,
}

/// One answer.
#[derive(Clone, Debug)]
pub struct Answer {
    pub status: u16,
    pub head: String,
    pub body: String,
}

impl Api {
    /// Of the daemon behind `path`, a path in a mount.
    pub fn of(path: &Path) -> Api {
        let mut value = [0; 4096];
        let length = rustix::fs::getxattr(path, "user.weightfs.control", &mut value[..]).expect("the mount answers");
        Api { socket: String::from_utf8(value[..length].to_vec()).expect("a path").into(), user: None }
    }

    /// Of a daemon whose mounts cannot be seen from here. None where it does not listen.
    pub fn in_folder(runtime: &Path) -> Option<Api> {
        let entries = std::fs::read_dir(runtime.join("weightfs")).ok()?;
        let mut paths = entries.flatten().map(|entry| entry.path());
        let socket = paths.find(|path| path.extension().is_some_and(|kind| kind == "sock"))?;
        let api = Api { socket, user: None };
        api.connect().is_ok().then_some(api)
    }

    /// The same, asked by another user, whose group has the same number.
    pub fn as_user(&self, id: u32) -> Api {
        Api { user: Some(id), ..self.clone() }
    }

    pub fn socket(&self) -> &Path {
        &self.socket
    }

    pub fn connect(&self) -> std::io::Result<UnixStream> {
        let Some(id) = self.user else { return UnixStream::connect(&self.socket) };
        let socket = self.socket.clone();
        // The kernel tells the daemon who the thread was that connected.
        let connected = std::thread::spawn(move || {
            rustix::thread::set_thread_groups(&[]).expect("only root may act as others");
            rustix::thread::set_thread_res_gid(None::<Gid>, Gid::from_raw(id), None::<Gid>).expect("become the group");
            rustix::thread::set_thread_res_uid(None::<Uid>, Uid::from_raw(id), None::<Uid>).expect("become the user");
            UnixStream::connect(socket)
        });
        connected.join().expect("the thread does not panic")
    }

    pub fn get(&self, path: &str) -> Answer {
        self.ask("GET", path, None)
    }

    pub fn post(&self, path: &str, body: &Value) -> Answer {
        self.ask("POST", path, Some(&body.to_string()))
    }

    pub fn delete(&self, path: &str) -> Answer {
        self.ask("DELETE", path, None)
    }

    /// `path` is with its query, percent-encoded.
    pub fn ask(&self, method: &str, path: &str, body: Option<&str>) -> Answer {
        let stream = self.connect().expect("the daemon listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("set a time-out");
        let mut request = format!("{method} {path} HTTP/1.1\r\nhost: weightfs\r\nconnection: close\r\n");
        if let Some(body) = body {
            request += &format!("content-type: application/json\r\ncontent-length: {}\r\n", body.len());
        }
        request += "\r\n";
        request += body.unwrap_or_default();
        // The daemon may have heard enough before all is written.
        let _ = (&stream).write_all(request.as_bytes());
        let mut text = Vec::new();
        (&stream).read_to_end(&mut text).expect("an answer");
        Answer::parse(&String::from_utf8(text).expect("text"))
    }

    /// The events from now on, as (name, data). Ends with the daemon, or after half a minute of silence.
    pub fn events(&self, query: &str) -> impl Iterator<Item = (String, Value)> + use<> {
        let stream = self.connect().expect("the daemon listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("set a time-out");
        let request = format!("GET /v1/events{query} HTTP/1.1\r\nhost: weightfs\r\n\r\n");
        (&stream).write_all(request.as_bytes()).expect("the daemon listens");
        let mut lines = BufReader::new(stream).lines().map_while(Result::ok);
        let begun = lines.next().expect("an answer");
        assert!(begun.starts_with("HTTP/1.1 200"), "{begun}");
        let mut name = String::new();
        lines.filter_map(move |line| {
            if let Some(kind) = line.strip_prefix("event: ") {
                name = kind.to_owned();
            }
            let data = line.strip_prefix("data: ")?;
            Some((name.clone(), serde_json::from_str(data).expect("JSON")))
        })
    }
}

impl Answer {
    fn parse(text: &str) -> Answer {
        let (head, body) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no answer: {text:?}"));
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
        Answer { status, head: head.to_owned(), body: body.to_owned() }
    }

    /// The body of an answer that is no problem.
    ///
    /// # Panics
    /// If it is one.
    pub fn json(&self) -> Value {
        assert!((200..300).contains(&self.status), "{}: {}", self.status, self.body);
        serde_json::from_str(&self.body).expect("JSON")
    }

    /// What kind of problem it is; the form of the document is checked.
    ///
    /// # Panics
    /// If it is none.
    pub fn problem(&self) -> String {
        assert!(self.head.contains("application/problem+json"), "{}: {}", self.head, self.body);
        let document: Value = serde_json::from_str(&self.body).expect("JSON");
        assert_eq!(document["status"], self.status);
        assert!(document["title"].is_string() && document["detail"].as_str().is_some_and(|text| !text.is_empty()));
        let kind = document["type"].as_str().and_then(|kind| kind.strip_prefix("urn:weightfs:problem:"));
        kind.unwrap_or_else(|| panic!("not a problem of ours: {}", self.body)).to_owned()
    }
}

/// A path as it stands in a query.
pub fn encoded(path: &Path) -> String {
    use std::os::unix::ffi::OsStrExt;
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/._-".contains(&byte);
    let bytes = path.as_os_str().as_bytes().iter();
    bytes.map(|byte| if plain(*byte) { char::from(*byte).to_string() } else { format!("%{byte:02X}") }).collect()
}
