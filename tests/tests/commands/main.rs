//! Every command from outside, on a live mount: what it prints for people and for programs, and how it ends.

mod device;
mod doctor;
mod looking;
mod made;
mod session;
mod steering;
mod terminal;

use std::path::Path;
use std::time::Duration;

use serde_json::Value;
use weightfs_tests::requirements::{Need, met};
use weightfs_tests::system::{let_files_settle, temporary_folder};
use weightfs_tests::{Mount, data};

/// Only a broken daemon needs it.
const PATIENCE: Duration = Duration::from_secs(20);

/// A folder of models: a checkpoint of 48 MiB, and two LoRAs of 12.
struct Library {
    mount: Mount,
    source: tempfile::TempDir,
}

impl Library {
    /// None where nothing can be mounted.
    fn mounted() -> Option<Library> {
        Library::with_gpu(&[])
    }

    /// With this in the environment of the daemon.
    fn with_gpu(environment: &[(&str, String)]) -> Option<Library> {
        if !met(&[Need::Mount]) {
            return None;
        }
        let source = temporary_folder("source");
        let at = |name: &str| source.path().join(name);
        for folder in ["checkpoints", "loras"] {
            std::fs::create_dir(at(folder)).expect("make a folder");
        }
        data::write_safetensors(&at("checkpoints/base.safetensors"), 1, 48);
        data::write_safetensors(&at("loras/a.safetensors"), 100, 12);
        data::write_safetensors(&at("loras/b.safetensors"), 200, 12);
        let_files_settle();
        let environment: Vec<_> = environment.iter().map(|(name, value)| (*name, &value[..])).collect();
        let mount = Mount::start_with(source.path(), &["--ram", "128M"], &environment);
        Some(Library { mount, source })
    }

    fn base(&self) -> String {
        text(&self.mount.join("checkpoints/base.safetensors")).to_owned()
    }

    /// Any path of the mount.
    fn root(&self) -> &str {
        text(self.mount.path())
    }

    /// What a command prints, with the place of the mount as `/m` and without figures.
    fn prints(&self, arguments: &[&str]) -> String {
        weightfs_tests::mask::text(&self.told(arguments).replace(self.root(), "/m"))
    }

    /// What a command that goes well prints.
    fn told(&self, arguments: &[&str]) -> String {
        let (code, stdout, stderr) = self.run(arguments);
        assert_eq!(code, 0, "{arguments:?}: {stderr}");
        stdout
    }

    fn json(&self, arguments: &[&str]) -> Value {
        let told = self.told(arguments);
        serde_json::from_str(&told).unwrap_or_else(|error| panic!("{arguments:?}: {error}: {told}"))
    }

    /// The exit code, standard output and standard error.
    fn run(&self, arguments: &[&str]) -> (i32, String, String) {
        let output = self.mount.run(arguments);
        let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
        (output.status.code().expect("it is not killed"), text(output.stdout), text(output.stderr))
    }

    /// What is known of the checkpoint.
    fn base_status(&self) -> Value {
        self.json(&["ls", &self.base(), "--json"])["files"][0].clone()
    }
}

fn text(path: &Path) -> &str {
    path.to_str().expect("UTF-8")
}
