//! flock and POSIX locks exclude across processes.

use std::fs;

use rustix::io::Errno;
use weightfs_tests::{Actor, Pair};

use crate::{SMALL, can_mount};

/// Two processes with one open file each, and what the first may still do after each act of the other.
fn two_processes(script: impl Fn(&mut Actor, &str, &mut Actor, &str) -> Vec<Result<String, Errno>>) {
    if !can_mount() {
        return;
    }
    let pair = Pair::new(SMALL);
    pair.same("make", |root| fs::write(root.join("f.safetensors"), vec![1; 3 << 20]).expect("write"));
    pair.same("locks", |root| {
        let path = root.join("f.safetensors");
        let path = path.to_str().expect("UTF-8");
        let (mut first, mut second) = (Actor::start(0), Actor::start(0));
        let a = first.act(&["open", path, "rw"]).expect("open");
        let b = second.act(&["open", path, "rw"]).expect("open");
        script(&mut first, &a, &mut second, &b)
    });
    pair.stop();
}

#[test]
fn flock_excludes_another_process() {
    two_processes(|first, a, second, b| {
        let outcomes = vec![
            first.act(&["flock", a, "exclusive"]),
            second.act(&["flock", b, "exclusive"]),
            second.act(&["flock", b, "shared"]),
            first.act(&["flock", a, "shared"]),
            second.act(&["flock", b, "shared"]),
            first.act(&["flock", a, "exclusive"]),
            second.act(&["close", b]),
            first.act(&["flock", a, "exclusive"]),
            first.act(&["flock", a, "unlock"]),
        ];
        assert_eq!(outcomes[1], Err(Errno::AGAIN));
        outcomes
    });
}

#[test]
fn record_locks_exclude_another_process() {
    two_processes(|first, a, second, b| {
        let outcomes = vec![
            first.act(&["lock", a, "write", "0", "100"]),
            second.act(&["conflict", b, "read", "50", "1"]),
            second.act(&["lock", b, "read", "50", "1"]),
            second.act(&["lock", b, "write", "100", "0"]),
            first.act(&["lock", a, "read", "5000000", "1"]),
            first.act(&["lock", a, "unlock", "0", "60"]),
            second.act(&["lock", b, "read", "50", "1"]),
            second.act(&["lock", b, "read", "59", "2"]),
            second.act(&["close", b]),
            first.act(&["lock", a, "write", "0", "0"]),
        ];
        assert_eq!(outcomes[1].as_deref(), Ok("true"));
        assert_eq!(outcomes[2], Err(Errno::AGAIN));
        assert_eq!(outcomes[6], Ok(String::new()));
        assert_eq!(outcomes[7], Err(Errno::AGAIN));
        outcomes
    });
}

#[test]
fn locks_end_with_their_process() {
    two_processes(|first, a, second, b| {
        let mut outcomes = vec![first.act(&["flock", a, "exclusive"]), first.act(&["lock", a, "write", "0", "0"])];
        let ended = std::mem::replace(first, Actor::start(0));
        drop(ended);
        outcomes.push(second.act(&["flock", b, "exclusive"]));
        outcomes.push(second.act(&["lock", b, "write", "0", "0"]));
        assert_eq!(outcomes, vec![Ok(String::new()); 4]);
        outcomes
    });
}
