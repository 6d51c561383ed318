//! What the program says of a machine.

use std::process::{Command, Output};

use serde_json::Value;

use super::Machine;

fn run(machine: &Machine, half: &str) -> Output {
    Command::new(env!("CARGO_BIN_EXE_weightfs"))
        .args(["gds", half])
        .envs(machine.environment())
        .output()
        .expect("run the program")
}

fn ask(machine: &Machine, half: &str) -> Value {
    let output = run(machine, half);
    assert!(output.status.success(), "{output:?}");
    serde_json::from_slice(&output.stdout).expect("JSON")
}

#[test]
fn devices_are_listed_and_a_registration_is_tried() {
    let machine = Machine::new("devices=2 vram=5000000000");
    let found = ask(&machine, "driver");
    assert_eq!(found["cuda_version"], "12.8");
    let device = &found["devices"][1];
    assert_eq!((device["name"].as_str(), device["bus_id"].as_str()), (Some("Stand-in 1"), Some("0000:02:00.0")));
    assert_eq!(
        (device["memory_bytes"].as_u64(), device["direct_uploads"].as_bool()),
        (Some(5_000_000_000), Some(true))
    );
    let log = machine.log();
    assert_eq!(device["registered_bytes"], 1u64 << 30);
    assert_eq!(log.matches("registered 67108864 flags 9").count(), 2 * 16);
    assert_eq!(log.matches("cuMemHostUnregister").count(), 2 * 16);
    assert!(!log.contains("leaked"), "{log}");
}

#[test]
fn what_keeps_a_device_from_direct_uploads_is_said() {
    for (script, reason) in [
        ("read_only=0", "may only be read"),
        ("register_bytes=4096", "OUT_OF_MEMORY"),
        ("fail=cuMemHostRegister_v2:0:801", "NOT_SUPPORTED"),
    ] {
        let found = ask(&Machine::new(script), "driver");
        assert_eq!(found["devices"][0]["direct_uploads"], false);
        assert!(found["devices"][0]["reason"].as_str().is_some_and(|text| text.contains(reason)), "{found}");
    }
    let found = ask(&Machine::new("").without(&["cuMemHostRegister_v2"]), "driver");
    assert_eq!(found["devices"][0]["direct_uploads"], false);
    let found = ask(&Machine::new("fail=cuMemHostUnregister:3:713"), "driver");
    assert_eq!(found["devices"][0]["direct_uploads"], false);
}

#[test]
fn limits_on_registration_are_found_out() {
    for script in ["register_bytes=200000000", "register_number=2", "fail=cuMemHostRegister_v2:3:2"] {
        let machine = Machine::new(script);
        let device = ask(&machine, "driver")["devices"][0].clone();
        assert_eq!(device["direct_uploads"], true, "{device}");
        assert_eq!(device["registered_bytes"], 128u64 << 20, "{device}");
        assert!(device["reason"].as_str().is_some_and(|text| text.contains("no more than 128.0 MiB")), "{device}");
        assert!(!machine.log().contains("leaked"), "{}", machine.log());
    }
}

#[test]
fn what_is_wrong_with_a_driver_is_said() {
    for (script, reason) in [
        ("version=11000", "for CUDA 11.0; update it"),
        ("devices=0", "NO_DEVICE"),
        ("fail=cuInit:0:999", "cuInit failed with CUDA_ERROR_UNKNOWN (999)"),
        ("fail=cuDeviceGetName:1:999", "cuDeviceGetName"),
        ("fail=cuDriverGetVersion:1:35", "cuDriverGetVersion"),
    ] {
        let found = ask(&Machine::new(script), "driver");
        assert!(found["reason"].as_str().is_some_and(|text| text.contains(reason)), "{script}: {found}");
    }
    assert!(!run(&Machine::new("abort=cuInit"), "driver").status.success());
}

#[test]
fn the_mode_of_cufile_is_told() {
    for (mode, told) in [("gds", "gds"), ("p2pdma", "p2pdma"), ("compat", "compatibility")] {
        let machine = Machine::new(&format!("mode={mode}"));
        let found = ask(&machine, "cufile");
        assert_eq!((found["mode"].as_str(), found["version"].as_str()), (Some(told), Some("1.13")));
        assert_eq!(found["module_version"].as_str(), (mode == "gds").then_some("2.22"));
        assert_eq!(found["reason"].is_string(), mode == "compat", "{found}");
        assert!(!machine.log().contains("leaked"), "{}", machine.log());
    }
    let found = ask(&Machine::new("corrupt=cuFileDriverOpen"), "cufile");
    assert_eq!(found["mode"], "gds");
    let found = ask(&Machine::new("fail=cuFileDriverOpen:1:5004"), "cufile");
    assert!(found["reason"].as_str().is_some_and(|text| text.contains("another version")), "{found}");
}

#[test]
fn doctor_says_what_the_machine_can_do() {
    for (script, name, state, words) in [
        ("", "gpu", "ok", "Stand-in 0"),
        ("", "gpu", "ok", "1.0 GiB at least"),
        ("read_only=0", "gpu", "warn", "may only be read"),
        ("register_bytes=200000000", "gpu", "warn", "no more than 128.0 MiB"),
        ("abort=cuInit", "gpu", "warn", "signal 6"),
        ("", "cufile", "ok", "GPUDirect Storage"),
        ("mode=compat", "cufile", "warn", "through RAM"),
        ("abort=cuFileDriverOpen", "cufile", "ok", "signal 6"),
    ] {
        let machine = Machine::new(script);
        let output = Command::new(env!("CARGO_BIN_EXE_weightfs"))
            .args(["doctor", "--json"])
            .envs(machine.environment())
            .output()
            .expect("run the program");
        let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        let checks = report["checks"].as_array().expect("checks");
        let check = checks.iter().find(|check| check["name"] == name).expect("the check");
        assert_eq!(check["state"], state, "{script}: {check}");
        assert!(check["found"].as_str().is_some_and(|found| found.contains(words)), "{script}: {check}");
    }
}
