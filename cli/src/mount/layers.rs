//! Where options come from: the command line, else the environment, else the file.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::{fs, io};

use clap::{Command, FromArgMatches};

use super::MountArgs;
use super::options::Options;
use crate::env_vars::{ALSO_SEPARATOR, MOUNT_OPTIONS};

#[derive(Debug, thiserror::Error)]
pub enum LayerError {
    #[error("the environment variable {variable} is wrong: {reason}")]
    Environment { variable: &'static str, reason: String },
    #[error("cannot read the configuration {}: {error}", path.display())]
    Unreadable { path: PathBuf, error: io::Error },
    #[error("the configuration {} is wrong: {reason}", path.display())]
    File { path: PathBuf, reason: String },
}

/// `arguments` with what the environment says and then what the file says that either of them names.
pub fn complete(arguments: MountArgs, variable: impl Fn(&str) -> Option<OsString>) -> Result<MountArgs, LayerError> {
    let environment = from_environment(variable)?;
    let merged = MountArgs {
        options: arguments.options.over(environment.options),
        config: arguments.config.or(environment.config),
        foreground: arguments.foreground.or(environment.foreground),
        ready_on_stdout: arguments.ready_on_stdout,
    };
    match &merged.config {
        Some(path) => Ok(MountArgs { options: merged.options.over(from_file(path)?), ..merged }),
        None => Ok(merged),
    }
}

/// Reads variables as the options that they stand for. Empty ones count as unset.
fn from_environment(variable: impl Fn(&str) -> Option<OsString>) -> Result<MountArgs, LayerError> {
    let mut arguments = Vec::new();
    for (name, option) in MOUNT_OPTIONS {
        let Some(value) = variable(name).filter(|value| !value.is_empty()) else { continue };
        let values: Vec<&[u8]> = match option {
            "also" => value.as_bytes().split(|byte| *byte == ALSO_SEPARATOR).filter(|part| !part.is_empty()).collect(),
            _ => vec![value.as_bytes()],
        };
        let mine: Vec<_> = values
            .into_iter()
            .map(|value| OsString::from_vec([b"--", option.as_bytes(), b"=", value].concat()))
            .collect();
        // Alone first, so that an error can name the variable.
        parse_arguments(&mine).map_err(|reason| LayerError::Environment { variable: name, reason })?;
        arguments.extend(mine);
    }
    parse_arguments(&arguments).map_err(|reason| LayerError::Environment { variable: "WEIGHTFS_…", reason })
}

/// Reads `arguments` as those of `weightfs mount`; an error is one line.
pub fn parse_arguments(arguments: &[OsString]) -> Result<MountArgs, String> {
    let command =
        <MountArgs as clap::Args>::augment_args(Command::new("mount").no_binary_name(true).args_override_self(true));
    command.try_get_matches_from(arguments).and_then(|matches| MountArgs::from_arg_matches(&matches)).map_err(|error| {
        let text = error.to_string();
        let first = text.lines().next().unwrap_or_default();
        first.strip_prefix("error: ").unwrap_or(first).to_owned()
    })
}

fn from_file(path: &Path) -> Result<Options, LayerError> {
    let text = fs::read_to_string(path).map_err(|error| LayerError::Unreadable { path: path.to_owned(), error })?;
    parse_file(&text, path.parent().unwrap_or(Path::new("")))
        .map_err(|reason| LayerError::File { path: path.to_owned(), reason })
}

/// Reads the text of a configuration. Relative paths in it start at its folder `base`.
fn parse_file(text: &str, base: &Path) -> Result<Options, String> {
    let mut options: Options = toml::from_str(text).map_err(|error| error.to_string().trim_end().to_owned())?;
    let folders = options.also.iter_mut().flat_map(|folder| [Some(&mut folder.source), folder.mountpoint.as_mut()]);
    let paths = [options.source.as_mut(), options.mountpoint.as_mut(), options.log_file.as_mut()];
    for path in folders.chain(paths).flatten() {
        *path = base.join(&path);
    }
    Ok(options)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mount::values::{Folder, Percent, RamSize, Wait};
    use std::time::Duration;
    use weightfs_mount::settings::IoChoice;

    fn arguments(line: &[&str]) -> MountArgs {
        parse_arguments(&line.iter().map(OsString::from).collect::<Vec<_>>()).unwrap()
    }

    fn nothing_set(_: &str) -> Option<OsString> {
        None
    }

    #[test]
    fn the_command_line_wins_over_the_environment_and_that_over_the_file() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("c.toml");
        fs::write(&path, "ram = '1G'\nhigh-watermark = 81\nlow-watermark = 71\nsource = '/file'\nread-only = true\n")
            .unwrap();
        let config = path.clone().into_os_string();
        let variable = |name: &str| match name {
            "WEIGHTFS_CONFIG" => Some(config.clone()),
            "WEIGHTFS_RAM" => Some("2G".into()),
            "WEIGHTFS_HIGH_WATERMARK" => Some("82".into()),
            "WEIGHTFS_IO" => Some("".into()),
            _ => None,
        };
        let all = complete(arguments(&["--ram=3G", "--read-only=false"]), variable).unwrap().options;
        assert_eq!(all.ram, Some(RamSize::Bytes(3 << 30)));
        assert_eq!(all.high_watermark, Some(Percent(82)));
        assert_eq!(all.low_watermark, Some(Percent(71)));
        assert_eq!(all.read_only, Some(false));
        assert_eq!(all.io, None);
        assert_eq!(all.source, Some("/file".into()));
    }

