//! Asks the driver and cuFile what they can do, each in a process of its own: either may hang, crash, or damage the
//! process that opens it, where a part of it is missing.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde::de::DeserializeOwned;

use super::mode::Mode;
use super::presence::Presence;
use super::report::{CuFileReport, DriverReport, GpuDevice, GpuReport};
use super::{LIBCUDA, LIBCUDA_VARIABLE, LIBCUFILE, LIBCUFILE_VARIABLE, new_enough, shown_version};
use crate::sys::cuda::{Context, Cuda, DeviceInfo};
use crate::sys::cufile::CuFile;
use crate::sys::library::name_of;
use crate::units::ByteSize;

/// The words by which the program is asked for one half of the answer.
pub const DRIVER: &str = "driver";
pub const CUFILE: &str = "cufile";

/// Starting the driver of a machine with many GPUs and no persistence daemon takes long.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// What clients register at once of a resident file, and how many such pieces a device is tried with. All are mappings of
/// the same pages, so that the trial takes memory for one.
const PIECE: u64 = 64 << 20;
const PIECES: usize = 16;

/// The most that a process may answer.
const LONGEST_ANSWER: u64 = 1 << 20;

/// What `program` (with `arguments`, then [`DRIVER`] or [`CUFILE`]) answers. Where nothing is installed, nothing is
/// started.
pub fn ask(program: &Path, arguments: &[&OsStr], patience: Duration) -> GpuReport {
    let presence = Presence::look();
    let run = |half: &str| {
        let mut command = Command::new(program);
        command.args(arguments).arg(half);
        command
    };
    let driver = match presence.driver() {
        Ok(()) => answer(run(DRIVER), patience).unwrap_or_else(|reason| DriverReport {
            reason: Some(format!("the NVIDIA driver {reason}; 'nvidia-smi' may say more")),
            ..DriverReport::default()
        }),
        Err(reason) => DriverReport { reason: Some(reason), ..DriverReport::default() },
    };
    let without = |reason| CuFileReport { reason: Some(reason), ..CuFileReport::default() };
    let cufile = match presence.cufile() {
        Ok(()) if driver.devices.is_empty() => without("there is no device for it".to_owned()),
        Ok(()) => answer(run(CUFILE), patience).unwrap_or_else(|reason| without(format!("cuFile {reason}"))),
        Err(reason) => without(reason),
    };
    GpuReport { driver, cufile }
}

/// What a process prints as JSON, if it ends well and in time.
fn answer<T: DeserializeOwned>(mut command: Command, patience: Duration) -> Result<T, String> {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().map_err(|error| format!("cannot be tried out: {error}"))?;
    let output = child.stdout.take().expect("it is piped");
    let reading = thread::spawn(move || {
        let mut text = String::new();
        output.take(LONGEST_ANSWER).read_to_string(&mut text).map(|_| text)
    });
    let deadline = Instant::now() + patience;
    let ended = loop {
        match child.try_wait() {
            Ok(Some(status)) => break status,
            Ok(None) if Instant::now() < deadline => thread::sleep(Duration::from_millis(5)),
            Ok(None) => {
                let _ = child.kill();
                // One that hangs in the kernel ends when it ends; nobody waits for it.
                let _ = child.try_wait();
                return Err(format!("does not answer within {} s", patience.as_secs_f32()));
            }
            Err(error) => return Err(format!("cannot be waited for: {error}")),
        }
    };
    if !ended.success() {
        return Err(format!("ends the process that opens it ({})", shown(ended)));
    }
    let text = reading.join().map_err(|_| "gave no answer".to_owned())?;
    text.and_then(|text| serde_json::from_str(&text).map_err(io::Error::from))
        .map_err(|error| format!("gave an answer that is not understood: {error}"))
}

fn shown(status: ExitStatus) -> String {
    use std::os::unix::process::ExitStatusExt;
    status.signal().map_or_else(|| status.to_string(), |signal| format!("signal {signal}"))
}

/// The driver's half, asked here and now: this process may hang or end by it.
pub fn driver_here() -> DriverReport {
    let mut report = DriverReport::default();
    if let Err(reason) = look_at_driver(&mut report) {
        report.reason = Some(reason);
    }
    report
}

