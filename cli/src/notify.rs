//! Tells a service manager that the service is ready (sd_notify(3)): one datagram.

use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

use crate::env_vars::NOTIFY_SOCKET;

/// Does nothing where no service manager listens.
pub fn ready() {
    let Some(socket) = std::env::var_os(NOTIFY_SOCKET).filter(|socket| !socket.is_empty()) else { return };
    if let Err(error) = send(&socket, b"READY=1\n") {
        tracing::warn!(%error, ?socket, "cannot tell the service manager that the mounts are ready");
    }
}

/// A name that begins with '@' is in the abstract namespace.
fn send(socket: &OsStr, message: &[u8]) -> io::Result<()> {
    let address = match socket.as_bytes() {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
        _ => SocketAddr::from_pathname(socket)?,
    };
    UnixDatagram::unbound()?.send_to_addr(message, &address).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_kinds_of_address_are_reached() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("notify");
        let name = format!("weightfs-notify-test-{}", std::process::id());
        let abstract_name = SocketAddr::from_abstract_name(&name).unwrap();
        for (listener, address) in [
            (UnixDatagram::bind(&path).unwrap(), path.into_os_string()),
            (UnixDatagram::bind_addr(&abstract_name).unwrap(), format!("@{name}").into()),
        ] {
            send(&address, b"READY=1\n").unwrap();
            let mut received = [0; 64];
            let length = listener.recv(&mut received).unwrap();
            assert_eq!(&received[..length], b"READY=1\n");
        }
    }
}
