//! A process that does what it is told with files: one tab-separated request a line on standard input, one reply a
//! line on standard output (`ok\tVALUE` or `err\tERRNO`). Started by `weightfs_tests::Actor`.

use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, Write};
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt, PermissionsExt};
use std::time::Duration;

use nix::unistd::{Gid, Uid, setgid, setgroups, setuid};
use rustix::fs::{Access, FlockOperation, Mode};
use weightfs_tests::data::digest;
use weightfs_tests::locks::{RecordLock, record_lock, would_conflict};
use weightfs_tests::maps::{Map, MapKind};

/// Bytes, large enough to be given back to the system when they are freed.
const STEP: i64 = 1 << 20;

fn main() {
    let id: u32 = std::env::args().nth(1).and_then(|text| text.parse().ok()).expect("usage: weightfs-test-actor UID");
    if id != 0 {
        setgroups(&[]).expect("only root may start an actor as somebody else");
        setgid(Gid::from_raw(id)).expect("set the group");
        setuid(Uid::from_raw(id)).expect("set the user");
    }
    let mut files = Files::default();
    for line in io::stdin().lock().lines() {
        let line = line.expect("requests are text");
        let request: Vec<&str> = line.split('\t').collect();
        let reply = match files.act(&request) {
            Ok(value) => format!("ok\t{value}"),
            Err(error) => format!("err\t{}", error.raw_os_error().expect("every error comes from the kernel")),
        };
        println!("{reply}");
        io::stdout().flush().expect("somebody listens");
    }
}

#[derive(Default)]
struct Files {
    open: HashMap<u32, File>,
    next: u32,
    memory: Vec<Vec<u8>>,
}

impl Files {
    fn act(&mut self, request: &[&str]) -> io::Result<String> {
        let done = |()| String::new();
        match *request {
            ["create", path, mode] => {
                let mut options = OpenOptions::new();
                options.read(true).write(true).create_new(true).mode(octal(mode));
                self.keep(options.open(path)?)
            }
            ["open", path, how] => {
                let mut options = OpenOptions::new();
                options.read(how.contains('r')).write(how.contains('w')).truncate(how.contains('t'));
                self.keep(options.open(path)?)
            }
            ["close", handle] => {
                self.open.remove(&handle.parse().expect("a handle"));
                Ok(String::new())
            }
            ["read", handle, offset, len] => {
                let mut bytes = vec![0; number(len) as usize];
                let n = self.file(handle).read_at(&mut bytes, number(offset) as u64)?;
                Ok(String::from_utf8_lossy(&bytes[..n]).into_owned())
            }
            ["write", handle, offset, text] => {
                self.file(handle).write_all_at(text.as_bytes(), number(offset) as u64).map(done)
            }
            ["map", path] => {
                let file = File::open(path)?;
                let map = Map::new(&file, file.metadata()?.len() as usize, MapKind::Private)?;
                drop(file);
                Ok(digest(&map.to_vec()))
            }
            // As a program that loads a model does: step by step, at some hundred MB/s.
            ["allocate", bytes] => {
                for _ in 0..number(bytes) / STEP {
                    self.memory.push(vec![1; STEP as usize]);
                    std::thread::sleep(Duration::from_millis(10));
                }
                Ok(String::new())
            }
            ["free"] => {
                self.memory.clear();
                Ok(String::new())
            }
            ["umask", mode] => {
                rustix::process::umask(Mode::from_raw_mode(octal(mode)));
                Ok(String::new())
            }
            ["mkdir", path, mode] => fs::DirBuilder::new().mode(octal(mode)).create(path).map(done),
            ["symlink", target, path] => std::os::unix::fs::symlink(target, path).map(done),
            ["link", from, to] => fs::hard_link(from, to).map(done),
            ["rename", from, to] => fs::rename(from, to).map(done),
            ["unlink", path] => fs::remove_file(path).map(done),
            ["rmdir", path] => fs::remove_dir(path).map(done),
            ["chmod", path, mode] => fs::set_permissions(path, fs::Permissions::from_mode(octal(mode))).map(done),
            ["chown", path, id] => std::os::unix::fs::chown(path, Some(number(id) as u32), None).map(done),
            ["truncate", path, len] => OpenOptions::new().write(true).open(path)?.set_len(number(len) as u64).map(done),
            ["list", path] => fs::read_dir(path).map(|entries| entries.count().to_string()),
            ["stat", path] => fs::symlink_metadata(path).map(|found| found.len().to_string()),
            ["access", path, how] => {
                let mut wanted = Access::EXISTS;
                wanted.set(Access::READ_OK, how.contains('r'));
                wanted.set(Access::WRITE_OK, how.contains('w'));
                wanted.set(Access::EXEC_OK, how.contains('x'));
                Ok(rustix::fs::access(path, wanted).map(done)?)
            }
            ["flock", handle, how] => {
                let operation = match how {
                    "shared" => FlockOperation::NonBlockingLockShared,
                    "exclusive" => FlockOperation::NonBlockingLockExclusive,
                    _ => FlockOperation::NonBlockingUnlock,
                };
                Ok(rustix::fs::flock(self.file(handle), operation).map(done)?)
            }
            ["lock", handle, how, start, len] => {
                Ok(record_lock(self.file(handle), kind(how), number(start), number(len)).map(done)?)
            }
            ["conflict", handle, how, start, len] => {
                let conflict = would_conflict(self.file(handle), kind(how), number(start), number(len))?;
                Ok(conflict.to_string())
            }
            _ => panic!("not an act: {request:?}"),
        }
    }

    fn keep(&mut self, file: File) -> io::Result<String> {
        self.next += 1;
        self.open.insert(self.next, file);
        Ok(self.next.to_string())
    }

    fn file(&self, handle: &str) -> &File {
        &self.open[&handle.parse().expect("a handle")]
    }
}

fn kind(how: &str) -> RecordLock {
    match how {
        "read" => RecordLock::Read,
        "write" => RecordLock::Write,
        _ => RecordLock::Unlock,
    }
}

fn number(text: &str) -> i64 {
    text.parse().expect("a number")
}

fn octal(text: &str) -> u32 {
    u32::from_str_radix(text, 8).expect("a mode")
}
