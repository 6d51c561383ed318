//! Bad ranges, short reads, stale handles, files that are shorter than they say.

use std::fs::{self, File};

use rustix::io::Errno;
use weightfs_tests::Mount;
use weightfs_tests::data;
use weightfs_tests::faulty::{Fault, Op, Rule};
use weightfs_tests::maps::{Map, MapKind};

use crate::{MIB, can_mount, faulty, is_right, of_io, read_at};

const NAME: &str = "model.safetensors";
const SIZE: u64 = 24 * MIB + 777;

/// How each engine reads.
const ENGINES: [&str; 2] = ["auto", "threads"];

#[test]
fn a_bad_range_is_an_error_to_who_reads_it_and_the_rest_is_right() {
    if !can_mount() {
        return;
    }
    let (_folder, faulty) = faulty(&[(NAME, 1, SIZE)]);
    for io in ENGINES {
        let mount = Mount::start(faulty.path(), &["--ram", "64M", "--io", io, "--open-wait", "0"]);
        let bad = 9 * MIB + 4096..9 * MIB + 8192;
        faulty.script.add(Rule::on(&[Op::Read], Fault::Errno(nix::libc::EIO)).at(bad.clone()));
        let file = File::open(mount.join(NAME)).expect("open");
        // Pieces that never share a request with the bad bytes are right, whatever was tried around them.
        for offset in (0..SIZE).step_by(MIB as usize) {
            let piece = offset..SIZE.min(offset + MIB);
            match read_at(&file, offset, (piece.end - piece.start) as usize) {
                Ok(bytes) => {
                    assert!(
                        !piece.contains(&bad.start) || (bytes.len() as u64) <= bad.start - offset,
                        "{io}: {offset}"
                    );
                    assert_eq!(data::check(1, offset, &bytes), Ok(()), "{io}: at {offset}");
                }
                Err(error) => {
                    assert_eq!(of_io(error), Errno::IO, "{io}: at {offset}");
                    assert!(piece.contains(&bad.start), "{io}: the bytes at {offset} are fine");
                }
            }
        }
        // Just before and just after, and again.
        for _ in 0..2 {
            for offset in [bad.start - 4096, bad.end] {
                let bytes = read_at(&file, offset, 4096).expect("next to the bad range");
                assert_eq!(data::check(1, offset, &bytes), Ok(()), "{io}: at {offset}");
            }
            assert_eq!(read_at(&file, bad.start, 100).map_err(of_io), Err(Errno::IO), "{io}");
        }
        let asked = faulty.script.injected();
        assert!(asked < 200, "{io}: it was tried {asked} times");
        // Mended: whoever asks next gets it.
        faulty.script.clear();
        is_right(&mount, NAME, 1, SIZE).unwrap_or_else(|error| panic!("{io}: {error}"));
        assert!(mount.log().contains("cannot be read"), "{io}: the log says what failed:\n{}", mount.log());
        drop(file);
        mount.stop();
    }
}

#[test]
fn short_reads_and_passing_errors_are_not_seen() {
    if !can_mount() {
        return;
    }
    let (_folder, faulty) = faulty(&[(NAME, 1, SIZE)]);
    for io in ENGINES {
        let mount = Mount::start(faulty.path(), &["--ram", "64M", "--io", io, "--open-wait", "0"]);
        for (fault, times) in
            [(Fault::Short(5000), 20), (Fault::Short(1 << 16), 20), (Fault::Errno(nix::libc::EINTR), 5)]
        {
            faulty.script.add(Rule::on(&[Op::Read], fault).times(times));
        }
        is_right(&mount, NAME, 1, SIZE).unwrap_or_else(|error| panic!("{io}: {error}"));
        assert!(faulty.script.injected() > 0, "{io}: something was injected");
        faulty.script.clear();
        is_right(&mount, NAME, 1, SIZE).unwrap_or_else(|error| panic!("{io}: {error}"));
        mount.stop();
    }
}

