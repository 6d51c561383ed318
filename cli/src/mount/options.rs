//! The options of `weightfs mount`: one declaration for the command line, the environment, `/etc/fstab` and the file.
//!
//! Every field is what somebody said, or nothing; defaults come later (`plan`).

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;

use clap::builder::{BoolishValueParser, OsStringValueParser, TypedValueParser, ValueParser};
use clap::{ArgAction, Args};
use serde::Deserialize;
use weightfs::units::ByteSize;
use weightfs_mount::settings::IoChoice;

use super::values::{Folder, LogFormat, LogLevel, Percent, RamSize, Wait, from_file, list_from_file};

#[derive(Args, Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct Options {
    /// The folder with the models.
    #[arg(value_name = "SOURCE")]
    pub source: Option<PathBuf>,

    /// Where to mount it: an empty folder. Without it, the mount is put over SOURCE itself, so that every program
    /// finds the models where they were.
    #[arg(value_name = "MOUNTPOINT")]
    pub mountpoint: Option<PathBuf>,

    /// One more folder in the same daemon, under the same budget. May be repeated; '\:' is a colon in a name.
    #[arg(long, value_name = "SOURCE[:MOUNTPOINT]", value_parser = folder_parser(), action = ArgAction::Append)]
    #[serde(deserialize_with = "list_from_file")]
    pub also: Vec<Folder>,

    /// The most RAM to keep models in: a size (24GiB, 512M), or a percentage of the machine's RAM or of the
    /// container's limit. [default: half of what is available now]
    #[arg(long, value_name = "SIZE|PERCENT")]
    #[serde(deserialize_with = "from_file")]
    pub ram: Option<RamSize>,

    /// Percent of the budget at which room is made. [default: 100]
    #[arg(long, value_name = "PERCENT")]
    #[serde(deserialize_with = "from_file")]
    pub high_watermark: Option<Percent>,

    /// Percent of the budget down to which room is made. [default: 99]
    #[arg(long, value_name = "PERCENT")]
    #[serde(deserialize_with = "from_file")]
    pub low_watermark: Option<Percent>,

    /// RAM to leave free for other programs, also when it takes models out of RAM. [default: 10 % of the RAM, 2 to
    /// 10 GB, and 2 GiB more, which is what ComfyUI leaves free, but never more than half of the RAM]
    #[arg(long, value_name = "SIZE")]
    #[serde(deserialize_with = "from_file")]
    pub reserve: Option<ByteSize>,

    /// Refuse every change through the mount.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true",
          value_parser = BoolishValueParser::new())]
    pub read_only: Option<bool>,

    /// Let other users in, each with their own rights. [default: on for root, whose daemon normally serves the
    /// programs of others; off for everybody else, for whom /etc/fuse.conf must allow it]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true",
          value_parser = BoolishValueParser::new())]
    pub allow_other: Option<bool>,

    /// Present links that lead out of SOURCE as what they point to, where root or the daemon's user owns the link.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true",
          value_parser = BoolishValueParser::new())]
    pub follow_symlinks: Option<bool>,

    /// How to read the source: auto, uring or threads. [default: auto, which tries io_uring first]
    #[arg(long, value_name = "HOW")]
    #[serde(deserialize_with = "from_file")]
    pub io: Option<IoChoice>,

    /// Answer every read in the daemon, even where the kernel could read resident files without it.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true",
          value_parser = BoolishValueParser::new())]
    pub no_passthrough: Option<bool>,

    /// How long opening a file may wait for it to be read into RAM whole: 500ms, 2s; 0 does not wait. [default: 2s]
    #[arg(long, value_name = "DURATION")]
    #[serde(deserialize_with = "from_file")]
    pub open_wait: Option<Wait>,

    /// Serve the dashboard and the control interface to browsers at this address, such as 127.0.0.1:8000. Whoever
    /// reaches it may look; changing things takes the token that 'weightfs dashboard' gives.
    #[arg(long, value_name = "ADDRESS:PORT")]
    #[serde(deserialize_with = "from_file")]
    pub listen: Option<SocketAddr>,

    /// Let the members of this group pin, evict and prefetch, besides root, the daemon's user and the owner of SOURCE.
    #[arg(long, value_name = "NAME")]
    pub control_group: Option<String>,
    /// Where a daemon that died has left a dead mount, remove that first. A mount that lives is left alone.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true",
          value_parser = BoolishValueParser::new())]
    pub replace: Option<bool>,

    /// How much to log: error, warn, info, debug or trace. [default: info]
    #[arg(long, value_name = "LEVEL")]
    #[serde(deserialize_with = "from_file")]
    pub log: Option<LogLevel>,

    /// How to log: text, or json for one object a line. [default: text]
    #[arg(long, value_name = "FORMAT")]
    #[serde(deserialize_with = "from_file")]
    pub log_format: Option<LogFormat>,

    /// Where to log. [default: in the background, beside the control socket in /run/weightfs or
    /// $XDG_RUNTIME_DIR/weightfs; in the foreground, standard error]
    #[arg(long, value_name = "FILE")]
    pub log_file: Option<PathBuf>,
}

