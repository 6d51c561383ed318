//! One source: what it lies on, how it is read and how fast, whether changes are told, and links that lead out.

use std::fs::File;
use std::io;
use std::path::Path;
use std::time::Duration;

use rustix::fs::{Mode, OFlags};
use weightfs::fill::{SourceFile, Storage};
use weightfs::units::ByteSize;

use super::finding::Finding;
use super::speed::{self, SpeedError};
use super::survey::{Survey, survey};
use crate::source::SourceRoot;
use crate::watch::Watcher;

/// Links that are named; of more, the number is said.
const NAMED: usize = 3;

/// A source to look at.
pub struct Subject<'a> {
    pub root: &'a SourceRoot,
    /// Where it is, as a person would say it.
    pub name: &'a Path,
    /// Where clients see it, or would see it.
    pub seen_at: &'a Path,
    /// Whether links that lead out are presented as what they point to.
    pub follow_symlinks: bool,
    /// Whether the report may name links, which not everybody who reads it may be able to list.
    pub name_links: bool,
    /// How long its speed is measured, if at all.
    pub measure: Option<Duration>,
}

/// Takes up to two seconds to look at the names, and `measure`.
pub fn source(subject: &Subject<'_>, observe: &mut dyn FnMut(&str)) -> Vec<Finding> {
    let name = subject.name.display().to_string();
    observe(&format!("{name}: its files and links"));
    let found = survey(subject.root, subject.seen_at);
    let mut findings = Vec::new();
    match largest(subject.root, &found) {
        Ok(Some((file, size))) => {
            observe(&format!("{name}: how it is read"));
            findings.extend(reading(file, size, subject.measure, observe, &name));
        }
        Ok(None) => findings.push(Finding::unknown("storage", "there is no file yet to try it on")),
        Err(error) => findings.push(
            Finding::bad("storage", format!("its largest file cannot be opened: {error}"))
                .costs("what cannot be read cannot be served")
                .mend("mount as a user who may read it, or as root"),
        ),
    }
    findings.push(changes(subject.root));
    findings.push(links(&found, subject));
    findings.into_iter().map(|finding| finding.on(name.clone())).collect()
}

fn largest(root: &SourceRoot, found: &Survey) -> io::Result<Option<(File, u64)>> {
    match &found.largest {
        None | Some((_, 0)) => Ok(None),
        Some((path, size)) => {
            let opened = root.open_beneath(path, OFlags::RDONLY | OFlags::NONBLOCK, Mode::empty())?;
            Ok(Some((opened.into(), *size)))
        }
    }
}

fn reading(file: File, size: u64, time: Option<Duration>, observe: &mut dyn FnMut(&str), name: &str) -> Vec<Finding> {
    let direct = speed::direct(&file);
    let source = SourceFile::new(file);
    let kind = Storage::of(&source);
    let mut findings = vec![storage(kind)];
    findings.push(match &direct {
        Ok(_) => Finding::ok("direct-reads", "sources are read past the page cache"),
        Err(error) => Finding::warn("direct-reads", format!("O_DIRECT is refused: {error}"))
            .costs("files are read through the page cache, which is emptied behind: some speed when cold")
            .mend("a file system that takes O_DIRECT, such as ext4, XFS, Btrfs or NFS"),
    });
    if let Some(time) = time {
        observe(&format!("{name}: its speed"));
        findings.push(match speed::measure(source.file(), direct.as_ref().ok(), size, speed::readers(kind), time) {
            _ if !speed::is_enough(size) => Finding::unknown("speed", "there is no file yet that is large enough"),
            Ok(speed) => Finding::ok(
                "speed",
                format!(
                    "{}/s: {} were read; a model of 10 GiB takes {:.0} s when cold",
                    ByteSize(speed.bytes_per_second),
                    ByteSize(speed.bytes),
                    (10u64 << 30) as f64 / speed.bytes_per_second as f64
                ),
            ),
            Err(error @ SpeedError::Cached) => Finding::unknown("speed", error.to_string()),
            Err(error @ SpeedError::Read(_)) => Finding::bad("speed", error.to_string()).costs("models cannot be read"),
        });
    }
    findings
}

fn storage(storage: Storage) -> Finding {
    let found = match storage {
        Storage::Fast => "short seeks, as flash has: read in parallel",
        Storage::Rotational => "long seeks, as disks that turn have: read in order",
        Storage::Network => "a server: read in parallel, in small pieces",
    };
    Finding::ok("storage", found)
}

fn changes(root: &SourceRoot) -> Finding {
    if Watcher::new(root).is_some() {
        return Finding::ok("changes", "the kernel tells of changes that are made elsewhere");
    }
    Finding::warn("changes", "this file system does not tell of changes that are made elsewhere")
        .costs("names and attributes are asked for again every second, and walks over many files are slower")
        .mend("a local file system (ext4, XFS, Btrfs, F2FS, ZFS); else nothing: contents are never stale")
}

fn links(found: &Survey, subject: &Subject<'_>) -> Finding {
    let count = found.links_out.len();
    let cut = if found.cut_short { ", as far as was looked" } else { "" };
    let plural = if count == 1 { "link leads" } else { "links lead" };
    match (count, subject.follow_symlinks) {
        (0, _) => Finding::ok("links", format!("none leads out{cut}")),
        (_, true) => Finding::ok("links", format!("{count} {plural} out, and the mount follows them{cut}")),
        _ => {
            let mut names: Vec<String> =
                found.links_out.iter().take(NAMED).map(|path| path.display().to_string()).collect();
            if count > NAMED {
                names.push("…".to_owned());
            }
            let names = if subject.name_links { format!(": {}", names.join(", ")) } else { String::new() };
            Finding::warn("links", format!("{count} {plural} out{cut}{names}"))
                .costs("what they lead to is read from where it is, and never kept in RAM")
                .mend("mount with --follow-symlinks, or mount a folder that holds both")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use weightfs::control::CheckState;

    #[test]
    fn a_folder_is_looked_at_without_being_changed() {
        let place = tempfile::tempdir().unwrap();
        fs::write(place.path().join("m.safetensors"), vec![7; 1 << 20]).unwrap();
        std::os::unix::fs::symlink("/etc/hostname", place.path().join("out")).unwrap();
        let root = SourceRoot::open(place.path()).unwrap();
        let mut seen = Vec::new();
        let look = |follow_symlinks, seen: &mut Vec<String>| {
            let subject = Subject {
                root: &root,
                name: place.path(),
                seen_at: place.path(),
                follow_symlinks,
                name_links: true,
                measure: Some(Duration::from_millis(1)),
            };
            source(&subject, &mut |what| seen.push(what.to_owned()))
        };
        let findings = look(false, &mut seen);
        let state = |findings: &[Finding], name: &str| {
            findings.iter().find(|finding| finding.check.name == name).unwrap().check.state
        };
        assert_eq!(state(&findings, "links"), CheckState::Warn);
        assert_eq!(state(&findings, "speed"), CheckState::Unknown);
        assert_eq!(state(&look(true, &mut seen), "links"), CheckState::Ok);
        assert!(findings.iter().all(|finding| finding.check.subject.as_deref() == place.path().to_str()));
        assert!(seen.iter().any(|what| what.ends_with("its speed")));
        assert_eq!(fs::read_dir(place.path()).unwrap().count(), 2);
    }
}
