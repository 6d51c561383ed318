//! What clients must not be able to do to the daemon, while somebody reads through it.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use serde_json::json;
use weightfs_tests::Mount;
use weightfs_tests::actor::BOB;
use weightfs_tests::api::Api;
use weightfs_tests::data::{Random, same_bytes};
use weightfs_tests::requirements::{Need, met};

use crate::{MIB, models};

/// How much more memory than before the daemon may take for all of this.
const MEMORY: u64 = 64 * MIB;

/// Bytes of memory of a process that are its own. Read where no command line is looked at.
fn private_memory(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("the daemon runs");
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).expect("the kernel says");
    line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") << 10
}

fn worker(mount: &Mount) -> u32 {
    mount.status().number("/worker/pid") as u32
}

/// Reads a file through the mount again and again until `attack` is over; every byte is compared.
fn while_somebody_reads(mount: &Mount, name: &str, attack: impl FnOnce()) -> u64 {
    let expected = fs::read(mount.source().join(name)).expect("read");
    let (over, rounds) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                let found = fs::read(mount.join(name)).expect("read");
                assert_eq!(same_bytes(&expected, &found, 0), Ok(()));
                rounds.fetch_add(1, Ordering::Relaxed);
            }
        });
        attack();
        over.store(true, Ordering::Relaxed);
    });
    rounds.into_inner()
}

#[test]
fn ten_thousand_connections_hurt_nobody() {
    if !met(&[Need::Mount, Need::Root]) {
        return;
    }
    let source = models(&[("a.safetensors", 24)]);
    let mount = Mount::start(source.path(), &["--ram", "64M", "--no-passthrough"]);
    let api = Api::of(mount.path());
    let before = private_memory(worker(&mount));
    let (mut refused, mut kept) = (0, Vec::new());
    let rounds = while_somebody_reads(&mount, "a.safetensors", || {
        // Of one user, who keeps all that he gets and says nothing.
        let bob = api.as_user(BOB);
        for number in 0..10_000 {
            let Ok(mut stream) = bob.connect() else { continue };
            stream.set_nonblocking(true).expect("set it");
            let mut first = [0; 12];
            match stream.read(&mut first) {
                Ok(_) => refused += 1,
                Err(_) if kept.len() < 200 => kept.push(stream),
                Err(_) => {}
            }
            // Others are served meanwhile.
            if number % 1000 == 0 {
                assert_eq!(api.get("/v1/mounts").status, 200);
            }
        }
    });
    assert!(rounds > 0, "the reader got nothing");
    assert_eq!(api.as_user(BOB + 1).get("/v1/mounts").status, 200, "another user has a place");
    let after = private_memory(worker(&mount));
    assert!(after < before + MEMORY, "from {before} to {after} bytes");
    let turned_away = api.get("/metrics").body;
    let count = turned_away.lines().find_map(|line| line.strip_prefix("weightfs_control_turned_away_total "));
    let count: u64 = count.and_then(|text| text.parse().ok()).expect("it is counted");
    assert!(count > 9_000, "{count} were turned away, of which {refused} have read that");
    drop(kept);
    mount.stop();
}

