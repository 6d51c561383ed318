//! A second process that acts on files, as the same or as another user. The program is `src/bin/weightfs-test-actor.rs`.

use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use rustix::io::Errno;

/// A user of the tests who is nobody on real machines.
pub const ALICE: u32 = 61001;
/// Another one.
pub const BOB: u32 = 61002;

/// The running process. It ends with this value, and lets go of its files and locks then.
pub struct Actor {
    child: Child,
    requests: Option<ChildStdin>,
    replies: BufReader<ChildStdout>,
}

impl Actor {
    /// One that runs as user and group `id`; 0 stays who the test is.
    pub fn start(id: u32) -> Actor {
        let mut command = Command::new(Actor::program());
        command.arg(id.to_string());
        Actor::of(command)
    }

    /// The program.
    pub fn program() -> PathBuf {
        let test = std::env::current_exe().expect("a test is a program");
        test.ancestors().nth(2).expect("target/<profile>/deps/<test>").join("weightfs-test-actor")
    }

    /// One that `command` comes to run.
    pub fn of(mut command: Command) -> Actor {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("start the actor, which cargo builds with the tests");
        let requests = child.stdin.take();
        let replies = BufReader::new(child.stdout.take().expect("piped"));
        Actor { child, requests, replies }
    }

    /// Its process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Asks for one act, such as `["create", path, "644"]`, and returns what it gives: a handle, a text, nothing.
    ///
    /// # Errors
    /// The errno that the act gave there.
    pub fn act(&mut self, request: &[&str]) -> Result<String, Errno> {
        let stdin = self.requests.as_mut().expect("open until drop");
        writeln!(stdin, "{}", request.join("\t")).expect("the actor listens");
        let mut reply = String::new();
        self.replies.read_line(&mut reply).expect("the actor answers");
        let reply = reply.trim_end_matches('\n');
        match reply.split_once('\t').expect("a verdict and a value") {
            ("ok", value) => Ok(value.to_owned()),
            (_, number) => Err(Errno::from_raw_os_error(number.parse().expect("an errno"))),
        }
    }
}

impl Drop for Actor {
    fn drop(&mut self) {
        self.requests = None;
        let _ = self.child.wait();
    }
}
