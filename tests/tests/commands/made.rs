//! What is made out of the program's own description: help, completions, manual pages.

use std::process::Command;

use weightfs_tests::mount::{binary, program};
use weightfs_tests::python::workspace;
use weightfs_tests::system::{find_program, temporary_folder};

/// Every command of the program, as its help lists them.
fn commands() -> Vec<String> {
    let folder = temporary_folder("help");
    let help = told(program(folder.path()).arg("--help"));
    let listed = help.lines().skip_while(|line| *line != "Commands:").skip(1).take_while(|line| !line.is_empty());
    let names = listed.filter(|line| !line.starts_with("    ")).filter_map(|line| line.split_whitespace().next());
    let names: Vec<String> = names.filter(|name| *name != "help").map(str::to_owned).collect();
    assert!(names.len() > 10, "{help}");
    names
}

fn told(command: &mut Command) -> String {
    let output = command.output().expect("run it");
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("UTF-8")
}

#[test]
fn the_help_of_every_command_has_examples_and_exit_codes() {
    let folder = temporary_folder("help");
    for name in commands() {
        let help = told(program(folder.path()).args([&name, "--help"]));
        assert!(help.contains("Examples:"), "{name}: {help}");
        assert!(help.contains("Exit codes:") && help.contains("\n  3  no daemon"), "{name}: {help}");
        assert!(help.contains(&format!("weightfs {name}")), "{name}: {help}");
    }
}

#[test]
fn completions_are_scripts_of_their_shells() {
    let folder = temporary_folder("completions");
    for shell in ["bash", "zsh", "fish"] {
        let script = told(program(folder.path()).args(["completions", shell]));
        for name in commands() {
            assert!(script.contains(&name), "{shell} does not know {name}");
        }
        let file = folder.path().join(shell);
        std::fs::write(&file, script).expect("write");
        if let Some(interpreter) = find_program(shell) {
            told(Command::new(interpreter).arg("-n").arg(&file));
        }
    }
}

#[test]
fn every_command_has_a_manual_page() {
    let folder = temporary_folder("man");
    let pages = folder.path().join("man1");
    told(program(folder.path()).arg("man").arg(&pages));
    for name in commands() {
        let page = std::fs::read_to_string(pages.join(format!("weightfs-{name}.1"))).expect(&name);
        for heading in ["NAME", "SYNOPSIS", "EXAMPLES", "EXIT STATUS"] {
            assert!(
                page.contains(&format!(".SH {heading}")) || page.contains(&format!(".SH \"{heading}\"")),
                "{name}: {page}"
            );
        }
    }
    assert!(pages.join("weightfs.1").is_file());
    let output = program(folder.path()).args(["man", "/proc/none"]).output().expect("run it");
    assert_eq!(output.status.code(), Some(1));
}

#[test]
fn it_is_installed_with_all_that_goes_with_it() {
    let folder = temporary_folder("install");
    let root = folder.path().display().to_string();
    let program = format!("PROGRAM={}", binary().display());
    let install = |prefix: &str| {
        let mut make = Command::new("make");
        make.arg("install").args([&program, &format!("DESTDIR={root}"), &format!("PREFIX={prefix}")]);
        told(make.current_dir(workspace()))
    };
    install("/opt/weightfs");
    let at = |name: &str| folder.path().join("opt/weightfs").join(name);
    assert!(told(Command::new(at("bin/weightfs")).arg("--version")).starts_with("weightfs "));
    let unit = std::fs::read_to_string(at("lib/systemd/system/weightfs@.service")).expect("the unit is there");
    assert!(unit.contains("\nExecStart=/opt/weightfs/bin/weightfs mount"), "{unit}");
    for name in [
        "share/man/man1/weightfs.1",
        "share/man/man1/weightfs-doctor.1",
        "share/bash-completion/completions/weightfs",
        "share/zsh/site-functions/_weightfs",
        "share/fish/vendor_completions.d/weightfs.fish",
    ] {
        assert!(std::fs::metadata(at(name)).is_ok_and(|found| found.len() > 100), "{name}");
    }
}
