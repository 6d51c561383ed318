//! `mount.weightfs`, as mount(8) calls it: `mount.weightfs SOURCE MOUNTPOINT [-sfnv] [-N NAMESPACE] [-t TYPE]
//! [-o OPTIONS]`, so that a line in `/etc/fstab` mounts.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

use super::MountArgs;
use super::layers::parse_arguments;
use crate::env_vars::MOUNT_OPTIONS;

/// The names of this program under which mount(8) starts it.
const NAMES: [&str; 2] = ["mount.weightfs", "mount.fuse.weightfs"];

/// Options that are addressed to mount(8), systemd or the kernel, or that say what is so anyway.
const IGNORED: [&str; 26] = [
    "defaults",
    "auto",
    "noauto",
    "user",
    "nouser",
    "users",
    "nousers",
    "owner",
    "group",
    "nofail",
    "_netdev",
    "exec",
    "noexec",
    "suid",
    "nosuid",
    "dev",
    "nodev",
    "async",
    "atime",
    "noatime",
    "diratime",
    "nodiratime",
    "relatime",
    "norelatime",
    "comment",
    "silent",
];

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum HelperError {
    #[error("usage: mount.weightfs SOURCE MOUNTPOINT [-sfnv] [-o OPTION[=VALUE],…]; mount(8) calls it")]
    Usage,
    #[error("a weightfs mount cannot be remounted: unmount it and mount it again")]
    Remount,
    #[error(
        "unknown mount option '{0}': use the names of 'weightfs mount --help' without the dashes, such as \
             ram=24GiB, low_watermark=85 or ro"
    )]
    UnknownOption(String),
    #[error("in the mount options: {0}")]
    Value(String),
}

#[derive(Debug, PartialEq)]
pub struct Invocation {
    pub arguments: MountArgs,
    /// Check everything and mount nothing.
    pub fake: bool,
}

pub fn is_helper(program: &OsStr) -> bool {
    Path::new(program).file_name().is_some_and(|name| NAMES.iter().any(|helper| name == *helper))
}

/// `words` are the arguments after the program's name.
pub fn parse(words: impl IntoIterator<Item = OsString>) -> Result<Invocation, HelperError> {
    let mut words = words.into_iter();
    let (mut paths, mut options) = (Vec::new(), Vec::new());
    let (mut fake, mut sloppy) = (false, false);
    while let Some(word) = words.next() {
        let Some(letters) = word.as_bytes().strip_prefix(b"-").filter(|letters| !letters.is_empty()) else {
            paths.push(word);
            continue;
        };
        for (index, letter) in letters.iter().enumerate() {
            match letter {
                b'f' => fake = true,
                b's' => sloppy = true,
                b'n' | b'v' => {}
                b'o' | b't' | b'N' => {
                    // The value is the rest of this word, or the next one.
                    let rest = &letters[index + 1..];
                    let value = if rest.is_empty() { words.next() } else { Some(OsStr::from_bytes(rest).to_owned()) };
                    let value = value.ok_or(HelperError::Usage)?;
                    if *letter == b'o' {
                        options.extend(split_options(&value));
                    }
                    break;
                }
                _ => return Err(HelperError::Usage),
            }
        }
    }
    let [source, mountpoint] = <[OsString; 2]>::try_from(paths).map_err(|_| HelperError::Usage)?;
    let mut arguments = Vec::new();
    for option in options {
        match argument(&option) {
            Err(HelperError::UnknownOption(_)) if sloppy => {}
            argument => arguments.extend(argument?),
        }
    }
    arguments.extend(["--".into(), source, mountpoint]);
    let arguments = parse_arguments(&arguments).map_err(HelperError::Value)?;
    Ok(Invocation { arguments, fake })
}

/// At commas that are not in double quotes; the quotes are left out.
fn split_options(text: &OsStr) -> Vec<Vec<u8>> {
    let (mut options, mut quoted) = (vec![Vec::new()], false);
    for byte in text.as_bytes() {
        match byte {
            b'"' => quoted = !quoted,
            b',' if !quoted => options.push(Vec::new()),
            _ => options.last_mut().expect("one option from the start").push(*byte),
        }
    }
    options.retain(|option| !option.is_empty());
    options
}

