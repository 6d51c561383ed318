//! One line each way, within a length and a time, whatever the other side does.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Instant;

#[derive(Debug, thiserror::Error)]
pub(crate) enum LineError {
    #[error("the line is longer than {0} bytes")]
    TooLong(usize),
    #[error("the line did not come in time")]
    TimedOut,
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// Reads up to a newline or the end, both left out, at most `limit` bytes. Whatever follows the newline is dropped.
pub(crate) fn read_line(stream: &UnixStream, limit: usize, until: Instant) -> Result<Vec<u8>, LineError> {
    let mut line = Vec::new();
    let mut chunk = [0; 8 << 10];
    loop {
        let wait = until.checked_duration_since(Instant::now()).filter(|wait| !wait.is_zero());
        stream.set_read_timeout(Some(wait.ok_or(LineError::TimedOut)?))?;
        let mut source = stream;
        let count = match source.read(&mut chunk) {
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            // The time-out is up, and so is the check above.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
            Err(error) => return Err(error.into()),
        };
        let received = &chunk[..count];
        let end = received.iter().position(|byte| *byte == b'\n');
        let part = &received[..end.unwrap_or(count)];
        if line.len() + part.len() >= limit {
            return Err(LineError::TooLong(limit));
        }
        line.extend_from_slice(part);
        if end.is_some() || count == 0 {
            return Ok(line);
        }
    }
}

/// Writes `line` and a newline.
pub(crate) fn write_line(stream: &UnixStream, mut line: Vec<u8>, until: Instant) -> Result<(), LineError> {
    line.push(b'\n');
    let mut rest = line.as_slice();
    while !rest.is_empty() {
        let wait = until.checked_duration_since(Instant::now()).filter(|wait| !wait.is_zero());
        stream.set_write_timeout(Some(wait.ok_or(LineError::TimedOut)?))?;
        let mut target = stream;
        match target.write(rest) {
            Ok(0) => return Err(io::Error::from(io::ErrorKind::WriteZero).into()),
            Ok(count) => rest = &rest[count..],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(10)
    }

    #[test]
    fn a_line_ends_at_its_newline_or_with_the_stream() {
        let (near, mut far) = UnixStream::pair().unwrap();
        far.write_all(b"first\nsecond").unwrap();
        assert_eq!(read_line(&near, 100, soon()).unwrap(), b"first");

        let (near, mut far) = UnixStream::pair().unwrap();
        far.write_all(b"whole").unwrap();
        drop(far);
        assert_eq!(read_line(&near, 100, soon()).unwrap(), b"whole");
    }

    #[test]
    fn the_limit_counts_the_newline() {
        for (text, fits) in [("123", true), ("1234", false)] {
            let (near, far) = UnixStream::pair().unwrap();
            write_line(&far, text.into(), soon()).unwrap();
            match read_line(&near, 4, soon()) {
                Ok(line) => assert!(fits && line == text.as_bytes()),
                Err(error) => assert!(!fits && matches!(error, LineError::TooLong(4)), "{error}"),
            }
        }
    }

    #[test]
    fn nobody_waits_for_a_silent_or_deaf_peer_for_ever() {
        let (near, _far) = UnixStream::pair().unwrap();
        let until = Instant::now() + Duration::from_millis(20);
        assert!(matches!(read_line(&near, 100, until), Err(LineError::TimedOut)));
        let until = Instant::now() + Duration::from_millis(20);
        assert!(matches!(write_line(&near, vec![b'x'; 16 << 20], until), Err(LineError::TimedOut)));
    }
}