fn look_at_driver(report: &mut DriverReport) -> Result<(), String> {
    let update = |error: &dyn std::error::Error| format!("{error}; install or update the NVIDIA driver");
    let cuda = Cuda::load(name_of(LIBCUDA_VARIABLE, LIBCUDA)).map_err(|error| update(&error))?;
    let version = cuda.version().map_err(|error| update(&error))?;
    report.cuda_version = Some(shown_version(version));
    new_enough(version)?;
    cuda.start().map_err(|error| error.to_string())?;
    let devices = cuda.devices().map_err(|error| error.to_string())?;
    // Pages that may only be read, as those of a resident file.
    let file = trial_file().map_err(|error| format!("no memory to try a registration with: {error}"))?;
    report.devices =
        devices.into_iter().enumerate().map(|(index, device)| tried(&cuda, index as u32, device, &file)).collect();
    if report.devices.is_empty() {
        return Err("the NVIDIA driver has no device; 'nvidia-smi -L' lists them".to_owned());
    }
    Ok(())
}

fn trial_file() -> io::Result<File> {
    let memory = rustix::fs::memfd_create("weightfs-trial", rustix::fs::MemfdFlags::CLOEXEC)?;
    rustix::fs::ftruncate(&memory, PIECE)?;
    Ok(memory.into())
}

fn tried(cuda: &std::rc::Rc<Cuda>, index: u32, device: DeviceInfo, file: &File) -> GpuDevice {
    let (pieces, reason) = match (device.registers, device.registers_read_only) {
        (false, _) => (0, Some("it cannot register host memory".to_owned())),
        (_, false) => (0, Some("it cannot register memory that may only be read".to_owned())),
        _ => match Context::of(cuda, index).map(|context| context.try_to_register(file, PIECES)) {
            Ok((pieces, refusal)) => (pieces, refusal.map(|error| error.to_string())),
            Err(error) => (0, Some(error.to_string())),
        },
    };
    let registered_bytes = pieces as u64 * PIECE;
    let reason = reason.map(|reason| match pieces {
        0 => reason,
        _ => format!("it registers no more than {} at once ({reason})", ByteSize(registered_bytes)),
    });
    GpuDevice {
        name: device.name,
        bus_id: device.bus_id,
        memory_bytes: device.memory_bytes,
        direct_uploads: pieces > 0,
        registered_bytes,
        reason,
    }
}

/// cuFile's half, asked here and now.
pub fn cufile_here() -> CuFileReport {
    let mut report = CuFileReport::default();
    let looked = Presence::look().cufile().and_then(|()| look_at_cufile(&mut report));
    if let Err(reason) = looked {
        report.reason = Some(reason);
    }
    report
}

fn look_at_cufile(report: &mut CuFileReport) -> Result<(), String> {
    let shown = |error: &dyn std::error::Error| error.to_string();
    let cuda = Cuda::load(name_of(LIBCUDA_VARIABLE, LIBCUDA)).map_err(|error| shown(&error))?;
    cuda.start().map_err(|error| shown(&error))?;
    let _context = Context::of(&cuda, 0).map_err(|error| shown(&error))?;
    let cufile = CuFile::open(name_of(LIBCUFILE_VARIABLE, LIBCUFILE)).map_err(|error| shown(&error))?;
    report.version = cufile.version().map(shown_version);
    let properties = cufile.properties().map_err(|error| shown(&error))?;
    let (major, minor) = properties.module_version;
    report.module_version = (major > 0).then(|| format!("{major}.{minor}"));
    let mode = Mode::of(&properties);
    report.mode = Some(mode);
    if !mode.is_direct() {
        report.reason = Some(match major {
            0 => "the module nvidia-fs is not loaded ('modprobe nvidia-fs', package nvidia-gds)".to_owned(),
            _ => "the module nvidia-fs serves no filesystem here; 'gdscheck -p' lists them".to_owned(),
        });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str, patience: Duration) -> Result<DriverReport, String> {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", script]);
        answer(command, patience)
    }

    #[test]
    fn a_process_that_hangs_crashes_or_babbles_is_an_answer() {
        let long = Duration::from_secs(20);
        assert!(shell("kill -SEGV $$", long).unwrap_err().contains("signal 11"));
        assert!(shell("exit 3", long).unwrap_err().contains("exit status: 3"));
        assert!(shell("echo no", long).unwrap_err().contains("not understood"));
        assert!(shell("exec sleep 60", Duration::from_millis(30)).unwrap_err().contains("does not answer"));
        let report = shell(r#"echo '{"devices": [], "reason": "x"}'"#, long).unwrap();
        assert_eq!(report.reason.as_deref(), Some("x"));
    }
}
