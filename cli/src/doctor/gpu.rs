//! Whether there is a GPU that weightfs can use.
//!
//! Files are looked at here; the driver is asked in a process of its own, since its library may be missing, may abort,
//! or may wait for a device that does not answer.

use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use std::{fs, panic, thread};

use serde::{Deserialize, Serialize};
use weightfs_mount::doctor::Finding;

use crate::exit::Failure;
use crate::output::{self, json};

/// A driver that takes longer does not answer at all. The first question after a start takes seconds on some machines.
const PATIENCE: Duration = Duration::from_secs(15);

const DEVICES: &str = "/dev";
/// There when the kernel's part of GPUDirect Storage is loaded.
const FILE_SYSTEM_MODULE: &str = "/proc/driver/nvidia-fs";
const DRIVER: &str = "libcuda.so.1";
const CUFILE: &str = "libcufile.so.0";

/// What the driver says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Answer {
    NoLibrary,
    Error(String),
    Devices(Vec<String>),
}

pub fn check(observe: &mut dyn FnMut(&str)) -> Vec<Finding> {
    let devices = device_files(Path::new(DEVICES));
    if devices.is_empty() {
        // Nothing is missing: no part of weightfs needs one.
        return vec![Finding::ok("gpu", "no NVIDIA GPU, and nothing here needs one")];
    }
    observe("the GPU's driver");
    let mut findings = vec![driver(ask())];
    findings.push(direct_storage(Path::new(FILE_SYSTEM_MODULE).exists(), library(CUFILE)));
    findings
}

fn driver(answer: Result<Answer, String>) -> Finding {
    let name = "gpu";
    let costs = "nothing goes from the arena to the GPU without a copy in between";
    let mend = "nvidia-smi says more; in a container, start it with '--gpus all'";
    match answer {
        Ok(Answer::Devices(names)) if !names.is_empty() => Finding::ok(name, names.join(", ")),
        Ok(Answer::Devices(_)) => Finding::warn(name, "the driver has no GPU for this process").costs(costs).mend(mend),
        Ok(Answer::NoLibrary) => Finding::warn(name, format!("there are device files, and no {DRIVER}"))
            .costs(costs)
            .mend("install the driver's library, such as 'apt install libcuda1'; in a container, start it with '--gpus all'"),
        Ok(Answer::Error(error)) => {
            Finding::warn(name, format!("the driver cannot be used: {error}")).costs(costs).mend(mend)
        }
        Err(error) => Finding::warn(name, format!("the driver does not answer: {error}")).costs(costs).mend(mend),
    }
}

fn direct_storage(module: bool, library: Option<String>) -> Finding {
    let name = "cufile";
    match (module, library) {
        (true, Some(path)) => Finding::ok(name, format!("{path}, and the module nvidia-fs")),
        (false, Some(path)) => Finding::warn(name, format!("{path}, but the module nvidia-fs is not loaded"))
            .costs("reads into GPU memory pass through RAM")
            .mend("modprobe nvidia-fs (package nvidia-fs or nvidia-gds)"),
        (_, None) => Finding::ok(name, format!("no {CUFILE}: models go to the GPU through RAM")),
    }
}

/// `nvidia0`, `nvidia1` …, as far as they are there.
fn device_files(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    let is_gpu = |name: &String| {
        name.strip_prefix("nvidia")
            .is_some_and(|rest| !rest.is_empty() && rest.bytes().all(|byte| byte.is_ascii_digit()))
    };
    names.filter(is_gpu).collect()
}

/// Where the loader would find a library, by its cache. Nothing is loaded.
fn library(name: &str) -> Option<String> {
    let output = ["/sbin/ldconfig", "ldconfig"]
        .iter()
        .find_map(|program| Command::new(program).arg("-p").output().ok())
        .filter(|output| output.status.success())?;
    in_cache(&String::from_utf8_lossy(&output.stdout), name)
}

/// Lines read `\tlibcuda.so.1 (libc6,x86-64) => /usr/lib/x86_64-linux-gnu/libcuda.so.1`.
fn in_cache(listing: &str, name: &str) -> Option<String> {
    listing.lines().find_map(|line| {
        let (left, path) = line.split_once("=>")?;
        (left.split_whitespace().next() == Some(name)).then(|| path.trim().to_owned())
    })
}

