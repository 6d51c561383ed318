//! Sources that fail: errors, short reads, no answer, gone for a while. What is served is right or an error, and nobody
//! is disturbed who did not ask for it.

mod hung;
mod random;
mod reads;
mod replaced;
mod vanish;
mod writes;

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use rustix::io::Errno;
use weightfs_tests::data;
use weightfs_tests::requirements::{Need, met};
use weightfs_tests::system::{let_files_settle, temporary_folder};
use weightfs_tests::{Faulty, Mount};

const MIB: u64 = 1 << 20;

/// What is not held up answers in milliseconds; only a broken daemon needs this long.
const PATIENCE: Duration = Duration::from_secs(20);

fn can_mount() -> bool {
    met(&[Need::Mount, Need::Root])
}

/// A faulty source with these models: name, seed, size in bytes. The folder behind it goes with the first value.
fn faulty(models: &[(&str, u64, u64)]) -> (tempfile::TempDir, Faulty) {
    let folder = temporary_folder("backing");
    for (name, seed, size) in models {
        data::write_file(&folder.path().join(name), *seed, *size);
    }
    let_files_settle();
    let faulty = Faulty::over(folder.path());
    (folder, faulty)
}

/// Reads a range of a new open, on a thread of its own: it may hang.
fn read_aside(mount: &Mount, name: &str, offset: u64, length: usize) -> Receiver<Result<Vec<u8>, Errno>> {
    let (path, (send, receive)) = (mount.join(name), channel());
    std::thread::spawn(move || {
        // Nobody may wait for it any more.
        let _ = send.send(File::open(path).and_then(|file| read_at(&file, offset, length)).map_err(of_io));
    });
    receive
}

fn of_io(error: std::io::Error) -> Errno {
    Errno::from_io_error(&error).expect("the kernel gives numbers")
}

/// What one `pread` gives.
fn read_at(file: &File, offset: u64, length: usize) -> std::io::Result<Vec<u8>> {
    let mut bytes = vec![0; length];
    let length = file.read_at(&mut bytes, offset)?;
    bytes.truncate(length);
    Ok(bytes)
}

/// Reads all of `name` in pieces and checks it.
fn is_right(mount: &Mount, name: &str, seed: u64, size: u64) -> Result<(), String> {
    let file = File::open(mount.join(name)).map_err(|error| format!("open: {error}"))?;
    let mut offset = 0;
    while offset < size {
        let bytes = read_at(&file, offset, 1 << 20).map_err(|error| format!("at {offset}: {error}"))?;
        if bytes.is_empty() {
            return Err(format!("it ends at {offset}"));
        }
        data::check(seed, offset, &bytes)?;
        offset += bytes.len() as u64;
    }
    Ok(())
}