#[test]
fn garbage_huge_bodies_and_slow_senders_hurt_nobody() {
    if !met(&[Need::Mount]) {
        return;
    }
    let source = models(&[("a.safetensors", 24)]);
    let mount = Mount::start(source.path(), &["--ram", "64M", "--no-passthrough"]);
    let api = Api::of(mount.path());
    let before = private_memory(worker(&mount));
    let mut random = Random::from_environment();
    let connect = || {
        let stream = UnixStream::connect(api.socket()).expect("the daemon listens");
        stream.set_read_timeout(Some(Duration::from_secs(30))).expect("set it");
        stream.set_write_timeout(Some(Duration::from_secs(30))).expect("set it");
        stream
    };
    let rounds = while_somebody_reads(&mount, "a.safetensors", || {
        // Slow ones, which wait in the background for what is done to them.
        let mut slow: Vec<UnixStream> = (0..10).map(|_| connect()).collect();
        for (index, stream) in slow.iter_mut().enumerate() {
            let head =
                "POST /v1/pin HTTP/1.1\r\nhost: w\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n{";
            let part = if index % 2 == 0 { "GET /v1/sta" } else { head };
            stream.write_all(part.as_bytes()).expect("write");
        }
        for round in 0..200 {
            let mut stream = connect();
            let bytes: Vec<u8> = match round % 4 {
                0 => (0..2000).map(|_| random.below(256) as u8).collect(),
                1 => format!("GET /v1/files?{} HTTP/1.1\r\nhost: w\r\n\r\n", "a".repeat(random.below(20_000) as usize)).into(),
                2 => {
                    let length = random.below(1 << 40);
                    format!("POST /v1/pin HTTP/1.1\r\nhost: w\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{{").into()
                }
                _ => b"POST /v1/evict HTTP/1.1\r\nhost: w\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\nffffffffffffffff\r\n".to_vec(),
            };
            let _ = stream.write_all(&bytes);
            let _ = stream.shutdown(std::net::Shutdown::Write);
            let mut answer = Vec::new();
            let _ = stream.read_to_end(&mut answer);
            let answer = String::from_utf8_lossy(&answer).into_owned();
            assert!(
                answer.is_empty() || answer.starts_with("HTTP/1.1 4"),
                "{:?}: {answer}",
                String::from_utf8_lossy(&bytes)
            );
        }
        // A body that does not end.
        for _ in 0..4 {
            let mut stream = connect();
            let head = "POST /v1/pin HTTP/1.1\r\nhost: w\r\ncontent-type: application/json\r\ncontent-length: 1099511627776\r\n\r\n";
            stream.write_all(head.as_bytes()).expect("write");
            let sent = (0..200_000).take_while(|_| stream.write_all(&[b' '; 4096]).is_ok()).count();
            assert!(sent < 10_000, "{sent} pieces were taken");
        }
        // Whoever was slow is sent away, in ten seconds and not before.
        for stream in &mut slow {
            let mut answer = String::new();
            let _ = stream.read_to_string(&mut answer);
            assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 408"), "{answer}");
        }
    });
    assert!(rounds > 0, "the reader got nothing");
    let after = private_memory(worker(&mount));
    assert!(after < before + MEMORY, "from {before} to {after} bytes");
    assert!(!mount.log().contains("panicked"), "{}", mount.log());
    mount.stop();
}

#[test]
fn whoever_does_not_take_the_answer_is_let_go() {
    if !met(&[Need::Mount]) {
        return;
    }
    let source = models(&[("a.safetensors", 24)]);
    let mount = Mount::start(source.path(), &["--ram", "64M"]);
    let api = Api::of(mount.path());
    let before = private_memory(worker(&mount));
    let deaf: Vec<UnixStream> = (0..20)
        .map(|_| {
            let mut stream = UnixStream::connect(api.socket()).expect("the daemon listens");
            stream.set_nonblocking(true).expect("set it");
            let request = "GET /v1/openapi.json HTTP/1.1\r\nhost: w\r\n\r\n".repeat(500);
            let _ = stream.write_all(request.as_bytes());
            stream
        })
        .collect();
    // Those who hear events and read none.
    let listeners: Vec<_> = (0..5).map(|_| api.events("")).collect();
    let path = mount.join("a.safetensors");
    for _ in 0..100 {
        api.post("/v1/pin", &json!({"path": path, "tensors": "none"})).json();
        api.post("/v1/unpin", &json!({"path": path})).json();
    }
    let after = private_memory(worker(&mount));
    assert!(after < before + MEMORY, "from {before} to {after} bytes");
    assert_eq!(api.get("/v1/status").status, 200);
    drop((deaf, listeners));
    mount.stop();
}