fn folder_parser() -> ValueParser {
    OsStringValueParser::new().try_map(|text| Folder::parse(&text)).into()
}

impl Options {
    /// These, and where they say nothing, those of `lower`. A source brings its mountpoint, or that it has none; the
    /// further folders are one option like any other.
    pub fn over(self, lower: Self) -> Self {
        let (source, mountpoint) = match self.source {
            Some(source) => (Some(source), self.mountpoint),
            None => (lower.source, self.mountpoint.or(lower.mountpoint)),
        };
        Self {
            source,
            mountpoint,
            also: if self.also.is_empty() { lower.also } else { self.also },
            ram: self.ram.or(lower.ram),
            high_watermark: self.high_watermark.or(lower.high_watermark),
            low_watermark: self.low_watermark.or(lower.low_watermark),
            reserve: self.reserve.or(lower.reserve),
            read_only: self.read_only.or(lower.read_only),
            allow_other: self.allow_other.or(lower.allow_other),
            follow_symlinks: self.follow_symlinks.or(lower.follow_symlinks),
            io: self.io.or(lower.io),
            no_passthrough: self.no_passthrough.or(lower.no_passthrough),
            open_wait: self.open_wait.or(lower.open_wait),
            listen: self.listen.or(lower.listen),
            control_group: self.control_group.or(lower.control_group),
            replace: self.replace.or(lower.replace),
            log: self.log.or(lower.log),
            log_format: self.log_format.or(lower.log_format),
            log_file: self.log_file.or(lower.log_file),
        }
    }

    /// The command line that says the same.
    pub fn to_arguments(&self) -> Vec<OsString> {
        let mut arguments = Vec::new();
        let mut add = |name: &str, value: Option<OsString>| {
            if let Some(value) = value {
                let mut argument = OsString::from(format!("--{name}="));
                argument.push(value);
                arguments.push(argument);
            }
        };
        add("ram", self.ram.map(|value| value.to_string().into()));
        add("high-watermark", self.high_watermark.map(|value| value.to_string().into()));
        add("low-watermark", self.low_watermark.map(|value| value.to_string().into()));
        add("reserve", self.reserve.map(|value| value.0.to_string().into()));
        add("read-only", self.read_only.map(|value| value.to_string().into()));
        add("allow-other", self.allow_other.map(|value| value.to_string().into()));
        add("follow-symlinks", self.follow_symlinks.map(|value| value.to_string().into()));
        add("io", self.io.map(|value| value.to_string().into()));
        add("no-passthrough", self.no_passthrough.map(|value| value.to_string().into()));
        add("open-wait", self.open_wait.map(|value| value.to_string().into()));
        add("listen", self.listen.map(|value| value.to_string().into()));
        add("control-group", self.control_group.clone().map(OsString::from));
        add("replace", self.replace.map(|value| value.to_string().into()));
        add("log", self.log.map(|value| value.to_string().into()));
        add("log-format", self.log_format.map(|value| value.to_string().into()));
        add("log-file", self.log_file.clone().map(PathBuf::into_os_string));
        for folder in &self.also {
            add("also", Some(folder.to_text()));
        }
        // A folder whose name begins with a dash is no option.
        arguments.push("--".into());
        arguments
            .extend([&self.source, &self.mountpoint].into_iter().flatten().map(|path| path.clone().into_os_string()));
        arguments
    }
}
