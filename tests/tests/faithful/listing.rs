//! Listings: whole whatever happens meanwhile, also of sources that tell of no change and whose positions do not last.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use weightfs_tests::Mount;
use weightfs_tests::requirements::{Need, met, skip};
use weightfs_tests::system::{temporary_folder, wait_until};

use crate::{SOON, can_mount};

/// An overlay, as containers have: not local, and its positions count entries.
struct Overlay {
    merged: PathBuf,
    _folder: tempfile::TempDir,
}

impl Overlay {
    /// Half of `files` lie below, half above. None, said loudly, where there are no overlays.
    fn with(files: usize) -> Option<Self> {
        if !met(&[Need::Mount, Need::Root]) {
            return None;
        }
        let folder = temporary_folder("overlay");
        let [lower, upper, work, merged] = ["lower", "upper", "work", "merged"].map(|name| folder.path().join(name));
        for made in [&lower, &upper, &work, &merged] {
            fs::create_dir(made).expect("mkdir");
        }
        for file in 0..files {
            let side = if file % 2 == 0 { &lower } else { &upper };
            fs::write(side.join(name(file)), b"x").expect("write");
        }
        let options = format!("lowerdir={},upperdir={},workdir={}", lower.display(), upper.display(), work.display());
        let options = std::ffi::CString::new(options).expect("no zero byte");
        let flags = rustix::mount::MountFlags::empty();
        if let Err(error) = rustix::mount::mount("overlay", &merged, "overlay", flags, Some(options.as_c_str())) {
            skip(&format!("no overlay can be mounted here: {error}"));
            return None;
        }
        Some(Self { merged, _folder: folder })
    }
}

impl Drop for Overlay {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(&self.merged, rustix::mount::UnmountFlags::DETACH);
    }
}

/// A file system that is mounted behind the mount.
struct MountedBelow(PathBuf);

impl MountedBelow {
    fn at(place: &Path) -> rustix::io::Result<Self> {
        rustix::mount::mount("none", place, "tmpfs", rustix::mount::MountFlags::empty(), Some(c"size=1m"))?;
        Ok(Self(place.to_owned()))
    }
}

impl Drop for MountedBelow {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(&self.0, rustix::mount::UnmountFlags::DETACH);
    }
}

fn name(file: usize) -> OsString {
    format!("model-{file:04}.safetensors").into()
}

fn names(folder: &Path) -> Vec<OsString> {
    fs::read_dir(folder).expect("list").map(|entry| entry.expect("entry").file_name()).collect()
}

#[test]
fn what_is_removed_while_it_is_listed_is_listed_whole() {
    let Some(overlay) = Overlay::with(3000) else { return };
    let mount = Mount::start(&overlay.merged, &["--ram", "64M"]);
    // Another listing that began before gives nothing twice.
    let mut other = fs::read_dir(mount.path()).expect("list");
    let mut before: BTreeSet<_> = other.by_ref().take(1000).map(|entry| entry.expect("entry").file_name()).collect();
    let mut removed = 0;
    for entry in fs::read_dir(mount.path()).expect("list") {
        fs::remove_file(entry.expect("entry").path()).expect("unlink");
        removed += 1;
    }
    assert_eq!(removed, 3000);
    assert_eq!(names(mount.path()), [""; 0]);
    assert_eq!(names(&overlay.merged), [""; 0]);
    for entry in other {
        assert!(before.insert(entry.expect("entry").file_name()), "listed twice");
    }
    mount.stop();
}

#[test]
fn a_source_that_tells_of_nothing_is_listed_as_it_is() {
    let Some(overlay) = Overlay::with(20) else { return };
    let mount = Mount::start(&overlay.merged, &["--ram", "64M"]);
    let listed = || names(mount.path()).into_iter().collect::<BTreeSet<_>>();
    let all: BTreeSet<_> = (0..20).map(name).collect();
    for round in 0..10 {
        assert!(wait_until(SOON, || listed() == all), "round {round}: back again");
        fs::rename(overlay.merged.join(name(3)), overlay.merged.join("renamed")).expect("rename");
        let seen = || !listed().contains(&name(3)) && listed().contains(&OsString::from("renamed"));
        assert!(wait_until(SOON, seen), "round {round}: renamed");
        fs::rename(overlay.merged.join("renamed"), overlay.merged.join(name(3))).expect("rename");
    }
    mount.stop();
}

