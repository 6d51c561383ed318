//! Whether there is a GPU that weightfs can use, and how.

use std::ffi::OsStr;

use weightfs::gpu::presence::Presence;
use weightfs::gpu::probe::{self, PATIENCE};
use weightfs::gpu::report::{CuFileReport, DriverReport, GpuReport};
use weightfs::units::ByteSize;
use weightfs_mount::doctor::Finding;

const GPU: &str = "gpu";
const CUFILE: &str = "cufile";

pub fn check(observe: &mut dyn FnMut(&str)) -> Vec<Finding> {
    if Presence::look().driver().is_err() {
        // Nothing is missing: no part of weightfs needs one.
        return vec![Finding::ok(GPU, "no NVIDIA GPU, and nothing here needs one")];
    }
    observe("the GPU's driver");
    match std::env::current_exe() {
        Ok(program) => findings(&probe::ask(&program, &[OsStr::new("gds")], PATIENCE)),
        Err(error) => vec![Finding::unknown(GPU, format!("this program does not find itself: {error}"))],
    }
}

fn findings(report: &GpuReport) -> Vec<Finding> {
    let mut findings = driver(&report.driver);
    findings.push(cufile(&report.cufile));
    findings
}

fn driver(report: &DriverReport) -> Vec<Finding> {
    let costs = "nothing goes from the arena to the GPU without a copy in between";
    if let Some(reason) = &report.reason {
        let mend = "nvidia-smi says more; in a container, start it with '--gpus all'";
        return vec![Finding::warn(GPU, reason.clone()).costs(costs).mend(mend)];
    }
    let version = report.cuda_version.as_deref().unwrap_or("?");
    let describe = |(number, device): (usize, &weightfs::gpu::report::GpuDevice)| {
        let what = format!("{}, {}, CUDA {version}", device.name, ByteSize(device.memory_bytes));
        let reads = format!("it reads pages of the arena by itself, {} at least", ByteSize(device.registered_bytes));
        let finding = match &device.reason {
            None => Finding::ok(GPU, format!("{what}; {reads}")),
            Some(reason) if device.direct_uploads => Finding::warn(GPU, format!("{what}; {reason}"))
                .costs("what is beyond that goes from the arena to the GPU through a ring of buffers")
                .mend("ulimit -l unlimited, a larger limit on locked memory of the container, or a newer driver"),
            Some(reason) => {
                Finding::warn(GPU, format!("{what}; {reason}")).costs(costs).mend("update the NVIDIA driver")
            }
        };
        finding.on(format!("cuda:{number}"))
    };
    report.devices.iter().enumerate().map(describe).collect()
}

fn cufile(report: &CuFileReport) -> Finding {
    let versions = [("cuFile", &report.version), ("nvidia-fs", &report.module_version)];
    let versions: String = versions
        .iter()
        .filter_map(|(name, version)| version.as_ref().map(|version| format!(", {name} {version}")))
        .collect();
    let reason = report.reason.as_deref().unwrap_or("it does not say why");
    match report.mode {
        Some(mode) if mode.is_direct() => Finding::ok(CUFILE, format!("{mode}{versions}")),
        Some(mode) => Finding::warn(CUFILE, format!("{mode}{versions}: {reason}"))
            .costs("reads from storage into GPU memory pass through RAM, and load(gds=True) is refused")
            .mend("modprobe nvidia-fs (package nvidia-gds); 'gdscheck -p' says what it serves"),
        // Models go to the GPU through the arena, which is the faster way once they are resident.
        None => Finding::ok(CUFILE, format!("not used, models go to the GPU through RAM: {reason}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weightfs::control::CheckState;
    use weightfs::gpu::mode::Mode;
    use weightfs::gpu::report::GpuDevice;

    #[test]
    fn what_the_driver_says_is_judged() {
        let device = GpuDevice {
            name: "H200".into(),
            bus_id: "0000:01:00.0".into(),
            memory_bytes: 8 << 30,
            direct_uploads: true,
            registered_bytes: 1 << 30,
            reason: None,
        };
        let with = |devices, reason: Option<&str>| DriverReport {
            cuda_version: Some("12.8".into()),
            devices,
            reason: reason.map(Into::into),
        };
        let found = driver(&with(vec![device.clone()], None));
        assert_eq!((found[0].check.state, found[0].check.subject.as_deref()), (CheckState::Ok, Some("cuda:0")));
        assert!(found[0].check.found.contains("1.0 GiB at least"), "{}", found[0].check.found);
        let limited = GpuDevice { reason: Some("no more than".into()), ..device.clone() };
        let cannot = GpuDevice { direct_uploads: false, reason: Some("it cannot".into()), ..device };
        for (device, costs) in [(limited, "beyond that"), (cannot, "nothing goes")] {
            let found = driver(&with(vec![device], None));
            assert_eq!(found[0].check.state, CheckState::Warn);
            assert!(found[0].check.costs.as_ref().is_some_and(|text| text.contains(costs)), "{costs}");
        }
        assert_eq!(driver(&with(Vec::new(), Some("signal 6")))[0].check.state, CheckState::Warn);
    }

    #[test]
    fn only_a_detour_through_ram_is_worth_a_warning() {
        let with = |mode| cufile(&CuFileReport { mode, reason: Some("why".into()), ..CuFileReport::default() });
        assert_eq!(with(Some(Mode::P2pdma)).check.state, CheckState::Ok);
        assert_eq!(with(Some(Mode::Compatibility)).check.state, CheckState::Warn);
        assert_eq!(with(None).check.state, CheckState::Ok);
        assert!(with(None).check.found.contains("why"));
    }
}
