//! Reads that succeed.

use std::time::{Duration, Instant};

use weightfs::gpu::mode::Mode;

use super::{Client, MIB, Machine, check, order};

/// Longer than both halves of the buffers together, unaligned everywhere, in two parts and to the end.
const LEN: u64 = 150 * MIB + 12345;
const SPANS: [(u64, u64, u64); 3] =
    [(1237, 140 * MIB, 64), (141 * MIB, 17, 140 * MIB + 256), (LEN - 4000, 4000, 140 * MIB + 512)];
const SIZE: u64 = 141 * MIB;

/// Waits until the process has written what it leaves behind.
fn ended(machine: &Machine) -> String {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !machine.log().contains("cuDevicePrimaryCtxRelease_v2") && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(5));
    }
    machine.log()
}

fn read(script: &str) -> (Mode, String) {
    let machine = Machine::new(script);
    let client = Client::new();
    let (file, bytes) = machine.file(LEN);
    let memory = client.memory(SIZE);
    let gds = machine.gds();
    let mut heard = 0;
    let filled = gds
        .fill(&file, &order(LEN, &SPANS, Some(&memory), SIZE), &mut |bytes| {
            heard = bytes;
            true
        })
        .expect("filled");
    assert_eq!(filled.bytes, SPANS.iter().map(|span| span.1).sum::<u64>());
    assert!(!filled.was_held && heard >= 64 * MIB);
    check(&memory, &bytes, &SPANS);
    (filled.mode, machine.log())
}

#[test]
fn reads_are_aligned_and_batched() {
    for (name, mode) in [("gds", Mode::Gds), ("p2pdma", Mode::P2pdma)] {
        let (found, log) = read(&format!("mode={name}"));
        assert_eq!(found, mode);
        assert!(log.contains("cuFileBufRegister") && log.contains("cuFileBatchIOSubmit"));
        assert!(!log.contains("unaligned") && !log.contains("cuFileRead"), "{log}");
        let reads = log.lines().filter(|line| line.contains(" read ")).count() as u64;
        assert_eq!(reads, (140 * MIB).div_ceil(16 * MIB) + 2, "{log}");
    }
}

#[test]
fn compatibility_mode_is_recognised_and_reads_one_after_the_other() {
    let (mode, log) = read("mode=compat");
    assert_eq!(mode, Mode::Compatibility);
    assert!(log.contains("cuFileRead") && !log.contains("cuFileBatchIOSubmit"), "{log}");
}

#[test]
fn short_reads_are_continued_and_small_devices_have_small_buffers() {
    read("short=3000000");
    read("short=5000000 batch=0 mode=compat");
    // What the client has of it is another process's.
    let (_, log) = read("vram=20000000");
    assert!(log.contains("read 2097152 at"), "{log}");
}

#[test]
fn what_was_read_ahead_is_copied_within_the_device() {
    let machine = Machine::new("");
    let client = Client::new();
    let (file, bytes) = machine.file(3 * MIB);
    let whole = [(0, 3 * MIB, 0)];
    let gds = machine.gds();
    let ahead = order(3 * MIB, &whole, None, 3 * MIB);
    assert!(!gds.fill(&file, &ahead, &mut |_| true).expect("filled").was_held);
    assert!(gds.fill(&file, &ahead, &mut |_| true).expect("filled").was_held, "once is enough");
    let reads = |log: &str| log.matches(" read ").count();
    let before = reads(&machine.log());
    let (memory, spans) = (client.memory(2 * MIB), [(1000, 2 * MIB - 100, 50)]);
    let load = order(3 * MIB, &spans, Some(&memory), 2 * MIB);
    assert!(gds.fill(&file, &load, &mut |_| true).expect("filled").was_held);
    check(&memory, &bytes, &spans);
    assert_eq!(reads(&machine.log()), before);
    // It was given away, and is read anew.
    assert!(!gds.fill(&file, &load, &mut |_| true).expect("filled").was_held);
    check(&memory, &bytes, &spans);
}

#[test]
fn a_process_whose_daemon_goes_gives_everything_back() {
    let machine = Machine::new("");
    let client = Client::new();
    let (file, _) = machine.file(MIB);
    let memory = client.memory(MIB);
    // Closing the socket is all that it hears of the end: here without the signal that follows.
    let (socket, theirs) = std::os::unix::net::UnixStream::pair().expect("a pair");
    let mut child = std::process::Command::new(env!("CARGO_BIN_EXE_weightfs"))
        .args(["gds", "serve"])
        .envs(machine.environment())
        .stdin(std::os::fd::OwnedFd::from(theirs))
        .spawn()
        .expect("start");
    let wanted = order(MIB, &[(0, MIB, 0)], Some(&memory), MIB);
    let ahead = weightfs::gpu::protocol::Order { content: "other".to_owned(), into: None, ..wanted.clone() };
    for order in [&wanted, &ahead] {
        weightfs::gpu::process::send(&socket, &file, order).expect("send");
        weightfs::gpu::process::receive(&socket).expect("an answer");
    }
    drop(socket);
    assert!(child.wait().expect("wait").success());
    let log = ended(&machine);
    assert!(!log.contains("leaked"), "{log}");
    for (made, gone) in [
        ("cuMemAlloc_v2", "cuMemFree_v2"),
        ("cuIpcOpenMemHandle_v2", "cuIpcCloseMemHandle"),
        ("cuStreamCreate", "cuStreamDestroy_v2"),
        ("cuFileHandleRegister", "cuFileHandleDeregister"),
        ("cuFileBufRegister", "cuFileBufDeregister"),
        ("cuFileBatchIOSetUp", "cuFileBatchIODestroy"),
        ("cuFileDriverOpen", "cuFileDriverClose"),
    ] {
        assert_eq!(log.matches(made).count(), log.matches(gone).count(), "{made}: {log}");
        assert!(log.contains(made));
    }
}
