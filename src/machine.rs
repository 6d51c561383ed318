//! Looks at how much memory the machine has left: the edge of `pressure`, which knows what follows from it.

use std::fs;
use std::path::{Path, PathBuf};

use crate::pressure::{
    GroupBound, Hierarchies, Level, ParseError, Psi, parse_membership, parse_meminfo, parse_psi, parse_v1, parse_v2,
    tightest,
};

const MEMINFO: &str = "/proc/meminfo";
const MEMBERSHIP: &str = "/proc/self/cgroup";
const MOUNTS: &str = "/proc/self/mountinfo";
const STALLS: &str = "/proc/pressure/memory";

/// What others leave.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Reading {
    /// Bytes that the machine could give without swapping.
    pub available: u64,
    /// The tightest of the control groups of this process, if any is limited.
    pub group: Option<GroupBound>,
    pub psi: Option<Psi>,
}

#[derive(Debug, thiserror::Error)]
pub enum MachineError {
    #[error("cannot read {MEMINFO}: {0}")]
    Unreadable(#[from] std::io::Error),
    #[error(transparent)]
    Odd(#[from] ParseError),
}

/// Where to look. Control groups are mounted once, when the system starts.
#[derive(Debug)]
pub struct Machine {
    hierarchies: Hierarchies,
}

impl Machine {
    pub fn find() -> Machine {
        let mounts = fs::read_to_string(MOUNTS).unwrap_or_default();
        Machine { hierarchies: Hierarchies::parse(&mounts) }
    }

    /// How things are now. Reads a handful of files of the kernel's, which takes some tens of microseconds.
    ///
    /// # Errors
    /// Where the machine does not say how much memory is available. Groups and stalls that cannot be read count as none.
    pub fn look(&self) -> Result<Reading, MachineError> {
        let available = parse_meminfo(&fs::read_to_string(MEMINFO)?)?.available;
        // Whoever manages this process may move it.
        let membership = fs::read_to_string(MEMBERSHIP).unwrap_or_default();
        let (v1, v2) = parse_membership(&membership);
        let mut levels = Vec::new();
        let mut stalls = Some(PathBuf::from(STALLS));
        if let (Some(hierarchy), Some(group)) = (&self.hierarchies.v1, v1) {
            levels.extend(hierarchy.levels(group).iter().filter_map(|folder| level_v1(folder)));
        }
        if let (Some(hierarchy), Some(group)) = (&self.hierarchies.v2, v2) {
            let folders = hierarchy.levels(group);
            levels.extend(folders.iter().filter_map(|folder| level_v2(folder)));
            // In a container, stalls elsewhere on the machine are none of its business.
            let own = folders.first().map(|folder| folder.join("memory.pressure"));
            stalls = own.filter(|own| own.exists()).or(stalls);
        }
        let psi = stalls.and_then(|file| text(&file)).and_then(|text| parse_psi(&text).ok());
        Ok(Reading { available, group: tightest(&levels), psi })
    }
}

fn level_v1(folder: &Path) -> Option<Level> {
    let file = |name: &str| text(&folder.join(name));
    let (limit, used) = (file("memory.limit_in_bytes")?, file("memory.usage_in_bytes")?);
    let level = parse_v1(&limit, &used, None)?;
    // Statistics cost the kernel more than the rest: only where there is a limit.
    if level.limit.is_some() { parse_v1(&limit, &used, file("memory.stat").as_deref()) } else { Some(level) }
}

fn level_v2(folder: &Path) -> Option<Level> {
    let file = |name: &str| text(&folder.join(name));
    let (max, high, used) = (file("memory.max"), file("memory.high"), file("memory.current"));
    let level = parse_v2(max.as_deref(), high.as_deref(), used.as_deref(), None)?;
    let stat = level.limit.and_then(|_| file("memory.stat"));
    parse_v2(max.as_deref(), high.as_deref(), used.as_deref(), stat.as_deref())
}

fn text(file: &Path) -> Option<String> {
    fs::read_to_string(file).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_can_be_looked_at() {
        let reading = Machine::find().look().unwrap();
        assert!(reading.available > 0);
        assert!(reading.group.is_none_or(|group| group.available <= group.limit));
    }

    #[test]
    fn groups_of_both_versions_are_read() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
        assert_eq!((level_v1(folder.path()), level_v2(folder.path())), (None, None));
        write("memory.limit_in_bytes", "1000\n");
        write("memory.usage_in_bytes", "900\n");
        write("memory.stat", "total_inactive_file 200\ninactive_file 300\n");
        assert_eq!(level_v1(folder.path()).unwrap().available(), Some(300));
        write("memory.max", "max\n");
        write("memory.high", "1000\n");
        write("memory.current", "800\n");
        assert_eq!(level_v2(folder.path()).unwrap().available(), Some(500));
        write("memory.high", "max\n");
        assert_eq!(level_v2(folder.path()).unwrap().available(), None);
    }
}
