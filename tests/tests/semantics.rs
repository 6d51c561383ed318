//! Runs the examples in SEMANTICS.md on a mount.

use std::fs;
use std::process::Command;

use weightfs_tests::Mount;
use weightfs_tests::mount::{binary, program};
use weightfs_tests::python::workspace;
use weightfs_tests::requirements::{Need, met};
use weightfs_tests::system::temporary_folder;

/// The shell blocks of the document, each with the line on which it begins.
fn examples(document: &str) -> Vec<(usize, String)> {
    let mut examples = Vec::new();
    let mut lines = document.lines().enumerate();
    while let Some((number, line)) = lines.next() {
        if line == "```sh" {
            let block: Vec<&str> = lines.by_ref().map(|(_, line)| line).take_while(|line| *line != "```").collect();
            examples.push((number + 2, block.join("\n")));
        }
    }
    examples
}

#[test]
fn the_examples_of_the_document_hold() {
    if !met(&[Need::Mount]) {
        return;
    }
    let document = fs::read_to_string(workspace().join("SEMANTICS.md")).expect("the document");
    let examples = examples(&document);
    assert!(examples.len() >= 15, "only {} examples are found", examples.len());
    let source = temporary_folder("source");
    let mount = Mount::start(source.path(), &["--ram", "128M"]);
    // So that `weightfs` finds this daemon, and is the one that is tested.
    let settings = program(mount.private_folder());
    let bin = binary().parent().expect("it lies in a folder").to_owned();
    let path = std::env::var("PATH").unwrap_or_default();
    let mut failed = Vec::new();
    for (line, script) in examples {
        let name = format!("line-{line}");
        fs::create_dir(source.path().join(&name)).expect("mkdir");
        let mut shell = Command::new("timeout");
        shell.args(["60", "bash", "-euo", "pipefail", "-c", &script]);
        for (name, value) in settings.get_envs() {
            match value {
                Some(value) => shell.env(name, value),
                None => shell.env_remove(name),
            };
        }
        shell.env("PATH", format!("{}:{path}", bin.display()));
        shell.env("SOURCE", source.path().join(&name)).env("MOUNT", mount.join(&name)).env("MOUNTPOINT", mount.path());
        let output = shell.output().expect("run bash");
        if !output.status.success() {
            let said =
                [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
            failed.push(format!("SEMANTICS.md, line {line}: {}\n{script}\n{said}", output.status));
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n\n"));
    mount.stop();
}
