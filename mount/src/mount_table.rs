//! The kernel's table of mounts: /proc/PID/mountinfo.

use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// The table of a process or thread, by its name in /proc. Any bytes can be in a path, and in other people's.
pub fn read(whose: &str) -> io::Result<String> {
    Ok(String::from_utf8_lossy(&std::fs::read(format!("/proc/{whose}/mountinfo"))?).into_owned())
}

/// What is mounted below `folder`: the kernel's number of each, and where.
pub fn below(table: &str, folder: &Path) -> Vec<String> {
    let prefix = [escaped(folder.as_os_str().as_bytes()).trim_end_matches('/'), "/"].concat();
    let mount = |line: &str| {
        let mut fields = line.split(' ');
        let number = fields.next()?;
        let place = fields.nth(3)?;
        place.starts_with(&prefix).then(|| format!("{number} {place}"))
    };
    table.lines().filter_map(mount).collect()
}

/// A path as the kernel's tables have it.
pub fn escaped(path: &[u8]) -> String {
    let text = String::from_utf8_lossy(path);
    text.replace('\\', "\\134").replace(' ', "\\040").replace('\t', "\\011").replace('\n', "\\012")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_mounted_below_is_found_by_its_escaped_path() {
        let table = "22 1 0:20 / /proc rw - proc proc rw\n\
                     40 1 0:41 / /my\\040models rw - ext4 /dev/a rw\n\
                     41 40 0:42 / /my\\040models/nas rw shared:1 - nfs server:/x rw\n\
                     42 1 0:43 / /my\\040models2 rw - tmpfs tmpfs rw\n";
        assert_eq!(below(table, Path::new("/my models")), ["41 /my\\040models/nas"]);
        assert_eq!(below(table, Path::new("/")).len(), 4);
        assert_eq!(below(table, Path::new("/none")), [""; 0]);
    }
}
