//! One request and its answer, each on a connection of its own.

use std::io;
use std::path::Path;
use std::time::Duration;

use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1;
use hyper::{Method, Request, Response};
use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tokio::runtime::{Builder, Runtime};
use tokio::time::timeout;

/// The longest answer that is taken, in bytes.
const LONGEST_ANSWER: usize = 64 << 20;
/// The longest line of a stream.
const LONGEST_LINE: usize = 1 << 20;
/// How long a stream may be silent. The daemon says something every 15 seconds.
const LONGEST_SILENCE: Duration = Duration::from_secs(60);
/// How long a daemon may take to begin a stream.
const BEGIN_TIME: Duration = Duration::from_secs(10);

/// What is asked.
#[derive(Clone, Debug)]
pub struct Call {
    method: Method,
    path: String,
    body: Vec<u8>,
}

impl Call {
    /// `path` is with its query.
    pub fn get(path: &str) -> Self {
        Self { method: Method::GET, path: path.to_owned(), body: Vec::new() }
    }

    pub fn delete(path: &str) -> Self {
        Self { method: Method::DELETE, path: path.to_owned(), body: Vec::new() }
    }

    /// `body` is JSON, or nothing.
    pub fn post(path: &str, body: Vec<u8>) -> Self {
        Self { method: Method::POST, path: path.to_owned(), body }
    }
}

/// The status and the body of the answer.
pub fn ask(socket: &Path, call: &Call, time: Duration) -> io::Result<(u16, Vec<u8>)> {
    runtime()?.block_on(async {
        let answered = timeout(time, async {
            let response = send(socket, call).await?;
            let status = response.status().as_u16();
            let body = Limited::new(response.into_body(), LONGEST_ANSWER).collect().await;
            let body = body.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
            Ok((status, body.to_bytes().to_vec()))
        });
        answered.await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
    })
}

/// An answer that goes on.
pub fn open(socket: &Path, call: &Call) -> io::Result<Stream> {
    let runtime = runtime()?;
    let response = runtime.block_on(async { timeout(BEGIN_TIME, send(socket, call)).await });
    let response = response.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))?;
    if !response.status().is_success() {
        return Err(io::Error::other(format!("status {}", response.status())));
    }
    Ok(Stream { runtime, body: response.into_body(), read: Vec::new() })
}

/// Lines as they come.
pub struct Stream {
    runtime: Runtime,
    body: Incoming,
    /// Not given out yet.
    read: Vec<u8>,
}

impl Stream {
    /// The next line, without its end; None at the end of all.
    pub fn line(&mut self) -> io::Result<Option<String>> {
        loop {
            if let Some(end) = self.read.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.read.drain(..=end).collect();
                let text = String::from_utf8_lossy(&line);
                return Ok(Some(text.trim_end_matches(['\n', '\r']).to_owned()));
            }
            if self.read.len() > LONGEST_LINE {
                return Err(io::Error::new(io::ErrorKind::InvalidData, "a line without an end"));
            }
            let body = &mut self.body;
            let frame = self.runtime.block_on(async { timeout(LONGEST_SILENCE, body.frame()).await });
            match frame {
                Err(_) => return Err(io::ErrorKind::TimedOut.into()),
                Ok(None) => return Ok(None),
                Ok(Some(Err(error))) => return Err(io::Error::other(error)),
                Ok(Some(Ok(frame))) => self.read.extend(frame.data_ref().into_iter().flatten()),
            }
        }
    }
}

async fn send(socket: &Path, call: &Call) -> io::Result<Response<Incoming>> {
    let stream = UnixStream::connect(socket).await?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(failed)?;
    tokio::spawn(connection);
    let mut request = Request::builder().method(&call.method).uri(&call.path).header("host", "weightfs");
    if !call.body.is_empty() {
        request = request.header("content-type", "application/json");
    }
    let request = request.body(Full::new(Bytes::from(call.body.clone())));
    let request = request.map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
    sender.send_request(request).await.map_err(failed)
}

/// What lies behind an error of the connection, which is what people know.
fn failed(error: hyper::Error) -> io::Error {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(&error);
    while let Some(error) = cause {
        if let Some(error) = error.downcast_ref::<io::Error>() {
            return io::Error::new(error.kind(), error.to_string());
        }
        cause = error.source();
    }
    let kind = match () {
        () if error.is_incomplete_message() => io::ErrorKind::UnexpectedEof,
        () if error.is_parse() => io::ErrorKind::InvalidData,
        // It answered before it was asked, and hung up: that is how it says that it has no room.
        () if error.is_canceled() => io::ErrorKind::ResourceBusy,
        () => io::ErrorKind::Other,
    };
    io::Error::new(kind, error)
}

fn runtime() -> io::Result<Runtime> {
    Builder::new_current_thread().enable_io().enable_time().build()
}
