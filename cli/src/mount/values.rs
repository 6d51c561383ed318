//! The values of options as people write them, in one form for the command line, the environment and the file.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use serde::de::{Deserializer, Error, Unexpected, Visitor};
use tracing::Level;
use weightfs::units::ByteSize;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ValueError {
    #[error("'{0}' is not a size or a percentage: write, for example, 24GiB, 512M or 50%")]
    Ram(String),
    #[error("'{0}' is not a percentage: write a whole number from 1 to 100")]
    Percent(String),
    #[error("'{0}' is not a duration: write, for example, 2s, 500ms, 1m, or 0 for none")]
    Duration(String),
    #[error("'{0}' is not a log level: use error, warn, info, debug or trace")]
    Log(String),
    #[error("'{0}' is not a way to log: use text or json")]
    LogFormat(String),
    #[error("write SOURCE or SOURCE:MOUNTPOINT, both not empty ('\\:' stands for a colon in a name)")]
    Folder,
}

/// Bytes, or a part of the memory of the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RamSize {
    Bytes(u64),
    Percent(Percent),
}

impl FromStr for RamSize {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let error = || ValueError::Ram(text.to_owned());
        if text.trim_end().ends_with('%') {
            return text.parse().map(Self::Percent).map_err(|_| error());
        }
        text.parse::<ByteSize>().map(|size| Self::Bytes(size.0)).map_err(|_| error())
    }
}

impl fmt::Display for RamSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bytes(bytes) => write!(f, "{bytes}"),
            Self::Percent(percent) => write!(f, "{percent}%"),
        }
    }
}

/// From 1 to 100. The sign is optional: `95` or `95%`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Percent(pub u8);

impl Percent {
    pub fn of(self, whole: u64) -> u64 {
        (u128::from(whole) * u128::from(self.0) / 100) as u64
    }
}

impl FromStr for Percent {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let number = text.trim();
        let number = number.strip_suffix('%').unwrap_or(number).trim_end();
        number
            .parse()
            .ok()
            .filter(|percent| (1..=100).contains(percent))
            .map(Self)
            .ok_or_else(|| ValueError::Percent(text.to_owned()))
    }
}

impl fmt::Display for Percent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A duration with its unit; without one, seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wait(pub Duration);

const WAIT_UNITS: [(&str, u64); 5] = [("ms", 1), ("s", 1000), ("", 1000), ("m", 60_000), ("h", 3_600_000)];
/// Longer than any file takes to fill; keeps sums of times far from overflow.
const MAX_WAIT: Duration = Duration::from_secs(24 * 3600);

impl FromStr for Wait {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let error = || ValueError::Duration(text.to_owned());
        let trimmed = text.trim();
        let split = trimmed.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(trimmed.len());
        let (number, unit) = trimmed.split_at(split);
        let unit = unit.trim_start();
        let factor = WAIT_UNITS.iter().find(|(name, _)| *name == unit).map(|(_, factor)| *factor).ok_or_else(error)?;
        let millis = number.parse::<f64>().map_err(|_| error())? * factor as f64;
        let wait = Duration::try_from_secs_f64(millis / 1000.0).map_err(|_| error())?;
        if wait <= MAX_WAIT { Ok(Self(wait)) } else { Err(error()) }
    }
}

impl fmt::Display for Wait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}ms", self.0.as_millis())
    }
}

/// How a line of the log looks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogFormat {
    #[default]
    Text,
    /// One object a line.
    Json,
}

impl FromStr for LogFormat {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "text" => Ok(Self::Text),
            "json" => Ok(Self::Json),
            _ => Err(ValueError::LogFormat(text.to_owned())),
        }
    }
}

impl fmt::Display for LogFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Text => "text",
            Self::Json => "json",
        })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogLevel(pub Level);

impl FromStr for LogLevel {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        // Level's own numbers are no names that anybody would know.
        let level = if text.bytes().all(|byte| byte.is_ascii_alphabetic()) { text.parse().ok() } else { None };
        level.map(Self).ok_or_else(|| ValueError::Log(text.to_owned()))
    }
}

impl fmt::Display for LogLevel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.as_str().to_ascii_lowercase())
    }
}

/// A folder to mount: `SOURCE`, over itself, or `SOURCE:MOUNTPOINT`. A colon in a name is written `\:`, and a backslash
/// before a colon or another backslash `\\`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Folder {
    pub source: PathBuf,
    pub mountpoint: Option<PathBuf>,
}

