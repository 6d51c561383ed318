//! The thread that has all connections.

use std::io;
use std::net::SocketAddr;
use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::Request;
use axum::response::{IntoResponse, Response};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tower::ServiceExt;
use weightfs::control::{ControlError, MAX_HEAD, Problem};

use super::admission::{Admission, Seat};
use super::answer::Refused;
use super::patient::Patient;
use super::pool::{self, Pool};
use super::web::Web;
use super::{Api, Counters, Inner, routes};
use crate::control::Control;
use crate::control::rights::Peer;

/// How long a client may take to send the head of a request, the first or the next one.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long to leave a listener alone when accepting fails, as it does without free descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// How long answers that are under way at the end may take.
const LAST_ANSWERS: Duration = Duration::from_secs(2);
/// Requests are parsed and answered without deep recursion.
const STACK: usize = 1 << 20;

#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error("cannot start a thread: {0}; raise the limit on processes (ulimit -u)")]
    Thread(io::Error),
    #[error("cannot listen at {address}: {error}; choose another address with --listen")]
    Listen { address: SocketAddr, error: io::Error },
}

/// Answers until it is dropped; requests already received are answered before the drop returns.
#[derive(Debug)]
pub struct ControlServer {
    stop: watch::Sender<bool>,
    thread: Option<JoinHandle<()>>,
}

impl ControlServer {
    pub fn start(listener: UnixListener, control: Arc<Control>) -> Result<Self, StartError> {
        listener.set_nonblocking(true).map_err(StartError::Thread)?;
        let (listeners, further) = unbounded_channel();
        let web = Web::new(listeners);
        web.start(&control)?;
        let admission = Admission::new(control.rights().daemon_uid);
        let (pool, counters) = (Pool::default(), Counters::default());
        let api = Api(Arc::new(Inner { control, pool, admission, counters, web }));
        let runtime = Builder::new_current_thread()
            .enable_io()
            .enable_time()
            .max_blocking_threads(pool::THREADS)
            .thread_stack_size(STACK)
            .thread_name("control-work")
            .build()
            .map_err(StartError::Thread)?;
        let (stop, stopped) = watch::channel(false);
        let thread = std::thread::Builder::new()
            .name("control".into())
            .stack_size(STACK)
            .spawn(move || run(runtime, listener, further, api, stopped))
            .map_err(StartError::Thread)?;
        Ok(Self { stop, thread: Some(thread) })
    }
}

