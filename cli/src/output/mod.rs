//! What commands print, for people and for programs.

pub mod bar;
pub mod figures;
pub mod files;
pub mod human;
pub mod json;
pub mod paint;
pub mod progress;

use std::io::{self, Write};

use weightfs::units::ByteSize;

use crate::exit::Failure;

/// A reader that has seen enough (`weightfs status | head -1`) is no failure.
pub fn print(text: &str) -> Result<(), Failure> {
    print_on(text).map(drop)
}

/// As [`print`], for what goes on: false where nobody reads any more.
pub fn print_on(text: &str) -> Result<bool, Failure> {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(Failure::failed(format!("cannot write to standard output: {error}"))),
    }
}

/// What is added where so many bytes were to go and did not.
pub fn staying(bytes: u64) -> String {
    match bytes {
        0 => String::new(),
        bytes => format!(", {} stay: pinned, or open or mapped by a program", ByteSize(bytes)),
    }
}
