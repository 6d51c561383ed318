//! Nothing outside of the source is served whatever moves meanwhile, and what the daemon keeps is for its user alone.

use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::fs::{CWD, RenameFlags, renameat_with};
use weightfs_tests::Mount;
use weightfs_tests::data::{self, Random};
use weightfs_tests::requirements::{Need, met};
use weightfs_tests::system::{let_files_settle, temporary_folder};

const TIME: Duration = Duration::from_secs(6);
const OUTSIDE: &[u8] = b"outside";

fn can_mount() -> bool {
    met(&[Need::Mount])
}

/// Swaps folders, files and links of the source for each other as fast as it can.
fn race(source: &Path, outside: &Path, stop: &AtomicBool) -> u64 {
    let pairs: Vec<(PathBuf, PathBuf)> =
        [("a", "link-a"), ("a/b", "a/link-b"), ("a/b/c", "a/b/link-c"), ("f", "link-f")]
            .into_iter()
            .map(|(one, other)| (source.join(one), source.join(other)))
            .collect();
    let mut swaps = 0;
    while !stop.load(Ordering::Relaxed) {
        for (one, other) in &pairs {
            // Deeper ones fail while the folder above is a link: then it leads outside, where nothing may be changed.
            let within = one.parent().and_then(|parent| parent.canonicalize().ok());
            if within.is_some_and(|parent| parent.starts_with(source)) {
                swaps += u64::from(renameat_with(CWD, one, CWD, other, RenameFlags::EXCHANGE).is_ok());
            }
        }
    }
    assert!(outside.join("b/c/f").exists(), "the racer itself stays in the source");
    swaps
}

/// One round of what a client does with names; what came of it that should not have.
fn visit(root: &Path, held: &File, random: &mut Random, number: u64) -> Option<String> {
    let path = root.join(random.pick(&["f", "a/f", "a/b/f", "a/b/c/f", "a/b/c", "a/b", "a"]));
    match random.below(4) {
        0 | 1 => {
            // Without following links: as the daemon must, so that only it could be what leads outside.
            let flags = rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::NOFOLLOW;
            let resolve = rustix::fs::ResolveFlags::NO_SYMLINKS | rustix::fs::ResolveFlags::BENEATH;
            let within = path.strip_prefix(root).expect("below the root");
            let file = rustix::fs::openat2(held, within, flags, rustix::fs::Mode::empty(), resolve).ok()?;
            let mut found = [0; 16];
            let length = File::from(file).read(&mut found).unwrap_or(0);
            (&found[..length] == OUTSIDE).then(|| format!("{} was read from outside", path.display()))
        }
        2 => {
            let resolve = rustix::fs::ResolveFlags::NO_SYMLINKS | rustix::fs::ResolveFlags::BENEATH;
            let flags = rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::DIRECTORY;
            let folder = rustix::fs::openat2(held, "a/b", flags, rustix::fs::Mode::empty(), resolve).ok()?;
            // Where the daemon followed a link it would be made outside.
            let name = format!("made-{number}");
            let _ = rustix::fs::mkdirat(&folder, &name, rustix::fs::Mode::RWXU);
            let _ = rustix::fs::unlinkat(&folder, &name, rustix::fs::AtFlags::REMOVEDIR);
            None
        }
        _ => {
            // Answered or not: it must not hang, and nothing of it may stay.
            let _ = fs::read_dir(&path).map(Iterator::count);
            let _ = fs::symlink_metadata(path.join("f"));
            None
        }
    }
}

#[test]
fn nothing_outside_is_reached_while_everything_moves() {
    if !can_mount() {
        return;
    }
    let (source, outside) = (temporary_folder("source"), temporary_folder("outside"));
    for (root, text) in [(source.path(), &b"inside"[..]), (outside.path(), OUTSIDE)] {
        let top = if root == source.path() { root.join("a") } else { root.to_owned() };
        fs::create_dir_all(top.join("b/c")).expect("mkdir");
        for folder in ["", "b", "b/c"] {
            fs::write(top.join(folder).join("f"), text).expect("write");
        }
    }
    fs::write(source.path().join("f"), b"inside").expect("write");
    for (link, target) in [("link-a", ""), ("a/link-b", "b"), ("a/b/link-c", "b/c"), ("link-f", "f")] {
        symlink(outside.path().join(target), source.path().join(link)).expect("symlink");
    }
    let names_outside = || walk(outside.path());
    let before = names_outside();
    let mount = Mount::start(source.path(), &["--ram", "64M"]);
    let mut random = Random::from_environment();
    let (stop, visits, end) = (AtomicBool::new(false), AtomicU64::new(0), Instant::now() + TIME);
    let swaps = std::thread::scope(|scope| {
        let racer = scope.spawn(|| race(source.path(), outside.path(), &stop));
        let clients: Vec<_> = (0..4)
            .map(|_| {
                let (mut random, mount, visits) = (random.fork(), &mount, &visits);
                scope.spawn(move || {
                    let held = File::open(mount.path()).expect("open the root");
                    while Instant::now() < end {
                        let number = visits.fetch_add(1, Ordering::Relaxed);
                        if let Some(fault) = visit(mount.path(), &held, &mut random, number) {
                            return Some(fault);
                        }
                    }
                    None
                })
            })
            .collect();
        let faults: Vec<String> = clients.into_iter().filter_map(|client| client.join().expect("no panic")).collect();
        stop.store(true, Ordering::Relaxed);
        let swaps = racer.join().expect("no panic");
        assert!(faults.is_empty(), "{faults:?}");
        swaps
    });
    println!("{swaps} swaps, {visits:?} visits");
    assert!(swaps > 100 && visits.load(Ordering::Relaxed) > 100, "both sides were at work");
    assert_eq!(names_outside(), before, "nothing was made or removed outside");
    mount.stop();
}

