//! What is mounted where, out of `/proc/self/mountinfo` (proc_pid_mountinfo(5)). Looking touches no mount, so that
//! dead and hanging ones can be dealt with.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::{fs, io};

use crate::device::FS_TYPE;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    pub id: u64,
    /// `major:minor`, decimal.
    pub device: String,
    pub mountpoint: PathBuf,
    pub fs_type: String,
}

impl Mount {
    pub fn is_weightfs(&self) -> bool {
        self.fs_type == FS_TYPE
    }
}

/// In the order in which they were mounted.
#[derive(Clone, Debug, Default)]
pub struct MountTable(Vec<Mount>);

impl MountTable {
    pub fn read() -> io::Result<Self> {
        Self::of("self")
    }

    /// As a process or thread sees it, by its name in /proc.
    pub fn of(whose: &str) -> io::Result<Self> {
        fs::read(format!("/proc/{whose}/mountinfo")).map(|text| Self::parse(&text))
    }

    pub fn parse(text: &[u8]) -> Self {
        Self(text.split(|byte| *byte == b'\n').filter_map(parse_line).collect())
    }

    /// The mount that is seen at exactly this path.
    pub fn at(&self, path: &Path) -> Option<&Mount> {
        self.0.iter().rev().find(|mount| mount.mountpoint == path)
    }

    /// The mount that `path`, which is absolute and free of links, lies in.
    pub fn containing(&self, path: &Path) -> Option<&Mount> {
        path.ancestors().find_map(|ancestor| self.at(ancestor))
    }

    /// Where weightfs is mounted and seen.
    pub fn weightfs(&self) -> impl Iterator<Item = &Mount> {
        self.0
            .iter()
            .filter(|mount| mount.is_weightfs() && self.at(&mount.mountpoint).is_some_and(|at| at.id == mount.id))
    }

    pub fn has(&self, id: u64) -> bool {
        self.0.iter().any(|mount| mount.id == id)
    }

    /// Whether a file system is mounted anywhere, by its `major:minor`.
    pub fn has_device(&self, device: &str) -> bool {
        self.0.iter().any(|mount| mount.device == device)
    }

    /// The last mount of weightfs at this path, seen or not.
    pub fn last_weightfs_at(&self, path: &Path) -> Option<&Mount> {
        self.0.iter().rev().find(|mount| mount.is_weightfs() && mount.mountpoint == path)
    }

    /// What is mounted below `folder`.
    pub fn below(&self, folder: &Path) -> Vec<Mount> {
        let is_below = |mount: &&Mount| mount.mountpoint != folder && mount.mountpoint.starts_with(folder);
        self.0.iter().filter(is_below).cloned().collect()
    }
}

/// `36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw`
fn parse_line(line: &[u8]) -> Option<Mount> {
    let mut fields = line.split(|byte| *byte == b' ');
    let id = text(fields.next()?).parse().ok()?;
    let device = text(fields.nth(1)?);
    let mountpoint = unescape(fields.nth(1)?);
    let fs_type = text(fields.skip_while(|field| *field != b"-").nth(1)?);
    Some(Mount { id, device, mountpoint, fs_type })
}

fn text(field: &[u8]) -> String {
    String::from_utf8_lossy(field).into_owned()
}

/// Spaces, tabs, newlines and backslashes are written as a backslash and three octal digits.
fn unescape(field: &[u8]) -> PathBuf {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&byte, after)) = rest.split_first() {
        let code = (byte == b'\\')
            .then(|| after.get(..3))
            .flatten()
            .and_then(|digits| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok());
        match code {
            Some(code) => {
                bytes.push(code);
                rest = &after[3..];
            }
            None => {
                bytes.push(byte);
                rest = after;
            }
        }
    }
    OsString::from_vec(bytes).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
30 22 8:2 / /srv/my\\040models rw shared:2 master:1 - xfs /dev/sdb1 rw
41 30 0:50 / /srv/my\\040models rw - fuse.weightfs /srv/my\\040models rw,user_id=0
42 22 0:51 / /mnt rw - tmpfs none rw
garbage
";

    #[test]
    fn the_latest_mount_at_a_path_is_the_one_that_is_seen() {
        let table = MountTable::parse(TEXT.as_bytes());
        let seen = table.at(Path::new("/srv/my models")).unwrap();
        assert_eq!((seen.id, seen.is_weightfs(), seen.device.as_str()), (41, true, "0:50"));
        assert!(table.at(Path::new("/srv")).is_none());
        assert!(table.has(30) && !table.has(43));
    }

    #[test]
    fn a_path_lies_in_the_nearest_mount_above() {
        let table = MountTable::parse(TEXT.as_bytes());
        let id = |path: &str| table.containing(Path::new(path)).unwrap().id;
        assert_eq!([id("/srv/my models/a/b"), id("/srv/my"), id("/mnt"), id("/")], [41, 22, 42, 22]);
    }

    #[test]
    fn what_lies_below_a_folder_is_not_what_begins_like_it() {
        let table = MountTable::parse(TEXT.as_bytes());
        let below = |path: &str| table.below(Path::new(path)).iter().map(|mount| mount.id).collect::<Vec<_>>();
        assert_eq!(below("/srv"), [30, 41]);
        assert!(below("/sr").is_empty() && below("/srv/my models").is_empty());
        assert_eq!(below("/"), [30, 41, 42]);
        let ours = table.last_weightfs_at(Path::new("/srv/my models"));
        assert_eq!(ours.map(|mount| mount.device.as_str()), Some("0:50"));
        assert!(table.last_weightfs_at(Path::new("/mnt")).is_none() && table.has_device("0:51"));
    }

    #[test]
    fn escapes_are_undone_and_nothing_else() {
        assert_eq!(unescape(br"/a\134b\011c\09"), Path::new("/a\\b\tc\\09"));
        assert_eq!(unescape(b"/a\\"), Path::new("/a\\"));
    }

    #[test]
    fn the_table_of_this_machine_has_a_root() {
        assert!(MountTable::read().unwrap().containing(Path::new("/proc/self")).is_some());
    }
}