#[test]
fn a_file_that_ends_before_it_says_gives_no_zeros() {
    if !can_mount() {
        return;
    }
    let (_folder, faulty) = faulty(&[(NAME, 1, SIZE)]);
    for io in ENGINES {
        let mount = Mount::start(faulty.path(), &["--ram", "64M", "--io", io, "--open-wait", "0"]);
        // The attributes still say the old size: the source lies about one of the two.
        let gone = 10 * MIB..SIZE;
        faulty.script.add(Rule::on(&[Op::Read], Fault::Short(0)).at(gone.clone()));
        let file = File::open(mount.join(NAME)).expect("open");
        for offset in (0..SIZE).step_by(1 << 19) {
            match read_at(&file, offset, 1 << 19) {
                Ok(bytes) => {
                    assert_eq!(data::check(1, offset, &bytes), Ok(()), "{io}: at {offset}");
                    assert!(offset + bytes.len() as u64 <= gone.start, "{io}: nothing can be there at {offset}");
                }
                Err(error) => assert_eq!(of_io(error), Errno::IO, "{io}: at {offset}"),
            }
        }
        drop(file);
        faulty.script.clear();
        is_right(&mount, NAME, 1, SIZE).unwrap_or_else(|error| panic!("{io}: {error}"));
        mount.stop();
    }
}

#[test]
fn a_handle_that_went_stale_gives_errors_and_a_new_open_the_file() {
    if !can_mount() {
        return;
    }
    let (_folder, faulty) = faulty(&[(NAME, 1, SIZE)]);
    let mount = Mount::start(faulty.path(), &["--ram", "64M", "--open-wait", "0"]);
    let file = File::open(mount.join(NAME)).expect("open");
    read_at(&file, 0, 4096).expect("it works at first");
    let rule = faulty.script.add(Rule::on(&[Op::Look, Op::Read, Op::Open], Fault::Errno(nix::libc::ESTALE)).of(NAME));
    for offset in (0..SIZE).step_by(MIB as usize) {
        if let Ok(bytes) = read_at(&file, offset, 1 << 16) {
            assert_eq!(data::check(1, offset, &bytes), Ok(()), "what is given is right");
        }
    }
    assert!(File::open(mount.join(NAME)).is_err(), "it is not there");
    faulty.script.remove(rule);
    is_right(&mount, NAME, 1, SIZE).expect("a new open");
    drop(file);
    mount.stop();
}

#[test]
fn a_mapping_of_a_bad_range_is_a_bus_error_and_not_wrong() {
    if !can_mount() {
        return;
    }
    let (_folder, faulty) = faulty(&[(NAME, 1, SIZE)]);
    let mount = Mount::start(faulty.path(), &["--ram", "64M", "--open-wait", "0"]);
    faulty.script.add(Rule::on(&[Op::Read], Fault::Errno(nix::libc::EIO)).at(12 * MIB..13 * MIB));
    let file = File::open(mount.join(NAME)).expect("open");
    let map = Map::new(&file, SIZE as usize, MapKind::Private).expect("map");
    for offset in [0, 5 * MIB, 20 * MIB, SIZE - 100] {
        let mut bytes = [0; 100];
        map.read(offset as usize, &mut bytes);
        assert_eq!(data::check(1, offset, &bytes), Ok(()), "at {offset}");
    }
    drop((map, file));
    // In a process of its own, since it is killed.
    let script = "import mmap,sys;f=open(sys.argv[1],'rb');m=mmap.mmap(f.fileno(),0,prot=mmap.PROT_READ);m[12*2**20+5]";
    let status = std::process::Command::new("python3").args(["-c", script]).arg(mount.join(NAME)).status();
    let signal = std::os::unix::process::ExitStatusExt::signal(&status.expect("run python3"));
    assert_eq!(signal, Some(nix::libc::SIGBUS));
    fs::metadata(mount.join(NAME)).expect("the mount answers");
    mount.stop();
}