    #[test]
    fn a_source_brings_its_mountpoint_and_further_folders_replace_those_below() {
        let file = parse_file("source = 'a'\nmountpoint = '/b'\nalso = ['/c:d']", Path::new("/etc")).unwrap();
        assert_eq!(file.source, Some("/etc/a".into()));
        let folder = |text: &str| text.parse::<Folder>().unwrap();
        let other = arguments(&["/x"]).options.over(file.clone());
        assert_eq!((other.source, other.mountpoint), (Some("/x".into()), None));
        assert_eq!(other.also, [folder("/c:/etc/d")]);
        let other = arguments(&["--also=/e"]).options.over(file);
        assert_eq!((other.source, other.mountpoint), (Some("/etc/a".into()), Some("/b".into())));
        assert_eq!(other.also, [folder("/e")]);
    }

    #[test]
    fn every_option_has_a_variable_and_every_variable_an_option() {
        let command = <MountArgs as clap::Args>::augment_args(Command::new("mount"));
        let mut options: Vec<_> =
            command.get_arguments().filter(|arg| !arg.is_hide_set()).filter_map(|arg| arg.get_long()).collect();
        let mut variables: Vec<_> = MOUNT_OPTIONS.iter().map(|(_, option)| *option).collect();
        options.sort_unstable();
        variables.sort_unstable();
        assert_eq!(options, variables);
        for (name, option) in MOUNT_OPTIONS {
            assert_eq!(name, format!("WEIGHTFS_{}", option.to_uppercase().replace('-', "_")));
        }
    }

    #[test]
    fn a_wrong_variable_is_named() {
        let variable = |name: &str| (name == "WEIGHTFS_RAM").then(|| OsString::from("lots"));
        let error = complete(arguments(&[]), variable).unwrap_err().to_string();
        assert!(error.contains("WEIGHTFS_RAM") && error.contains("'lots'") && error.contains("24GiB"), "{error}");
    }

    #[test]
    fn several_folders_fit_in_one_variable() {
        let variable = |name: &str| (name == "WEIGHTFS_ALSO").then(|| OsString::from("/a:/b;/c"));
        let also = complete(arguments(&["/x"]), variable).unwrap().options.also;
        assert_eq!(also, ["/a:/b".parse().unwrap(), "/c".parse().unwrap()]);
    }

    #[test]
    fn mistakes_in_the_file_are_shown_with_their_line() {
        let cases = [
            ("ram = '1G'\nramm = '2G'\n", "line 2", "unknown field `ramm`"),
            ("\n\nram = 'lots'\n", "line 3", "'lots' is not a size"),
            ("high-watermark = 'many'", "line 1", "not a percentage"),
            ("low-watermark = -1", "line 1", "whole number"),
            ("read-only = 'maybe'", "line 1", "expected a boolean"),
            ("also = ['/a:']", "line 1", "SOURCE:MOUNTPOINT"),
            ("source = \n", "line 1", ""),
            ("config = 'x'", "line 1", "unknown field `config`"),
        ];
        for (text, line, reason) in cases {
            let error = parse_file(text, Path::new("/")).unwrap_err();
            assert!(error.contains(line) && error.contains(reason), "{text}: {error}");
        }
        let error = complete(arguments(&["--config=/none/such"]), nothing_set).unwrap_err().to_string();
        assert!(error.contains("/none/such"), "{error}");
    }

    #[test]
    fn options_survive_being_written_as_a_command_line() {
        let all = parse_file(
            "source = '/-s'\nmountpoint = '/m'\nalso = ['/a\\:1:/b', '/c']\nram = '50%'\nhigh-watermark = 95\n\
             low-watermark = '90%'\nreserve = '1.5G'\nread-only = true\nallow-other = false\nfollow-symlinks = true\n\
             io = 'threads'\nno-passthrough = true\nopen-wait = '1500ms'\nlisten = '127.0.0.1:8000'\n\
             control-group = 'g'\nlog = 'debug'\nlog-format = 'json'\nlog-file = '/l'\n",
            Path::new("/"),
        )
        .unwrap();
        assert_eq!(all.io, Some(IoChoice::Threads));
        assert_eq!(all.open_wait, Some(Wait(Duration::from_millis(1500))));
        for options in [all, Options::default(), arguments(&["--", "-dash"]).options] {
            assert_eq!(parse_arguments(&options.to_arguments()).unwrap().options, options);
        }
    }

    #[test]
    fn the_shipped_example_shows_every_key_with_its_default_or_a_valid_value() {
        let example = include_str!("../../../packaging/weightfs.toml");
        parse_file(example, Path::new("/")).unwrap();
        let shown: String = example
            .lines()
            .filter_map(|line| line.strip_prefix('#').filter(|rest| !rest.starts_with(' ') && rest.contains(" = ")))
            .map(|line| format!("{line}\n"))
            .collect();
        parse_file(&shown, Path::new("/")).unwrap();
        let (plain, commented) = (format!("\n{example}"), format!("\n{shown}"));
        for option in MOUNT_OPTIONS.iter().map(|(_, option)| *option).chain(["source", "mountpoint"]) {
            let key = format!("\n{option} = ");
            let is_shown = plain.contains(&key) || commented.contains(&key);
            // Where the file is and whether to stay are no matter of the file.
            assert_eq!(is_shown, !["config", "foreground"].contains(&option), "{option}");
        }
    }

    #[test]
    fn whatever_a_file_says_is_options_or_a_reason() {
        let runs = weightfs_fuzz::replay::replay("config", |bytes| {
            let text = String::from_utf8_lossy(bytes);
            if let Err(reason) = parse_file(&text, Path::new("/base")) {
                assert!(!reason.trim().is_empty(), "{text}");
            }
        });
        println!("config: {runs} mutations");
    }
}
