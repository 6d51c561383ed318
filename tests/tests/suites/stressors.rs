//! fio with verification, and the file stressors of stress-ng.

use std::process::Command;
use std::time::Duration;

use weightfs_tests::Mount;
use weightfs_tests::system::temporary_folder;

use crate::{run, suite, text};

/// Those that check what they do, or that are hard on names and attributes.
const STRESSORS: &str = "access,chdir,chmod,chown,copy-file,dentry,dir,dirdeep,dirmany,dup,fallocate,fiemap,filename,\
                         flock,fpunch,fstat,getdent,hdd,iomix,link,locka,lockf,lockofd,metamix,mknod,mmap,open,readahead,\
                         rename,seek,symlink,sync-file,touch,unlink,utime,xattr";

#[test]
#[ignore = "takes minutes, and needs fio: make test-long"]
fn fio_verifies_what_it_wrote() {
    let Some(fio) = suite("fio", "install the package fio") else { return };
    let source = temporary_folder("source");
    let mount = Mount::start(source.path(), &["--ram", "128M"]);
    for (name, options) in [
        ("sync", ["--ioengine=psync", "--rw=randwrite", "--bs=4k-256k", "--direct=0"]),
        ("map", ["--ioengine=mmap", "--rw=randwrite", "--bs=4k", "--direct=0"]),
        ("direct", ["--ioengine=psync", "--rw=randwrite", "--bs=64k", "--direct=1"]),
        ("aio", ["--ioengine=libaio", "--rw=randrw", "--bs=16k", "--iodepth=16"]),
        ("uring", ["--ioengine=io_uring", "--rw=randrw", "--bs=16k", "--iodepth=16"]),
    ] {
        let mut command = Command::new(&fio);
        command.args(["--name", name, "--size=48m", "--numjobs=2", "--verify=crc32c", "--verify_fatal=1"]);
        command
            .args(["--do_verify=1", "--verify_state_save=0", "--group_reporting", "--directory"])
            .arg(mount.path())
            .args(options);
        let output = run(&mut command, Duration::from_secs(200));
        assert!(output.status.success(), "{name}:\n{}", text(&output));
    }
    mount.stop();
}

#[test]
#[ignore = "takes minutes, and needs stress-ng: make test-long"]
fn stress_ng_finds_on_the_mount_what_it_finds_on_a_plain_folder() {
    let Some(program) = suite("stress-ng", "install the package stress-ng") else { return };
    let (source, plain) = (temporary_folder("source"), temporary_folder("plain"));
    let mount = Mount::start(source.path(), &["--ram", "128M", "--allow-other"]);
    let mut different = Vec::new();
    for stressor in STRESSORS.split(',').map(str::trim) {
        let [mounted, native] = [mount.path(), plain.path()].map(|folder| {
            let mut command = Command::new(&program);
            command.args([&format!("--{stressor}"), "2", "--timeout", "3", "--verify", "--temp-path"]).arg(folder);
            run(&mut command, Duration::from_secs(60))
        });
        if mounted.status.success() != native.status.success() {
            different.push(format!("{stressor}: {}\n{}", mounted.status, text(&mounted)));
        }
        mount.status().check_contract();
    }
    assert!(different.is_empty(), "another outcome on the mount:\n{}", different.join("\n"));
    mount.stop();
}
