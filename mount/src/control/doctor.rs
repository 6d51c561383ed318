//! How a daemon and its mounts fare, and what the folders behind them lack: `doctor` for whoever cannot look behind a
//! mount.

use weightfs::control::{Check, Findings};
use weightfs::units::ByteSize;

use super::Control;
use crate::doctor::{Finding, Subject, reserve, source};
use crate::mounted::Shared;

impl Control {
    /// Reads names and a few blocks of each source, which takes up to two seconds where there are very many.
    pub fn doctor(&self) -> Findings {
        let mut findings = Vec::new();
        for mount in self.mounts.iter().filter(|mount| !mount.has_ended()) {
            findings.extend(of_mount(mount));
        }
        findings.push(self.check_engine());
        findings.push(self.check_budget());
        let pressure = self.pressure();
        if let Some(total) = crate::doctor::memory_total() {
            let most = pressure.cgroup_limit_bytes.map_or(total, |limit| limit.min(total));
            findings.push(reserve(most, pressure.reserve_bytes));
        }
        let checks: Vec<Check> = findings.into_iter().map(|finding| finding.check).collect();
        Findings { checks }
    }

    fn check_engine(&self) -> Finding {
        match self.store.io_report().engine {
            engine @ "io_uring" => Finding::ok("engine", format!("sources are read by {engine}")),
            engine => Finding::warn("engine", format!("sources are read by {engine}"))
                .costs("some speed when cold")
                .mend("'weightfs doctor' says whether io_uring works; then mount without --io threads"),
        }
    }

    fn check_budget(&self) -> Finding {
        let ram = self.store.ram_report();
        let found = format!("{} of the {} of --ram: {}", ByteSize(ram.budget), ByteSize(ram.limit), ram.reason);
        if ram.budget >= ram.limit {
            return Finding::ok("budget", found);
        }
        Finding::warn("budget", found)
            .costs("fewer models are kept than --ram allows")
            .mend("end programs that take memory, or mount with less --ram or less --reserve")
    }
}

fn of_mount(mount: &Shared) -> Vec<Finding> {
    let (name, fs) = (&mount.spec.mountpoint, &mount.fs);
    let passthrough = if fs.has_passthrough() {
        Finding::ok("passthrough", "resident files are read without the daemon")
    } else {
        Finding::warn("passthrough", "resident files are handed out by the daemon")
            .costs("about half the speed of passthrough")
            .mend("'weightfs status' says why; as root on Linux 6.9 or later there is passthrough")
    };
    let mut findings = vec![passthrough.on(name.display().to_string())];
    let subject = Subject {
        root: fs.source(),
        name,
        seen_at: name,
        follow_symlinks: fs.follows_links(),
        // Whoever may ask for this need not be able to list the folder.
        name_links: false,
        measure: None,
    };
    findings.extend(source(&subject, &mut |_| {}));
    findings
}
