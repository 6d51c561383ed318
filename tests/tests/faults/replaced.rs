//! Names that change all the time, on both sides of the mount: who asks for them by their path never hears ESTALE.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use weightfs_tests::Mount;
use weightfs_tests::data::Random;
use weightfs_tests::mount::unique;
use weightfs_tests::system::temporary_folder;

use crate::can_mount;

const NAMES: [&str; 2] = ["model.gguf", "folder/model.gguf"];
/// Large enough to be a model.
const SIZE: u64 = (1 << 20) + 1;

fn make(folder: &Path, name: &str) -> io::Result<()> {
    let temporary = folder.join(format!("new-{}", unique()));
    File::create(&temporary)?.set_len(SIZE)?;
    fs::rename(temporary, folder.join(name))
}

/// What a client does with a name that others replace.
fn act(path: &Path, random: &mut Random) -> io::Result<()> {
    match random.below(6) {
        0 => fs::metadata(path).map(drop),
        1 => OpenOptions::new().write(true).open(path).map(drop),
        2 => File::options().write(true).create(true).truncate(false).open(path).map(drop),
        3 => fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(0o640)),
        _ => File::open(path).map(drop),
    }
}

#[test]
fn what_is_replaced_all_the_time_is_always_there() {
    if !can_mount() {
        return;
    }
    let source = temporary_folder("source");
    fs::create_dir(source.path().join("folder")).expect("mkdir");
    for name in NAMES {
        make(source.path(), name).expect("make a file");
    }
    let mount = Mount::start(source.path(), &["--ram", "64M", "--open-wait", "0"]);
    let (stop, end) = (AtomicBool::new(false), Instant::now() + Duration::from_secs(4));
    let mut random = Random::from_environment();
    std::thread::scope(|scope| {
        let stop = &stop;
        // Through the mount and behind it.
        for folder in [source.path(), mount.path()] {
            scope.spawn(move || {
                while !stop.load(Ordering::Acquire) {
                    for name in NAMES {
                        make(folder, name).expect("replace a file");
                    }
                }
            });
        }
        let clients: Vec<_> = (0..4)
            .map(|_| random.fork())
            .map(|mut random| {
                let mount = mount.path();
                scope.spawn(move || -> Result<u64, String> {
                    let mut acts = 0;
                    while Instant::now() < end {
                        let name = *random.pick(&NAMES);
                        act(&mount.join(name), &mut random).map_err(|error| format!("{name}: {error}"))?;
                        acts += 1;
                    }
                    Ok(acts)
                })
            })
            .collect();
        let found: Vec<_> = clients.into_iter().map(|client| client.join().expect("no client panicked")).collect();
        stop.store(true, Ordering::Release);
        for acts in found {
            assert!(acts.as_ref().is_ok_and(|acts| *acts > 0), "{acts:?}\n{}", mount.log());
        }
    });
    mount.stop();
}
