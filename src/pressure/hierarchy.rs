//! Where the files of a process's control groups are.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// Where a hierarchy is mounted, and which of its groups is the root of what is seen there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hierarchy {
    pub mountpoint: PathBuf,
    /// `/` unless this is a container that sees a part of the tree.
    pub root: PathBuf,
}

/// The hierarchies that can limit memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hierarchies {
    /// Version 1, with the memory controller.
    pub v1: Option<Hierarchy>,
    pub v2: Option<Hierarchy>,
}

impl Hierarchies {
    /// Finds them in the contents of `/proc/self/mountinfo` (proc_pid_mountinfo(5)).
    pub fn parse(mountinfo: &str) -> Hierarchies {
        let mut found = Hierarchies::default();
        for line in mountinfo.lines() {
            let Some((mount, filesystem)) = line.split_once(" - ") else { continue };
            let (mut mount, mut filesystem) = (mount.split(' ').skip(3), filesystem.split(' '));
            let (Some(root), Some(mountpoint)) = (mount.next(), mount.next()) else { continue };
            let hierarchy = || Hierarchy { mountpoint: unescape(mountpoint), root: unescape(root) };
            match (filesystem.next(), filesystem.nth(1)) {
                (Some("cgroup"), Some(options)) if options.split(',').any(|option| option == "memory") => {
                    found.v1.get_or_insert_with(hierarchy);
                }
                (Some("cgroup2"), _) => {
                    found.v2.get_or_insert_with(hierarchy);
                }
                _ => {}
            }
        }
        found
    }
}

impl Hierarchy {
    /// The folders of the group `path`, as `/proc/self/cgroup` names it, and of all groups above it that are seen here.
    pub fn levels(&self, path: &str) -> Vec<PathBuf> {
        let below = Path::new(path).strip_prefix(&self.root).unwrap_or(Path::new(""));
        // A group outside of what is seen here is shown with `..`: of it, only the root is known.
        let below = if below.components().any(|part| part.as_os_str() == "..") { Path::new("") } else { below };
        below.ancestors().map(|group| self.mountpoint.join(group)).collect()
    }
}

/// The kernel writes space, tab, newline and backslash as three octal digits.
fn unescape(text: &str) -> PathBuf {
    let (mut bytes, mut rest) = (Vec::new(), text.as_bytes());
    while let [first, tail @ ..] = rest {
        let octal = tail.get(..3).and_then(|digits| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok());
        match octal.filter(|_| *first == b'\\') {
            Some(byte) => {
                bytes.push(byte);
                rest = &tail[3..];
            }
            None => {
                bytes.push(*first);
                rest = tail;
            }
        }
    }
    OsString::from_vec(bytes).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    const HYBRID: &str = "31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755\n\
        32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu\n\
        35 31 0:32 /docker/1 /sys/fs/cgroup/my\\040memory rw,relatime shared:5 - cgroup cgroup rw,memory\n\
        41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n";

    #[test]
    fn both_versions_are_found_side_by_side() {
        let found = Hierarchies::parse(HYBRID);
        let v1 = Hierarchy { mountpoint: "/sys/fs/cgroup/my memory".into(), root: "/docker/1".into() };
        let v2 = Hierarchy { mountpoint: "/sys/fs/cgroup/unified".into(), root: "/".into() };
        assert_eq!(found, Hierarchies { v1: Some(v1), v2: Some(v2) });
        assert_eq!(Hierarchies::parse("rubbish\n1 2 - cgroup2\n"), Hierarchies::default());
    }

    #[test]
    fn levels_go_up_to_the_root_of_what_is_seen() {
        let Hierarchies { v1, v2 } = Hierarchies::parse(HYBRID);
        let paths = |names: &[&str]| names.iter().map(PathBuf::from).collect::<Vec<_>>();
        let unified = "/sys/fs/cgroup/unified";
        assert_eq!(
            v2.unwrap().levels("/a.slice/b"),
            paths(&[&format!("{unified}/a.slice/b"), &format!("{unified}/a.slice"), unified])
        );
        let memory = "/sys/fs/cgroup/my memory";
        let v1 = v1.unwrap();
        assert_eq!(v1.levels("/docker/1/x"), paths(&[&format!("{memory}/x"), memory]));
        for elsewhere in ["/docker/1", "/docker/2", "/", "/docker/1/../2"] {
            assert_eq!(v1.levels(elsewhere), paths(&[memory]), "{elsewhere}");
        }
    }
}
