//! What is made out of the program's own description: help, completions, manual pages.

use std::process::Command;

use weightfs_tests::mount::program;
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
        assert!(!script.contains("gpu-probe"), "{shell} offers what is nobody's business");
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
        assert!(page.contains(".TH weightfs-") && page.contains("EXTRA") && page.contains("Exit codes"), "{name}: {page}");
    }
    assert!(pages.join("weightfs.1").is_file());
    let output = program(folder.path()).args(["man", "/proc/none"]).output().expect("run it");
    assert_eq!(output.status.code(), Some(1));
}
