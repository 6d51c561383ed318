//! What is different for browsers: where they are listened to, what they must show, and from where they may come.
//!
//! Any page in a browser can make it send requests to this machine. What comes by TCP must therefore name the machine by
//! an address or by its own name, which a page from elsewhere cannot make a browser do; and what changes something must
//! show a token, which only those get who may do so on the socket.

use std::fs::{self, OpenOptions};
use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use axum::http::header::{AUTHORIZATION, HOST};
use axum::http::{HeaderMap, Request};
use parking_lot::Mutex;
use tokio::sync::mpsc::UnboundedSender;
use weightfs::control::{ControlError, Dashboard};

use super::server::StartError;
use crate::control::Control;
use crate::control::rights::Peer;

const TOKEN_BYTES: usize = 24;
/// Where the address is kept for the next process of this daemon.
const LISTENED: &str = "listen";

pub struct Web {
    /// Where browsers are listened to.
    address: Mutex<Option<SocketAddr>>,
    token: Mutex<Option<String>>,
    /// Takes listeners to the thread that has all connections.
    listeners: UnboundedSender<TcpListener>,
    /// What this machine is called.
    host: String,
}

impl Web {
    pub fn new(listeners: UnboundedSender<TcpListener>) -> Self {
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        Self { address: Mutex::default(), token: Mutex::default(), listeners, host }
    }

    /// Listens where that was asked for from the start, and where a former process of this daemon did.
    pub fn start(&self, control: &Control) -> Result<(), StartError> {
        let file = control.state_dir().join(LISTENED);
        if control.restarts() == 0 {
            let _ = fs::remove_file(&file);
        }
        let before = fs::read_to_string(&file).ok().and_then(|text| text.parse().ok());
        let Some(address) = before.or(control.listen()) else { return Ok(()) };
        // The token is there before the first page can ask for it.
        let listening = self.token(control.state_dir()).and_then(|_| self.listen(address));
        match listening {
            Ok(_) => Ok(()),
            Err(error) if control.restarts() > 0 => {
                tracing::warn!(%error, %address, "browsers are not served any more");
                Ok(())
            }
            Err(error) => Err(StartError::Listen { address, error }),
        }
    }

    /// Begins to listen at an address, where that is not so already.
    pub fn listen(&self, address: SocketAddr) -> io::Result<SocketAddr> {
        let mut current = self.address.lock();
        if let Some(current) = *current
            && current.ip() == address.ip()
            && [0, current.port()].contains(&address.port())
        {
            return Ok(current);
        }
        let listener = TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        self.listeners.send(listener).map_err(|_| io::Error::other("the daemon is ending"))?;
        *current = Some(address);
        Ok(address)
    }

    /// Where the page is, for somebody who may change things. Listens on this machine alone if nobody said otherwise.
    pub fn dashboard(&self, listen: Option<SocketAddr>, state_dir: &Path) -> Result<Dashboard, ControlError> {
        let asked = listen.or(*self.address.lock()).unwrap_or((Ipv4Addr::LOCALHOST, 0).into());
        let address = self
            .listen(asked)
            .map_err(|error| ControlError::Failed(format!("cannot listen at {asked}: {error}; choose another port")))?;
        if let Err(error) =
            fs::create_dir_all(state_dir).and_then(|()| fs::write(state_dir.join(LISTENED), address.to_string()))
        {
            tracing::warn!(%error, "the page is not served any more when another process goes on");
        }
        let token = self.token(state_dir).map_err(|error| ControlError::Failed(format!("no token: {error}")))?;
        let mut reached = address;
        if reached.ip().is_unspecified() {
            reached.set_ip(IpAddr::V4(Ipv4Addr::LOCALHOST));
        }
        // What comes after a # stays in the browser.
        Ok(Dashboard { url: format!("http://{reached}/#token={token}"), listen: address.to_string(), token })
    }

    /// Reads or makes the token. It is kept, so that pages that are open outlive a restart of the daemon.
    pub fn token(&self, state_dir: &Path) -> io::Result<String> {
        let mut token = self.token.lock();
        if let Some(token) = &*token {
            return Ok(token.clone());
        }
        let file = state_dir.join("token");
        let found = kept(&file);
        let made = match found {
            Some(found) => found,
            None => make(&file)?,
        };
        Ok(token.insert(made).clone())
    }

