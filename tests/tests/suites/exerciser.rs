//! fsx: random reads, writes, mappings, truncations and holes of one file, each read compared with what it should be.

use std::fs;
use std::process::Command;
use std::time::Duration;

use weightfs_tests::Mount;
use weightfs_tests::data::Random;
use weightfs_tests::system::temporary_folder;

use crate::{run, suite, text};

/// Around the size from which files are kept, and far below it.
const LENGTHS: [u32; 3] = [64 << 10, 3 << 20, 9_000_001];

fn exercise(operations: u64) {
    let Some(program) = suite("fsx", "'make suites' installs it") else { return };
    let (source, place) = (temporary_folder("source"), temporary_folder("fsx"));
    let mount = Mount::start(source.path(), &["--ram", "64M"]);
    let mut random = Random::from_environment();
    for length in LENGTHS {
        let configuration = place.path().join("fsx.toml");
        let weights = "close_open = 2.0\ninvalidate = 1.0\nfsync = 0.2\nfdatasync = 0.2\nposix_fallocate = 0.5\n\
                       punch_hole = 1.0\nsendfile = 1.0\nposix_fadvise = 1.0\ncopy_file_range = 1.0\n";
        let sizes = format!("flen = {length}\n[opsize]\nmax = {}\n[weights]\n{weights}", length / 4);
        fs::write(&configuration, sizes).expect("write");
        let seed = random.below(u32::MAX.into()).to_string();
        for folder in [place.path(), mount.path()] {
            let mut command = Command::new(&program);
            command.arg("-f").arg(&configuration).args(["-S", &seed, "-N", &operations.to_string(), "-P"]);
            command.arg(place.path()).arg(folder.join(format!("file-{length}")));
            let output = run(&mut command, Duration::from_secs(100 + operations / 50));
            assert!(output.status.success(), "{command:?} in {}:\n{}", folder.display(), text(&output));
        }
    }
    mount.stop();
}

#[test]
fn fsx_finds_every_byte_where_it_was_put() {
    exercise(1500);
}

#[test]
#[ignore = "takes minutes: make test-long"]
fn fsx_finds_every_byte_for_long() {
    exercise(40_000);
}