impl Folder {
    pub fn parse(text: &OsStr) -> Result<Self, ValueError> {
        let mut halves = vec![Vec::new()];
        let mut bytes = text.as_bytes().iter().copied().peekable();
        while let Some(byte) = bytes.next() {
            if byte == b':' && halves.len() == 1 {
                halves.push(Vec::new());
                continue;
            }
            let literal =
                if byte == b'\\' { bytes.next_if(|next| b":\\".contains(next)).unwrap_or(byte) } else { byte };
            halves.last_mut().expect("one half from the start").push(literal);
        }
        if halves.iter().any(Vec::is_empty) {
            return Err(ValueError::Folder);
        }
        let mut halves = halves.into_iter().map(|half| PathBuf::from(OsString::from_vec(half)));
        Ok(Self { source: halves.next().expect("one half from the start"), mountpoint: halves.next() })
    }

    /// The text that [`Self::parse`] reads as this.
    pub fn to_text(&self) -> OsString {
        let mut text = Vec::new();
        for (index, half) in std::iter::once(&self.source).chain(&self.mountpoint).enumerate() {
            if index > 0 {
                text.push(b':');
            }
            for byte in half.as_os_str().as_bytes() {
                if b":\\".contains(byte) {
                    text.push(b'\\');
                }
                text.push(*byte);
            }
        }
        OsString::from_vec(text)
    }
}

impl FromStr for Folder {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::parse(OsStr::new(text))
    }
}

/// Reads a value of the file that is text or a whole number, as it would be read from the command line.
pub fn from_file<'de, T, D>(deserializer: D) -> Result<Option<T>, D::Error>
where
    T: FromStr<Err: fmt::Display>,
    D: Deserializer<'de>,
{
    deserializer.deserialize_any(TextVisitor).and_then(|text| text.parse().map(Some).map_err(D::Error::custom))
}

/// The same for a list of texts.
pub fn list_from_file<'de, T, D>(deserializer: D) -> Result<Vec<T>, D::Error>
where
    T: FromStr<Err: fmt::Display>,
    D: Deserializer<'de>,
{
    let texts: Vec<String> = serde::Deserialize::deserialize(deserializer)?;
    texts.iter().map(|text| text.parse().map_err(D::Error::custom)).collect()
}

struct TextVisitor;

impl Visitor<'_> for TextVisitor {
    type Value = String;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("text in quotes or a whole number")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<String, E> {
        Ok(text.to_owned())
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<String, E> {
        if number < 0 { Err(E::invalid_value(Unexpected::Signed(number), &self)) } else { Ok(number.to_string()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn ram_is_a_size_or_a_percentage() {
        assert_eq!("24GiB".parse(), Ok(RamSize::Bytes(24 << 30)));
        assert_eq!("50%".parse(), Ok(RamSize::Percent(Percent(50))));
        for wrong in ["", "%", "0%", "101%", "-5%", "lots"] {
            assert_eq!(wrong.parse::<RamSize>(), Err(ValueError::Ram(wrong.into())));
        }
        assert_eq!(Percent(50).of(u64::MAX), u64::MAX / 2);
    }

    #[test]
    fn waits_have_units() {
        let cases =
            [("2s", 2000), ("500ms", 500), ("1.5s", 1500), ("2", 2000), ("0", 0), ("1m", 60_000), ("1 h", 3_600_000)];
        for (text, millis) in cases {
            assert_eq!(text.parse(), Ok(Wait(Duration::from_millis(millis))), "{text}");
        }
        for wrong in ["", "s", "-1s", "1d", "99999h", "1.2.3s", "inf", "NaN"] {
            assert!(wrong.parse::<Wait>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_folder_may_have_colons_in_its_names() {
        let folder = |source: &str, mountpoint: Option<&str>| Folder {
            source: source.into(),
            mountpoint: mountpoint.map(PathBuf::from),
        };
        let cases = [
            ("/a", folder("/a", None)),
            ("/a:/b", folder("/a", Some("/b"))),
            (r"/a\:1:/b\:2", folder("/a:1", Some("/b:2"))),
            (r"/a\b", folder(r"/a\b", None)),
            ("/a:/b:c", folder("/a", Some("/b:c"))),
        ];
        for (text, expected) in cases {
            assert_eq!(text.parse(), Ok(expected.clone()), "{text}");
            assert_eq!(Folder::parse(&expected.to_text()), Ok(expected));
        }
        for wrong in ["", ":", "/a:", ":/b"] {
            assert_eq!(wrong.parse::<Folder>(), Err(ValueError::Folder), "{wrong}");
        }
    }

    proptest! {
        #[test]
        fn any_two_names_survive_as_one_text(source in r"[a:\\/]{1,8}", mountpoint in proptest::option::of(r"[a:\\/]{1,8}")) {
            let folder = Folder { source: source.into(), mountpoint: mountpoint.map(PathBuf::from) };
            prop_assert_eq!(Folder::parse(&folder.to_text()), Ok(folder));
        }
    }

    #[test]
    fn log_levels_are_names() {
        assert_eq!("debug".parse(), Ok(LogLevel(Level::DEBUG)));
        assert!("3".parse::<LogLevel>().is_err() && "loud".parse::<LogLevel>().is_err());
    }
}
