//! pjdfstest: some four hundred statements of POSIX about names, modes, times and errors.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use weightfs_tests::Mount;
use weightfs_tests::system::temporary_folder;

use crate::{run, suite, text};

const CONFIGURATION: &str = r#"
[features]
posix_fallocate = {}
rename_ctime = {}
utime_now = {}
utimensat = {}
[settings]
naptime = 0.02
[dummy_auth]
entries = [["nobody", "nogroup"], ["daemon", "daemon"]]
"#;

/// What comes of these is another on the mount. SEMANTICS.md says why, under "Suites".
const DIFFERENT: [&str; 1] = ["link::link_count_max"];

/// What came of each test, by its name.
fn outcomes(program: &Path, configuration: &Path, folder: &Path, only: &[&str]) -> BTreeMap<String, String> {
    let mut command = Command::new(program);
    command.arg("-c").arg(configuration).arg("-p").arg(folder).args(only);
    let said = text(&run(&mut command, Duration::from_secs(150)));
    let outcome = |line: &str| {
        let (name, outcome) = line.split_once(char::is_whitespace)?;
        let known = ["ok", "FAILED", "skipped"].contains(&outcome.trim());
        (name.contains("::") && known).then(|| (name.to_owned(), outcome.trim().to_owned()))
    };
    let found: BTreeMap<_, _> = said.lines().filter_map(outcome).collect();
    assert!(!found.is_empty(), "it says nothing that is understood:\n{said}");
    found
}

#[test]
fn pjdfstest_finds_what_it_finds_on_a_plain_folder() {
    let Some(program) = suite("pjdfstest", "'make suites' installs it") else { return };
    let (source, plain) = (temporary_folder("source"), temporary_folder("plain"));
    let configuration = plain.path().join("pjdfstest.toml");
    fs::write(&configuration, CONFIGURATION).expect("write");
    let mount = Mount::start(source.path(), &["--ram", "64M", "--allow-other"]);
    let folders = [mount.path(), plain.path()].map(|folder| folder.join("tests"));
    for folder in &folders {
        fs::create_dir(folder).expect("mkdir");
        // Whoever the suite acts as has to come this far.
        fs::set_permissions(folder, fs::Permissions::from_mode(0o777)).expect("chmod");
    }
    let [mounted, native] = folders.each_ref().map(|folder| outcomes(&program, &configuration, folder, &[]));
    assert!(native.len() > 350 && mounted.len() == native.len(), "{} and {} tests", mounted.len(), native.len());
    let passed = mounted.values().filter(|outcome| *outcome == "ok").count();
    println!("{passed} of {} pass on the mount", mounted.len());
    let different: Vec<String> = native
        .iter()
        .filter(|(name, outcome)| mounted.get(*name) != Some(outcome) && !DIFFERENT.contains(&name.as_str()))
        .map(|(name, outcome)| format!("{name}: {:?} instead of {outcome}", mounted.get(name)))
        .collect();
    assert!(different.is_empty(), "another outcome on the mount:\n{}", different.join("\n"));
    mount.stop();
}
