//! What commands print, for people and for programs.

pub mod bar;
pub mod figures;
pub mod human;
pub mod json;
pub mod paint;
pub mod progress;

use std::io::{self, Write};

use crate::exit::Failure;

/// A reader that has seen enough (`weightfs status | head -1`) is no failure.
pub fn print(text: &str) -> Result<(), Failure> {
    match io::stdout().lock().write_all(text.as_bytes()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(Failure::failed(format!("cannot write to standard output: {error}")))
        }
        _ => Ok(()),
    }
}