impl Drop for ControlServer {
    fn drop(&mut self) {
        // Nobody to tell has nobody to wait for.
        let _ = self.stop.send(true);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn run(
    runtime: Runtime,
    listener: UnixListener,
    further: UnboundedReceiver<std::net::TcpListener>,
    api: Api,
    stopped: watch::Receiver<bool>,
) {
    runtime.block_on(async {
        match tokio::net::UnixListener::from_std(listener) {
            Ok(listener) => serve(listener, further, &api, stopped).await,
            Err(error) => tracing::error!(%error, "the control socket cannot be listened to"),
        }
    });
    // What still runs may wait for storage, which this must not.
    runtime.shutdown_background();
}

async fn serve(
    listener: tokio::net::UnixListener,
    mut further: UnboundedReceiver<std::net::TcpListener>,
    api: &Api,
    mut stopped: watch::Receiver<bool>,
) {
    let router = routes::router(api.clone());
    let mut connections = JoinSet::new();
    let mut pages: Option<tokio::net::TcpListener> = None;
    loop {
        while connections.try_join_next().is_some() {}
        tokio::select! {
            () = end(&mut stopped) => break,
            Some(listener) = further.recv() => match tokio::net::TcpListener::from_std(listener) {
                Ok(listener) => pages = Some(listener),
                Err(error) => tracing::error!(%error, "browsers cannot be listened to"),
            },
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => {
                    let Ok(peer) = stream.peer_cred() else { continue };
                    let peer = Peer::Local { uid: peer.uid(), gid: peer.gid() };
                    match api.0.admission.admit(peer) {
                        Some(seat) => {
                            let connection = Connection { api: api.clone(), router: router.clone(), peer, _seat: seat };
                            connections.spawn(connection.serve(stream, stopped.clone()));
                        }
                        None => turn_away(|bytes| stream.try_write(bytes)),
                    }
                }
                Err(error) => pause(&error).await,
            },
            accepted = accept(&pages) => match accepted {
                Ok(stream) => {
                    let peer = Peer::Web { token: false };
                    match api.0.admission.admit(peer) {
                        Some(seat) => {
                            let connection = Connection { api: api.clone(), router: router.clone(), peer, _seat: seat };
                            connections.spawn(connection.serve(stream, stopped.clone()));
                        }
                        None => turn_away(|bytes| stream.try_write(bytes)),
                    }
                }
                Err(error) => pause(&error).await,
            },
        }
    }
    drop((listener, pages));
    // Those who only listen are told that it is over.
    api.control().hub().close();
    let last = async { while connections.join_next().await.is_some() {} };
    if tokio::time::timeout(LAST_ANSWERS, last).await.is_err() {
        tracing::warn!("some requests were not answered before the end");
    }
}

async fn end(stopped: &mut watch::Receiver<bool>) {
    // The sender goes only with the server.
    let _ = stopped.wait_for(|stopped| *stopped).await;
}

async fn accept(listener: &Option<tokio::net::TcpListener>) -> io::Result<tokio::net::TcpStream> {
    match listener {
        Some(listener) => listener.accept().await.map(|(stream, _)| stream),
        None => std::future::pending().await,
    }
}

async fn pause(error: &io::Error) {
    tracing::warn!(%error, "cannot accept a control connection");
    tokio::time::sleep(ACCEPT_PAUSE).await;
}

/// Tells a client that there is no place for it, without waiting for it.
fn turn_away(write: impl FnOnce(&[u8]) -> io::Result<usize>) {
    let problem = serde_json::to_string(&Problem::from(&ControlError::Overloaded)).unwrap_or_default();
    let answer = format!(
        "HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/problem+json\r\nretry-after: 1\r\n\
         content-length: {}\r\nconnection: close\r\n\r\n{problem}",
        problem.len()
    );
    let sent = write(answer.as_bytes()).is_ok();
    tracing::debug!(sent, "too many control connections");
}

struct Connection {
    api: Api,
    router: Router,
    peer: Peer,
    _seat: Seat,
}

impl Connection {
    async fn serve<S: AsyncRead + AsyncWrite + Unpin>(self, stream: S, mut stopped: watch::Receiver<bool>) {
        let service = service_fn(|request| self.answer(request));
        let mut builder = http1::Builder::new();
        builder.timer(TokioTimer::new()).header_read_timeout(PATIENCE).max_header_size(MAX_HEAD);
        let mut connection = std::pin::pin!(builder.serve_connection(TokioIo::new(Patient::new(stream)), service));
        let ended = tokio::select! {
            ended = connection.as_mut() => Some(ended),
            () = end(&mut stopped) => None,
        };
        let ended = match ended {
            Some(ended) => ended,
            None => {
                connection.as_mut().graceful_shutdown();
                connection.await
            }
        };
        if let Err(error) = ended {
            tracing::debug!(%error, peer = ?self.peer, "a control connection has ended early");
        }
    }

    async fn answer(&self, request: Request<Incoming>) -> Result<Response, std::convert::Infallible> {
        let mut request = request.map(Body::new);
        let peer = match self.peer {
            Peer::Web { .. } => self.api.0.web.peer(&request),
            local => Ok(local),
        };
        let response = match peer {
            Ok(peer) => {
                request.extensions_mut().insert(peer);
                self.router.clone().oneshot(request).await?
            }
            Err(error) => Refused(error).into_response(),
        };
        let counters = &self.api.0.counters;
        counters.requests.fetch_add(1, Ordering::Relaxed);
        let status = response.status();
        if status.is_client_error() || status.is_server_error() {
            counters.refused.fetch_add(1, Ordering::Relaxed);
        }
        Ok(response)
    }
}