/// The argument of `weightfs mount` that a mount option stands for, if any.
fn argument(option: &[u8]) -> Result<Option<OsString>, HelperError> {
    let end = option.iter().position(|byte| *byte == b'=').unwrap_or(option.len());
    let (name, value) = option.split_at(end);
    let name = String::from_utf8_lossy(name);
    let long = name.replace('_', "-");
    let is_ours = |known: &str| known != "foreground" && MOUNT_OPTIONS.iter().any(|(_, option)| *option == known);
    match name.as_ref() {
        "ro" => Ok(Some("--read-only".into())),
        "rw" => Ok(Some("--read-only=false".into())),
        "remount" => Err(HelperError::Remount),
        generic if IGNORED.contains(&generic) || generic.starts_with("x-") || generic.starts_with("X-") => Ok(None),
        _ if is_ours(&long) => Ok(Some(OsString::from_vec([b"--", long.as_bytes(), value].concat()))),
        _ => Err(HelperError::UnknownOption(name.into_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mount::options::Options;
    use crate::mount::values::{Percent, RamSize};
    use weightfs_mount::settings::IoChoice;

    fn of(line: &[&str]) -> Result<Invocation, HelperError> {
        parse(line.iter().map(OsString::from))
    }

    #[test]
    fn it_is_known_by_its_name() {
        assert!(is_helper(OsStr::new("/sbin/mount.weightfs")) && is_helper(OsStr::new("mount.fuse.weightfs")));
        assert!(!is_helper(OsStr::new("/usr/bin/weightfs")) && !is_helper(OsStr::new("")));
    }

    #[test]
    fn a_line_of_fstab_mounts() {
        let line = "rw,ram=24G,low_watermark=85,no-passthrough,allow_other=false,x-systemd.automount,_netdev,nofail";
        let invocation = of(&["models", "/mnt", "-n", "-o", line]).unwrap();
        let expected = Options {
            source: Some("models".into()),
            mountpoint: Some("/mnt".into()),
            ram: Some(RamSize::Bytes(24 << 30)),
            low_watermark: Some(Percent(85)),
            read_only: Some(false),
            no_passthrough: Some(true),
            allow_other: Some(false),
            ..Options::default()
        };
        assert_eq!(invocation.arguments.options, expected);
        assert!(!invocation.fake);
    }

    #[test]
    fn the_shipped_lines_of_fstab_mean_something() {
        let lines = include_str!("../../../packaging/fstab.example").lines();
        let mut count = 0;
        for line in lines.filter(|line| !line.starts_with('#') && !line.is_empty()) {
            let fields: Vec<_> = line.split_whitespace().collect();
            let [source, mountpoint, "weightfs", options, "0", "0"] = fields[..] else { panic!("{line}") };
            of(&[source, mountpoint, "-o", options]).unwrap();
            count += 1;
        }
        assert_eq!(count, 3);
    }

    #[test]
    fn letters_come_together_and_values_with_them() {
        let invocation = of(&["-sfvoro,io=threads", "-t", "fuse.weightfs", "a", "b", "-N", "/ns"]).unwrap();
        assert!(invocation.fake);
        assert_eq!(invocation.arguments.options.read_only, Some(true));
        assert_eq!(invocation.arguments.options.io, Some(IoChoice::Threads));
    }

    #[test]
    fn later_options_win_and_quotes_hold_commas() {
        let options = of(&["a", "b", "-o", "ro,rw,also=\"/c,d\",also=/e:/f,ram=1G,ram=2G"]).unwrap().arguments.options;
        assert_eq!(options.read_only, Some(false));
        assert_eq!(options.ram, Some(RamSize::Bytes(2 << 30)));
        assert_eq!(options.also, ["/c,d".parse().unwrap(), "/e:/f".parse().unwrap()]);
    }

    #[test]
    fn what_is_wrong_is_named_and_sloppy_mounting_forgives_the_unknown() {
        assert_eq!(of(&["a", "b", "-o", "rram=1G"]), Err(HelperError::UnknownOption("rram".into())));
        assert_eq!(of(&["a", "b", "-o", "foreground"]), Err(HelperError::UnknownOption("foreground".into())));
        assert!(of(&["a", "b", "-s", "-o", "rram=1G"]).is_ok());
        match of(&["a", "b", "-s", "-o", "ram=lots"]) {
            Err(HelperError::Value(reason)) => assert!(reason.contains("'lots'"), "{reason}"),
            other => panic!("{other:?}"),
        }
        assert_eq!(of(&["a", "b", "-o", "remount,ro"]), Err(HelperError::Remount));
        for line in [&["a"][..], &["a", "b", "c"], &["a", "b", "-o"], &["a", "b", "-x"]] {
            assert_eq!(of(line), Err(HelperError::Usage), "{line:?}");
        }
    }
}