fn ask() -> Result<Answer, String> {
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let mut command = Command::new(program);
    command.arg0("weightfs").args(["doctor", "--gpu-probe"]).stdin(Stdio::null()).stderr(Stdio::null());
    answer_of(command, PATIENCE)
}

/// What a process says, if it says it in time and ends well.
fn answer_of(mut command: Command, patience: Duration) -> Result<Answer, String> {
    let mut child = command.stdout(Stdio::piped()).spawn().map_err(|error| error.to_string())?;
    let mut said = child.stdout.take().ok_or("it has no output")?;
    let reader = thread::spawn(move || {
        let mut text = String::new();
        said.read_to_string(&mut text).map(|_| text)
    });
    let status = wait(&mut child, patience)?;
    let text = reader.join().map_err(|_| "it cannot be read")?.map_err(|error| error.to_string())?;
    if !status.success() {
        return Err(format!("asking it ended with {status}"));
    }
    serde_json::from_str(&text).map_err(|error| error.to_string())
}

fn wait(child: &mut Child, patience: Duration) -> Result<std::process::ExitStatus, String> {
    let end = Instant::now() + patience;
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Ok(status),
            Ok(None) if Instant::now() < end => thread::sleep(Duration::from_millis(20)),
            Ok(None) => {
                // It may hang in the kernel: then it ends when that lets it, and nobody waits for it.
                let _ = child.kill();
                return Err(format!("not within {} seconds", patience.as_secs()));
            }
            Err(error) => return Err(error.to_string()),
        }
    }
}

/// Runs in a process of its own, and prints what the driver says.
pub fn probe() -> Result<(), Failure> {
    // Where the library is missing, the binding panics.
    panic::set_hook(Box::new(|_| {}));
    let answer = panic::catch_unwind(devices).unwrap_or(Answer::NoLibrary);
    output::print(&json::pretty(&answer)?)
}

fn devices() -> Answer {
    use cudarc::driver::result::{device, init};
    let names = || {
        init()?;
        (0..device::get_count()?).map(|index| device::get_name(device::get(index)?)).collect::<Result<_, _>>()
    };
    match names() {
        Ok(names) => Answer::Devices(names),
        Err(error) => {
            let error: cudarc::driver::DriverError = error;
            Answer::Error(error.to_string())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weightfs::control::CheckState;

    fn shell(script: &str) -> Result<Answer, String> {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", script]);
        answer_of(command, Duration::from_millis(300))
    }

    #[test]
    fn a_driver_that_aborts_or_hangs_is_an_answer() {
        assert_eq!(shell(r#"echo '{"devices":["H200"]}'"#), Ok(Answer::Devices(vec!["H200".into()])));
        assert!(shell("kill -ABRT $$").unwrap_err().contains("signal: 6"));
        assert!(shell("exec sleep 5").unwrap_err().contains("not within"));
        assert!(shell("echo noise").is_err());
    }

    #[test]
    fn what_the_driver_says_is_judged() {
        let state = |answer| driver(answer).check.state;
        assert_eq!(state(Ok(Answer::Devices(vec!["H200".into()]))), CheckState::Ok);
        assert_eq!(state(Ok(Answer::Devices(Vec::new()))), CheckState::Warn);
        assert_eq!(state(Ok(Answer::NoLibrary)), CheckState::Warn);
        assert_eq!(state(Err("killed".into())), CheckState::Warn);
        assert_eq!(direct_storage(false, Some("/lib/x".into())).check.state, CheckState::Warn);
        assert_eq!(direct_storage(true, None).check.state, CheckState::Ok);
    }

    #[test]
    fn only_devices_with_a_number_are_gpus() {
        let place = tempfile::tempdir().unwrap();
        for name in ["nvidia0", "nvidiactl", "nvidia-uvm", "nvidia", "null"] {
            fs::write(place.path().join(name), "").unwrap();
        }
        assert_eq!(device_files(place.path()), ["nvidia0"]);
    }

    #[test]
    fn the_loaders_cache_is_read() {
        let listing =
            "2 libs found\n\tlibcuda.so.1 (libc6,x86-64) => /usr/lib/libcuda.so.1\n\tlibc.so.6 (libc6) => /c\n";
        assert_eq!(in_cache(listing, DRIVER).as_deref(), Some("/usr/lib/libcuda.so.1"));
        assert_eq!(in_cache(listing, CUFILE), None);
    }
}
