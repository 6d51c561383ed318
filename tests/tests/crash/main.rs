//! Workers that are killed, replaced and upgraded under load: no client sees an error or a wrong byte, and nothing that
//! was in RAM is read again. WEIGHTFS_KILLS, WEIGHTFS_UPGRADES and WEIGHTFS_DEATHS make the runs longer.

mod clients;
mod ends;
mod failpoints;
mod handles;
mod kills;
mod service;
mod systemd;
mod upgrades;

use std::fs;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use weightfs_tests::Mount;
use weightfs_tests::requirements::{Need, met, skip};

/// Whether mounts can outlive their workers here.
fn can_take_over() -> bool {
    if !met(&[Need::Mount]) {
        return false;
    }
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").expect("/proc is mounted");
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(|text| text.parse::<u32>().unwrap_or(0));
    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    if version < (6, 9) {
        skip("the kernel cannot hand a mount to another process (Linux 6.9)");
    }
    version >= (6, 9)
}

/// How often, unless the environment says otherwise.
fn times(variable: &str, usual: u64) -> u64 {
    std::env::var(variable).ok().and_then(|text| text.parse().ok()).unwrap_or(usual)
}

/// The process that serves `mount` now, if there is one. Asks the kernel, and nobody who may be dead.
fn worker(mount: &Mount) -> Option<Pid> {
    let supervisor = mount.pid();
    let children = fs::read_to_string(format!("/proc/{supervisor}/task/{supervisor}/children")).ok()?;
    // The youngest: one before it that is dead may be stuck in the kernel for a while.
    children.split_whitespace().next_back()?.parse().ok().map(Pid::from_raw)
}

/// Kills the worker, and returns once it is another process. Panics where none comes.
fn kill_worker(mount: &Mount) -> Pid {
    let end = Instant::now() + Duration::from_secs(20);
    let mut killed = None;
    while Instant::now() < end {
        match (worker(mount), killed) {
            (Some(pid), None) => {
                // It may be dying by itself.
                let _ = kill(pid, Signal::SIGKILL);
                killed = Some(pid);
            }
            (Some(pid), Some(old)) if pid != old => return pid,
            _ => std::thread::sleep(Duration::from_micros(200)),
        }
    }
    panic!("no worker comes after {killed:?}:\n{}", mount.log());
}

/// Waits until the worker answers.
fn answers(mount: &Mount) -> bool {
    weightfs_tests::system::wait_until(Duration::from_secs(20), || {
        mount.run(&["status", mount.path().to_str().expect("UTF-8"), "--json"]).status.success()
    })
}
