//! What the tests ask of the machine itself: mounts, processes, page cache, shared memory.

use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Mounts on `path` now, the topmost last, each with its file system type.
pub fn mounts_on(path: &Path) -> Vec<String> {
    let table = fs::read_to_string("/proc/self/mountinfo").expect("/proc is mounted");
    let wanted = path.to_str().expect("test paths are UTF-8").replace(' ', "\\040");
    let of_line = |line: &str| {
        let (left, right) = line.split_once(" - ")?;
        (left.split(' ').nth(4)? == wanted).then(|| right.split(' ').next().unwrap_or_default().to_owned())
    };
    table.lines().filter_map(of_line).collect()
}

/// Asks until `condition` holds, for at most `limit`; whether it came to hold.
pub fn wait_until(limit: Duration, mut condition: impl FnMut() -> bool) -> bool {
    let end = Instant::now() + limit;
    loop {
        if condition() {
            return true;
        }
        if Instant::now() > end {
            return false;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Whether `name` is a program on the search path.
pub fn has_program(name: &str) -> bool {
    find_program(name).is_some()
}

/// The program `name` on the search path.
pub fn find_program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).map(|folder| folder.join(name)).find(|path| path.is_file())
}

/// Removes the pages of `path` from the page cache, so that the next read of it goes to the device.
pub fn drop_page_cache(path: &Path) {
    let file = File::open(path).expect("the file is there");
    file.sync_all().expect("sync before dropping its pages");
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).expect("drop its pages");
}

/// Live processes whose command line mentions `needle`. Zombies do not count: their parent may not have looked yet.
pub fn processes_mentioning(needle: &str) -> Vec<u32> {
    let own = std::process::id();
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").expect("/proc is mounted").flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else { continue };
        let command = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        if pid != own && String::from_utf8_lossy(&command).replace('\0', " ").contains(needle) {
            found.push(pid);
        }
    }
    found
}

/// The names in `/dev/shm`, sorted.
pub fn shared_memory_names() -> Vec<PathBuf> {
    let mut names: Vec<_> = fs::read_dir("/dev/shm").into_iter().flatten().flatten().map(|e| e.path()).collect();
    names.sort();
    names
}

/// Bytes of shared memory in use on the machine: the arena is part of it, whichever process holds it.
pub fn shared_memory_in_use() -> u64 {
    memory("Shmem")
}

/// Bytes of memory of the machine, of a kind that `/proc/meminfo` names.
pub fn memory(what: &str) -> u64 {
    let table = fs::read_to_string("/proc/meminfo").expect("/proc is mounted");
    let mut lines = table.lines().filter_map(|line| line.split_once(':'));
    let (_, value) = lines.find(|(name, _)| *name == what).expect("Linux reports it");
    let kib: u64 = value.split_whitespace().next().and_then(|n| n.parse().ok()).expect("a number of KiB");
    kib << 10
}

/// The temporary folder as the kernel names it: what `/proc/self/mountinfo` would show.
pub fn temporary_folder(purpose: &str) -> tempfile::TempDir {
    let base = fs::canonicalize(std::env::temp_dir()).expect("the temporary folder exists");
    tempfile::Builder::new()
        .prefix(&format!("weightfs-{purpose}-"))
        // Not only for its owner: some tests act as several users.
        .permissions(fs::Permissions::from_mode(0o755))
        .tempdir_in(base)
        .expect("make a folder")
}

/// Waits until the last change of every file made so far is old enough for the daemon to keep what it reads of them.
pub fn let_files_settle() {
    std::thread::sleep(SETTLE_TIME);
}

/// A file whose last change is younger than two seconds is served but not kept. The rest is for coarse clocks.
const SETTLE_TIME: Duration = Duration::from_millis(2300);

/// A tmpfs of a given size that is gone when this value is.
pub struct SmallDisk {
    folder: tempfile::TempDir,
}

impl SmallDisk {
    /// Needs root. `size` as mount(8) takes it.
    pub fn mount(size: &str) -> SmallDisk {
        let folder = temporary_folder("disk");
        let options = format!("size={size}");
        nix::mount::mount(
            Some("none"),
            folder.path(),
            Some("tmpfs"),
            nix::mount::MsFlags::empty(),
            Some(options.as_str()),
        )
        .expect("mount a tmpfs");
        SmallDisk { folder }
    }

    pub fn path(&self) -> &Path {
        self.folder.path()
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = nix::mount::umount2(self.folder.path(), nix::mount::MntFlags::MNT_DETACH);
    }
}
