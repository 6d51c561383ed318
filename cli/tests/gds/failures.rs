//! Reads that fail: an error that says why, never wrong bytes, and the next order is carried out.

use std::time::Duration;

use weightfs::gpu::process::GdsError;

use super::{Client, MIB, Machine, check, order};

const LEN: u64 = 40 * MIB;
const SPANS: [(u64, u64, u64); 1] = [(100, 39 * MIB, 0)];

/// What a read comes to under `script`: its error, or nothing after the bytes were compared.
fn outcome(machine: &Machine, patience: Duration) -> Result<(), GdsError> {
    let client = Client::new();
    let (file, bytes) = machine.file(LEN);
    let memory = client.memory(LEN);
    let gds = machine.gds().patience(patience);
    gds.fill(&file, &order(LEN, &SPANS, Some(&memory), LEN), &mut |_| true)?;
    check(&memory, &bytes, &SPANS);
    Ok(())
}

fn refusal(machine: &Machine) -> String {
    match outcome(machine, Duration::from_secs(20)) {
        Err(GdsError::Refused(reason)) => reason,
        other => panic!("not refused: {other:?}"),
    }
}

#[test]
fn every_failing_call_is_an_error_or_has_another_way() {
    for function in [
        "cuInit",
        "cuDeviceGetCount",
        "cuDeviceGet",
        "cuDevicePrimaryCtxRetain",
        "cuCtxPushCurrent_v2",
        "cuMemAlloc_v2",
        "cuStreamCreate",
        "cuIpcOpenMemHandle_v2",
        "cuMemcpyDtoDAsync_v2",
        "cuStreamSynchronize",
        "cuFileDriverOpen",
        "cuFileDriverGetProperties",
        "cuFileHandleRegister",
        "cuFileBatchIOSubmit",
        "cuFileBatchIOGetStatus",
        "in_flight",
    ] {
        let reason = refusal(&Machine::new(&format!("fail={function}:0:999")));
        assert!(
            reason.contains("999") || reason.contains("-1") || reason.contains("batch failed"),
            "{function}: {reason}"
        );
        // In the midst of it: what is not refused has the right bytes.
        let third = outcome(&Machine::new(&format!("fail={function}:3:999")), Duration::from_secs(20));
        assert!(!matches!(third, Err(GdsError::Lost(_) | GdsError::Start(_))), "{function}: {third:?}");
    }
    // These cost speed and nothing else.
    for function in ["cuFileBufRegister", "cuFileBatchIOSetUp", "cuFileGetVersion"] {
        let done = outcome(&Machine::new(&format!("fail={function}:0:5030")), Duration::from_secs(20));
        assert!(done.is_ok(), "{function}: {done:?}");
    }
    let reason = refusal(&Machine::new("mode=compat fail=cuFileRead:2:5"));
    assert!(reason.contains("Input/output error"), "{reason}");
    let reason = refusal(&Machine::new("mode=compat fail=cuFileRead:2:5008"));
    assert!(reason.contains("this filesystem is not supported"), "{reason}");
}

#[test]
fn a_process_that_dies_or_hangs_is_replaced() {
    for script in ["abort=cuInit", "abort=cuFileDriverOpen", "abort=cuFileHandleRegister"] {
        let lost = outcome(&Machine::new(script), Duration::from_secs(20));
        assert!(matches!(lost, Err(GdsError::Lost(_))), "{script}: {lost:?}");
    }
    for script in ["hang=cuInit", "hang=cuFileBatchIOSubmit"] {
        let lost = outcome(&Machine::new(script), Duration::from_millis(300));
        assert!(matches!(lost, Err(GdsError::Lost(_))), "{script}: {lost:?}");
    }
    let machine = Machine::new("fail=cuFileHandleRegister:2:5030");
    let client = Client::new();
    let (file, bytes) = machine.file(LEN);
    let memory = client.memory(LEN);
    let gds = machine.gds();
    let fill = || gds.fill(&file, &order(LEN, &SPANS, Some(&memory), LEN), &mut |_| true);
    fill().expect("the first");
    assert!(matches!(fill(), Err(GdsError::Refused(_))));
    fill().expect("by another process, whose second call is not made yet");
    check(&memory, &bytes, &SPANS);
}

#[test]
fn a_library_that_damages_the_lowest_descriptor_is_survived() {
    outcome(&Machine::new("corrupt=cuFileDriverOpen"), Duration::from_secs(20)).expect("filled");
}

#[test]
fn without_its_device_cufile_is_not_opened() {
    let machine = Machine::new("");
    std::fs::remove_dir(machine.path().join("proc/driver/nvidia-fs")).expect("remove");
    assert!(refusal(&machine).contains("modprobe nvidia-fs"));
    assert!(!machine.log().contains("cuFileDriverOpen"));
    std::fs::write(machine.path().join("etc/cufile.json"), "{\"properties\": {\"allow_compat_mode\": true}}\n")
        .expect("write");
    outcome(&machine, Duration::from_secs(20)).expect("filled");
}

#[test]
fn what_is_missing_or_wrong_is_said() {
    assert!(refusal(&Machine::new("version=11000")).contains("for CUDA 11.0; update it"));
    assert!(refusal(&Machine::new("").without(&["cuIpcOpenMemHandle_v2"])).contains("has no cuIpcOpenMemHandle_v2"));
    assert!(refusal(&Machine::new("").without(&["cuFileRead"])).contains("has no cuFileRead"));
    outcome(&Machine::new("").without(&["cuFileBatchIOSetUp", "cuFileGetVersion"]), Duration::from_secs(20))
        .expect("one read after the other");
    let mut machine = Machine::new("");
    machine.libraries = "/nonexistent".into();
    assert!(refusal(&machine).contains("cannot be loaded"));

    let machine = Machine::new("mode=compat");
    let client = Client::new();
    let (file, _) = machine.file(LEN);
    let memory = client.memory(LEN);
    let gds = machine.gds();
    let good = order(LEN, &SPANS, Some(&memory), LEN);
    let refused = |order: weightfs::gpu::protocol::Order| match gds.fill(&file, &order, &mut |_| true) {
        Err(GdsError::Refused(reason)) => reason,
        other => panic!("not refused: {other:?}"),
    };
    let with = |change: fn(&mut weightfs::gpu::protocol::Order)| {
        let mut order = good.clone();
        change(&mut order);
        order
    };
    assert!(refused(with(|order| order.direct_only = true)).contains("through RAM"));
    assert!(refused(with(|order| order.device = 7)).contains("no cuda:7; devices here: 1"));
    assert!(refused(with(|order| order.into = Some("00".to_owned()))).contains("handle"));
    assert!(refused(with(|order| order.spans = vec![(0, LEN + 1, 0)])).contains("do not lie in a file"));
    assert!(refused(with(|order| order.spans = vec![(0, 2, LEN - 1)])).contains("do not lie in a file"));
    assert!(refused(with(|order| order.size_bytes = 0)).contains("nothing to read"));
    // The file is shorter than it was said to be.
    let order = with(|order| {
        order.file_bytes += 4096;
        order.spans = vec![(LEN - 10, 2000, 0)];
    });
    assert!(refused(order).contains("cut short"));
    gds.fill(&file, &good, &mut |_| true).expect("after all that");
}
