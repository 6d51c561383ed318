//! What can be known of a GPU without calling anything of it: files.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::{CUFILE_CONFIG_VARIABLE, ROOT_VARIABLE};

/// Linux has the first, its subsystem in Windows the second.
const DEVICE_FILES: [&str; 2] = ["dev/nvidiactl", "dev/dxg"];
/// What the module nvidia-fs makes.
const MODULE_FILES: [&str; 2] = ["proc/driver/nvidia-fs", "dev/nvidia-fs0"];
const CONFIG: &str = "etc/cufile.json";

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Presence {
    /// The device file of the driver.
    pub has_device: bool,
    /// The module of GPUDirect Storage.
    pub has_module: bool,
    pub config: Config,
}

/// What cuFile's configuration allows; None where it says nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Config {
    pub compatibility: Option<bool>,
    pub p2pdma: Option<bool>,
}

impl Presence {
    /// Of this machine, or below what the environment names as its root.
    pub fn look() -> Self {
        let root = env::var_os(ROOT_VARIABLE).filter(|root| !root.is_empty());
        let root = PathBuf::from(root.unwrap_or_else(|| "/".into()));
        let config = env::var_os(CUFILE_CONFIG_VARIABLE).map_or_else(|| root.join(CONFIG), PathBuf::from);
        Self::below(&root, &config)
    }

    pub fn below(root: &Path, config: &Path) -> Self {
        let any = |names: &[&str]| names.iter().any(|name| root.join(name).exists());
        let config = fs::read_to_string(config).map(|text| Config::parse(&text)).unwrap_or_default();
        Self { has_device: any(&DEVICE_FILES), has_module: any(&MODULE_FILES), config }
    }

    /// Whether the driver can be tried out.
    ///
    /// # Errors
    /// Why not, and what to do.
    pub fn driver(&self) -> Result<(), String> {
        if self.has_device {
            return Ok(());
        }
        Err("there is no /dev/nvidiactl: no NVIDIA GPU, its kernel module is not loaded ('modprobe nvidia'), or the \
             container was started without '--gpus all'"
            .to_owned())
    }

    /// Whether cuFile's driver may be opened. Where its device is missing, it is only where its configuration says that
    /// it can do without.
    ///
    /// # Errors
    /// Why not, and what to do.
    pub fn cufile(&self) -> Result<(), String> {
        self.driver()?;
        if self.has_module || self.config.p2pdma == Some(true) || self.config.compatibility == Some(true) {
            return Ok(());
        }
        Err("the module nvidia-fs is not loaded ('modprobe nvidia-fs', package nvidia-gds), and /etc/cufile.json allows \
             neither use_pci_p2pdma nor allow_compat_mode"
            .to_owned())
    }
}

impl Config {
    /// JSON with comments, as NVIDIA ships it.
    pub fn parse(text: &str) -> Self {
        let Ok(value) = serde_json::from_str::<Value>(&without_comments(text)) else { return Self::default() };
        let get = |name: &str| value.pointer(&format!("/properties/{name}")).and_then(Value::as_bool);
        Self { compatibility: get("allow_compat_mode"), p2pdma: get("use_pci_p2pdma") }
    }
}

/// Takes `// …` away where it stands outside of strings.
fn without_comments(text: &str) -> String {
    let line = |line: &str| {
        let (mut in_string, mut escaped) = (false, false);
        let bytes = line.as_bytes();
        let end = (0..bytes.len()).find(|&at| {
            let byte = bytes[at];
            match (in_string, byte) {
                _ if escaped => escaped = false,
                (true, b'\\') => escaped = true,
                (_, b'"') => in_string = !in_string,
                (false, b'/') => return bytes.get(at + 1) == Some(&b'/'),
                _ => {}
            }
            false
        });
        line[..end.unwrap_or(line.len())].to_owned() + "\n"
    };
    text.lines().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_say_what_may_be_tried() {
        let root = tempfile::tempdir().unwrap();
        let config = root.path().join(CONFIG);
        let look = || Presence::below(root.path(), &config);
        assert!(look().driver().unwrap_err().contains("modprobe nvidia'"));
        assert_eq!(look().cufile(), look().driver());
        for folder in ["dev", "etc", "proc/driver"] {
            fs::create_dir_all(root.path().join(folder)).unwrap();
        }
        fs::write(root.path().join("dev/nvidiactl"), "").unwrap();
        assert_eq!(look().driver(), Ok(()));
        assert!(look().cufile().unwrap_err().contains("nvidia-fs"));
        fs::write(&config, r#"{"properties": {"allow_compat_mode": false}}"#).unwrap();
        assert!(look().cufile().is_err());
        fs::write(&config, r#"{"properties": {"use_pci_p2pdma": true}}"#).unwrap();
        assert_eq!(look().cufile(), Ok(()));
        fs::remove_file(&config).unwrap();
        fs::create_dir(root.path().join("proc/driver/nvidia-fs")).unwrap();
        assert_eq!(look().cufile(), Ok(()));
    }

    #[test]
    fn the_configuration_may_have_comments() {
        let text = "{ // NOTE: \"x\"\n \"logging\": {\"dir\": \"http://a//b\\\"//c\"}, // more\n\
                    \"properties\": {\n  \"allow_compat_mode\": true, // \"no\"\n  \"use_pci_p2pdma\": false\n } }";
        assert_eq!(Config::parse(text), Config { compatibility: Some(true), p2pdma: Some(false) });
        assert_eq!(Config::parse("{"), Config::default());
        assert_eq!(Config::parse("{}"), Config::default());
    }
}