    /// Who asks, by what a request shows.
    pub fn peer<B>(&self, request: &Request<B>) -> Result<Peer, ControlError> {
        let host = request.headers().get(HOST).and_then(|host| host.to_str().ok());
        if !host.is_some_and(|host| is_ours(host, &self.host)) {
            return Err(ControlError::NotPermitted(
                "this name does not lead here: use an address, localhost or the name of this machine".to_owned(),
            ));
        }
        let shown = shown_token(request.headers());
        let token = self.token.lock();
        let right = token.as_ref().zip(shown).is_some_and(|(token, shown)| same(token.as_bytes(), shown.as_bytes()));
        Ok(Peer::Web { token: right })
    }
}

fn shown_token(headers: &HeaderMap) -> Option<&str> {
    headers.get(AUTHORIZATION)?.to_str().ok()?.strip_prefix("Bearer ")
}

/// Takes as long whatever is different.
fn same(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && a.iter().zip(b).fold(0, |different, (a, b)| different | (a ^ b)) == 0
}

/// Whether a `Host` header names this machine in a way that no page from elsewhere can choose.
fn is_ours(host: &str, own: &str) -> bool {
    if host.parse::<SocketAddr>().is_ok() || host.parse::<IpAddr>().is_ok() {
        return true;
    }
    let (name, port) = host.rsplit_once(':').unwrap_or((host, ""));
    let named = name.eq_ignore_ascii_case("localhost") || !own.is_empty() && name.eq_ignore_ascii_case(own);
    let bracketed = name.strip_prefix('[').and_then(|name| name.strip_suffix(']'));
    let is_port = port.bytes().all(|byte| byte.is_ascii_digit());
    is_port && (named || bracketed.is_some_and(|name| name.parse::<IpAddr>().is_ok())) || host == "[::1]"
}

/// A token that this user alone can have written and read.
fn kept(file: &Path) -> Option<String> {
    let found = fs::symlink_metadata(file).ok()?;
    let ours = found.is_file() && found.uid() == rustix::process::geteuid().as_raw() && found.mode() & 0o077 == 0;
    let text = fs::read_to_string(file).ok()?;
    let good = text.len() == 2 * TOKEN_BYTES && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    (ours && good).then_some(text)
}

fn make(file: &Path) -> io::Result<String> {
    let mut bytes = [0; TOKEN_BYTES];
    fs::File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    let token: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    if let Some(folder) = file.parent() {
        fs::create_dir_all(folder)?;
    }
    let beside = file.with_extension("new");
    let _ = fs::remove_file(&beside);
    OpenOptions::new().write(true).create_new(true).mode(0o600).open(&beside)?.write_all(token.as_bytes())?;
    fs::rename(beside, file)?;
    Ok(token)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::sync::mpsc::unbounded_channel;

    #[test]
    fn names_that_a_page_could_choose_are_not_ours() {
        for good in ["127.0.0.1", "127.0.0.1:80", "[::1]:9", "[::1]", "localhost:1", "LocalHost", "gpu", "gpu:8000"] {
            assert!(is_ours(good, "gpu"), "{good}");
        }
        for bad in ["", "evil.example", "evil.example:80", "localhost.evil.example", "127.0.0.1.evil", "gpu2", ":80"] {
            assert!(!is_ours(bad, "gpu"), "{bad}");
        }
        assert!(!is_ours("", "") && !is_ours(":1", ""));
    }

    #[test]
    fn a_token_is_kept_and_others_cannot_give_one() {
        let place = tempfile::tempdir().unwrap();
        let web = || Web::new(unbounded_channel().0);
        let first = web().token(place.path()).unwrap();
        assert_eq!(first.len(), 2 * TOKEN_BYTES);
        assert_eq!(web().token(place.path()).unwrap(), first);
        let file = place.path().join("token");
        assert_eq!(fs::metadata(&file).unwrap().mode() & 0o777, 0o600);
        fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o644)).unwrap();
        assert_ne!(web().token(place.path()).unwrap(), first);
    }

    #[test]
    fn only_the_right_token_may_change_things() {
        let place = tempfile::tempdir().unwrap();
        let web = Web::new(unbounded_channel().0);
        let request = |token: &str| {
            let builder =
                Request::builder().header(HOST, "127.0.0.1:1").header(AUTHORIZATION, format!("Bearer {token}"));
            web.peer(&builder.body(()).unwrap())
        };
        assert_eq!(request("").unwrap(), Peer::Web { token: false });
        let token = web.token(place.path()).unwrap();
        assert_eq!(request(&token).unwrap(), Peer::Web { token: true });
        assert_eq!(request(&token[1..]).unwrap(), Peer::Web { token: false });
        assert!(web.peer(&Request::builder().header(HOST, "evil.example").body(()).unwrap()).is_err());
        assert!(web.peer(&Request::builder().body(()).unwrap()).is_err());
    }
}
