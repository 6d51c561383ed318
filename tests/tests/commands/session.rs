//! The session that the README begins with: what it shows is what is printed.

use std::fs;
use std::path::Path;
use std::process::Command;

use weightfs_tests::data;
use weightfs_tests::mask;
use weightfs_tests::mount::binary;
use weightfs_tests::python::{interpreter, workspace};
use weightfs_tests::requirements::{Need, met};
use weightfs_tests::system::{let_files_settle, temporary_folder};

const HEADING: &str = "## A first session";
/// What the folder is called there.
const FOLDER: &str = "/srv/models";

/// Commands, each with what is printed after it.
fn session() -> Vec<(String, String)> {
    let readme = fs::read_to_string(workspace().join("README.md")).expect("the README is there");
    let chapter = readme.split(HEADING).nth(1).expect("it has a first session");
    let block = chapter.split("```console\n").nth(1).and_then(|rest| rest.split("```").next()).expect("a session");
    let mut session: Vec<(String, String)> = Vec::new();
    for line in block.lines() {
        match (line.strip_prefix("# "), session.last_mut()) {
            (Some(command), _) => session.push((command.to_owned(), String::new())),
            (None, Some((_, printed))) => *printed += &format!("{line}\n"),
            (None, None) => panic!("the session begins with a command"),
        }
    }
    session
}

/// The library of the session, smaller.
fn make_library(folder: &Path) {
    for (name, seed, megabytes) in [
        ("checkpoints/base.safetensors", 1, 96),
        ("loras/style.safetensors", 100, 12),
        ("text_encoders/t5.safetensors", 200, 48),
        ("vae/ae.safetensors", 300, 12),
    ] {
        let path = folder.join(name);
        fs::create_dir_all(path.parent().expect("a folder")).expect("make a folder");
        data::write_safetensors(&path, seed, megabytes);
    }
}

/// Ends the mount, also when the session does not.
struct Unmounted<'a>(&'a Path);

impl Drop for Unmounted<'_> {
    fn drop(&mut self) {
        let _ = Command::new(binary()).args(["unmount", "--lazy"]).arg(self.0).output();
    }
}

#[test]
fn the_first_session_prints_what_the_readme_shows() {
    // Passthrough is what it shows.
    if !met(&[Need::Mount, Need::Root, Need::Python]) {
        return;
    }
    let folder = temporary_folder("session");
    make_library(folder.path());
    let_files_settle();
    let _unmounted = Unmounted(folder.path());
    let place = folder.path().to_str().expect("UTF-8");
    // The program that is tested, and a Python that has safetensors.
    let folders = [binary(), interpreter()].map(|program| program.parent().expect("a folder").display().to_string());
    let path = format!("{}:{}", folders.join(":"), std::env::var("PATH").expect("a path"));
    let mut transcript = String::new();
    let mut differences = String::new();
    for (command, shown) in session() {
        let run = Command::new("bash")
            .args(["-c", &format!("{} 2>&1", command.replace(FOLDER, place))])
            .env("PATH", &path)
            .output()
            .expect("run bash");
        let printed = String::from_utf8_lossy(&run.stdout).replace(place, FOLDER);
        transcript += &format!("# {command}\n{printed}\n");
        // Notes are about the machine.
        let printed: String =
            printed.lines().filter(|line| !line.starts_with("Note")).map(|line| format!("{line}\n")).collect();
        // On a busy machine a load may be streamed in the end, of which there is a share from RAM to tell.
        let was_streamed = printed.lines().any(|line| line.starts_with("Opened") && !line.ends_with(", 0 streamed"));
        let masked = |text: &str| {
            let text = mask::text(text);
            if was_streamed { text.replace("from RAM (# %)", "from RAM") } else { text }
        };
        let (is, should) = (masked(&printed), masked(shown.trim_end()));
        if is.trim_end() != should.trim_end() {
            differences += &format!("# {command}\nREADME:\n{should}\nprinted:\n{is}\n");
        }
        assert!(run.status.success(), "{command}: {printed}");
    }
    assert!(differences.is_empty(), "{differences}\nall of it:\n{transcript}");
}