/// Every path below `root`, sorted.
fn walk(root: &Path) -> Vec<PathBuf> {
    let (mut found, mut folders) = (Vec::new(), vec![root.to_owned()]);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).expect("list").map(|entry| entry.expect("an entry")) {
            if entry.file_type().expect("a type").is_dir() {
                folders.push(entry.path());
            }
            found.push(entry.path());
        }
    }
    found.sort();
    found
}

#[test]
fn the_mount_gives_no_rights_away() {
    if !can_mount() {
        return;
    }
    let source = temporary_folder("source");
    let mount = Mount::start(source.path(), &["--ram", "64M"]);
    let table = fs::read_to_string("/proc/self/mountinfo").expect("/proc is mounted");
    let place = mount.path().to_str().expect("UTF-8");
    let line = table.lines().find(|line| line.split(' ').nth(4) == Some(place)).expect("it is mounted");
    let options: Vec<&str> = line.split(' ').nth(5).expect("options").split(',').collect();
    assert!(options.contains(&"nosuid") && options.contains(&"nodev"), "{line}");
    assert!(line.contains("default_permissions"), "the kernel checks rights: {line}");
    mount.stop();
}

#[test]
fn what_is_kept_is_for_the_daemons_user_alone() {
    if !can_mount() {
        return;
    }
    let source = temporary_folder("source");
    data::write_file(&source.path().join("model.safetensors"), 1, 4 << 20);
    let_files_settle();
    let mount = Mount::start(source.path(), &["--ram", "64M"]);
    fs::read(mount.join("model.safetensors")).expect("read");
    let place = mount.join("model.safetensors");
    let pinned = mount.run(&["pin", place.to_str().expect("UTF-8")]);
    assert!(pinned.status.success(), "{}", String::from_utf8_lossy(&pinned.stderr));
    let trace = mount.private_folder().join("trace");
    let of = mount.path().to_str().expect("UTF-8");
    for arguments in
        [vec!["trace", "start", trace.to_str().expect("UTF-8"), "--of", of], vec!["trace", "stop", "--of", of]]
    {
        let output = mount.run(&arguments);
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    }
    // The daemon says at its start where that is.
    let log = mount.log();
    let state = log.split("state_dir: \"").nth(1).and_then(|rest| rest.split('"').next()).expect("it is said");
    let state = PathBuf::from(state);
    let mut kept = vec![trace];
    let _folder = mount.stop_and_keep();
    let written = walk(&state);
    assert!(!written.is_empty(), "something was written down in {}", state.display());
    kept.extend(written);
    kept.push(state.clone());
    for path in kept {
        let metadata = fs::symlink_metadata(&path).expect("stat");
        let mode = metadata.permissions().mode() & 0o777;
        let most = if metadata.is_dir() { 0o700 } else { 0o600 };
        assert_eq!(mode & !most, 0, "{} has mode {mode:o}", path.display());
        assert_eq!(metadata.uid(), rustix::process::geteuid().as_raw());
    }
    fs::remove_dir_all(state).expect("remove what this daemon leaves");
}

#[test]
fn the_log_has_no_content_in_it() {
    if !can_mount() {
        return;
    }
    let secret = "hunter2-correct-horse";
    let source = temporary_folder("source");
    let header = format!("{{\"__metadata__\":{{\"token\":\"{secret}\"}}}}");
    data::write_hostile_safetensors(&source.path().join("model.safetensors"), header.len() as u64, &header, 1, 2 << 20);
    data::write_hostile_safetensors(
        &source.path().join("bad.safetensors"),
        40,
        &format!("{{\"{secret}\": x"),
        1,
        2 << 20,
    );
    fs::write(source.path().join("text"), secret).expect("write");
    let_files_settle();
    let mount = Mount::start(source.path(), &["--ram", "64M", "--log", "trace"]);
    for name in ["model.safetensors", "bad.safetensors", "text"] {
        fs::read(mount.join(name)).expect("read");
    }
    fs::write(mount.join("written"), secret).expect("write");
    // Where the source takes such attributes at all.
    let _ = rustix::fs::setxattr(mount.join("text"), "user.secret", secret.as_bytes(), rustix::fs::XattrFlags::empty());
    mount.status();
    let log = mount.log();
    assert!(log.contains("DEBUG") && log.contains("not what it claims to be"), "it says a lot: {log}");
    assert!(!log.contains(secret), "{}", log.lines().find(|line| line.contains(secret)).unwrap_or_default());
    mount.stop();
}