/// Who comes before the kernel has been told finds the old folder or the new one, and never an error.
#[test]
fn a_folder_that_was_replaced_can_be_listed_all_the_time() {
    if !can_mount() {
        return;
    }
    let source = temporary_folder("source");
    let folder = source.path().join("loras");
    fs::create_dir(&folder).expect("mkdir");
    let mount = Mount::start(source.path(), &["--ram", "64M"]);
    let mut before = Vec::new();
    for round in 0..40 {
        let aside = format!("aside-{round}");
        fs::rename(&folder, source.path().join(&aside)).expect("rename");
        fs::create_dir(&folder).expect("mkdir");
        // More than one answer holds, every second time.
        let after: Vec<_> = (0..if round % 2 == 0 { 3 } else { 700 }).map(name).collect();
        for name in &after {
            fs::write(folder.join(name), b"x").expect("write");
        }
        let is_new = || {
            let mut found = names(&mount.join("loras"));
            found.sort();
            assert!(found == after || found == before, "round {round}: {} of {} files", found.len(), after.len());
            found == after
        };
        assert!(wait_until(SOON, is_new), "round {round}");
        assert!(mount.join("loras").join(name(2)).exists());
        // And nothing of it is seen in the old one.
        let old = mount.join(&aside);
        assert_eq!(old.join(name(600)).exists(), before.len() > 600, "round {round}");
        assert!(wait_until(SOON, || names(&old).len() == before.len()), "round {round}");
        before = after;
    }
    mount.stop();
}

/// A folder that is open is what it was, also once it is gone.
#[test]
fn an_open_folder_outlives_its_name() {
    if !can_mount() {
        return;
    }
    let (source, plain) = (temporary_folder("source"), temporary_folder("plain"));
    let (folders, files) = (["removed", "removed-behind", "moved-behind"], 1000);
    for root in [source.path(), plain.path()] {
        folders.iter().for_each(|folder| fs::create_dir(root.join(folder)).expect("mkdir"));
        (0..files).for_each(|file| fs::write(root.join("moved-behind").join(name(file)), b"x").expect("write"));
    }
    let mount = Mount::start(source.path(), &["--ram", "64M"]);
    let [seen, known] =
        [mount.path(), plain.path()].map(|root| folders.map(|folder| File::open(root.join(folder)).expect("open")));
    let list = |folder: &File| Ok(rustix::fs::Dir::read_from(folder)?.filter(Result::is_ok).count());
    let look = |folder: &File| {
        let found = folder.metadata().expect("stat");
        (found.is_dir(), found.mode(), found.nlink(), list(folder))
    };
    assert_eq!(look(&seen[2]), look(&known[2]));
    fs::remove_dir(mount.join(folders[0])).expect("rmdir");
    fs::remove_dir(source.path().join(folders[1])).expect("rmdir");
    fs::rename(source.path().join(folders[2]), source.path().join("elsewhere")).expect("rename");
    folders[..2].iter().for_each(|folder| fs::remove_dir(plain.path().join(folder)).expect("rmdir"));
    fs::rename(plain.path().join(folders[2]), plain.path().join("elsewhere")).expect("rename");
    for _ in 0..20 {
        assert_eq!(look(&seen[0]), look(&known[0]));
        // How many links it has by now, nobody tells.
        assert!(seen[1].metadata().expect("stat").is_dir());
        assert_eq!(list(&seen[1]), list(&known[1]));
        assert_eq!(look(&seen[2]), look(&known[2]));
        assert_eq!(list(&seen[2]), Ok::<_, rustix::io::Errno>(files + 2));
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(folders.iter().all(|folder| !mount.join(folder).exists()) && mount.join("elsewhere").exists());
    drop((seen, known));
    mount.stop();
}

/// No directory tells of it.
#[test]
fn what_is_mounted_below_the_source_is_seen_soon() {
    if !met(&[Need::Mount, Need::Root]) {
        return;
    }
    let source = temporary_folder("source");
    let disk = source.path().join("a disk");
    fs::create_dir(&disk).expect("mkdir");
    let mount = Mount::start(source.path(), &["--ram", "64M"]);
    let seen = mount.join("a disk");
    for round in 0..3 {
        assert_eq!(names(&seen), [""; 0]);
        let before = fs::metadata(&seen).expect("stat");
        let mounted = match MountedBelow::at(&disk) {
            Ok(mounted) => mounted,
            Err(error) => return skip(&format!("no tmpfs can be mounted here: {error}")),
        };
        fs::write(disk.join("model"), b"x").expect("write");
        let is_other = || fs::metadata(&seen).expect("stat").ino() != before.ino();
        assert!(wait_until(SOON, is_other), "round {round}: mounted");
        assert_eq!(names(&seen), ["model"]);
        assert_eq!(fs::read(seen.join("model")).expect("read"), b"x");
        drop(mounted);
        // Only asked, not opened.
        assert!(wait_until(SOON, || fs::metadata(seen.join("model")).is_err()), "round {round}: unmounted");
    }
    mount.stop();
}
