//! The shipped unit under a real systemd, in namespaces of its own: what it keeps is enough when everything dies.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use serde_json::Value;
use weightfs_tests::data;
use weightfs_tests::maps::{Map, MapKind};
use weightfs_tests::mount::binary;
use weightfs_tests::requirements::{Need, met, skip};
use weightfs_tests::status::Status;
use weightfs_tests::system::{find_program, let_files_settle, temporary_folder, wait_until};

use crate::can_take_over;

const PATIENCE: Duration = Duration::from_secs(20);
const UNIT: &str = "weightfs@test";

/// Where trees of control groups that systemd uses may begin.
const TREES: [&str; 3] = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified", "/sys/fs/cgroup/systemd"];

/// Goes to control groups of its own and becomes a systemd that knows the units in `$1` and no others. Those of the
/// machine must not be seen: they would clean its temporary folders and set its kernel.
const BOOT: &str = r#"
set -e
for tree in $3; do
    if [ -e $tree/cgroup.procs ]; then
        mkdir -p $tree/weightfs-test-$$
        echo $$ > $tree/weightfs-test-$$/cgroup.procs
    fi
done
exec unshare --pid --fork --kill-child --mount --uts --ipc --cgroup --propagation private sh -c '
    set -e
    mount -t proc proc /proc
    mount -t tmpfs tmpfs /run
    for folder in /etc/systemd/system /usr/lib/systemd/system /usr/local/lib/systemd/system \
            /etc/systemd/system-generators /usr/lib/systemd/system-generators; do
        if [ -d $folder ]; then mount -t tmpfs tmpfs $folder; fi
    done
    mkdir -p /run/systemd/system /run/lock
    cp "$1"/* /run/systemd/system
    exec env -i container=weightfs-test PATH="$PATH" "$2" --system --unit=basic.target --show-status=no
' sh "$1" "$2"
"#;

/// A systemd that ends with this value, and everything below it.
struct Systemd {
    process: Child,
    /// Its number as seen from here.
    first: u32,
    _units: tempfile::TempDir,
}

impl Systemd {
    /// With the shipped unit, for the program to be tested and the configurations in `configuration`. None where systemd
    /// does not start, whatever it is asked to run.
    fn boot(program: &Path, configuration: &Path) -> Option<Self> {
        let units = temporary_folder("units");
        for target in ["sysinit", "basic", "shutdown", "local-fs", "remote-fs", "multi-user"] {
            let text = format!("[Unit]\nDescription={target}\nDefaultDependencies=no\nAllowIsolate=yes\n");
            fs::write(units.path().join(format!("{target}.target")), text).expect("write");
        }
        let unit = include_str!("../../../packaging/weightfs@.service")
            .replace("/usr/bin/weightfs", binary().to_str().expect("UTF-8"))
            .replace("/etc/weightfs", configuration.to_str().expect("UTF-8"));
        fs::write(units.path().join("weightfs@.service"), unit).expect("write");
        let process = Command::new("sh")
            .args(["-c", BOOT, "sh"])
            .args([units.path(), program])
            .arg(TREES.join(" "))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("run sh");
        let children = format!("/proc/{id}/task/{id}/children", id = process.id());
        let mut first = None;
        wait_until(PATIENCE, || {
            let child = fs::read_to_string(&children).ok().and_then(|text| text.trim().parse::<u32>().ok());
            first = child.filter(|pid| {
                fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name.trim() == "systemd")
            });
            first.is_some()
        });
        let systemd = Self { process, first: first.unwrap_or_default(), _units: units };
        let is_up = || first.is_some() && systemd.run(&["systemctl", "is-active", "basic.target"]).status.success();
        wait_until(PATIENCE, is_up).then_some(systemd)
    }

    /// Runs something where it is.
    fn run(&self, command: &[&str]) -> Output {
        let target = self.first.to_string();
        let namespaces = ["--pid", "--mount", "--uts", "--ipc", "--cgroup"];
        Command::new("nsenter")
            .args(["--target", &target])
            .args(namespaces)
            .args(command)
            .output()
            .expect("run nsenter")
    }

    fn systemctl(&self, arguments: &[&str]) {
        let output = self.run(&[&["systemctl"], arguments].concat());
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    }

    /// A property of the unit.
    fn property(&self, name: &str) -> String {
        let output = self.run(&["systemctl", "show", "--value", "--property", name, UNIT]);
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }

    fn status(&self, mountpoint: &Path) -> Option<Status> {
        let program = binary();
        let [program, mountpoint] = [&program, mountpoint].map(|path| path.to_str().expect("UTF-8"));
        let output = self.run(&[program, "status", "--json", mountpoint]);
        serde_json::from_slice::<Value>(&output.stdout).ok().map(Status)
    }

    /// What it sees under `path`.
    fn path(&self, path: &Path) -> PathBuf {
        Path::new(&format!("/proc/{}/root", self.first)).join(path.strip_prefix("/").expect("absolute"))
    }
}

impl Drop for Systemd {
    fn drop(&mut self) {
        // With it, the first process of its namespace, and so all others.
        let _ = self.process.kill();
        let _ = self.process.wait();
        let groups = TREES.map(|tree| Path::new(tree).join(format!("weightfs-test-{}", self.process.id())));
        for group in groups.iter().filter(|group| group.exists()) {
            let remove = || {
                let find = ["-depth", "-type", "d", "-exec", "rmdir", "{}", ";"];
                let _ = Command::new("find").arg(group).args(find).stderr(Stdio::null()).status();
                !group.exists()
            };
            // The dead leave one by one.
            wait_until(PATIENCE, remove);
        }
    }
}

#[test]
#[ignore = "needs systemd: make test-long"]
fn what_the_shipped_unit_keeps_is_enough() {
    if !can_take_over() || !met(&[Need::Root]) {
        return;
    }
    let found = ["/usr/lib/systemd/systemd", "/lib/systemd/systemd"].map(Path::new).into_iter().find(|p| p.exists());
    let (Some(program), true) = (found, ["unshare", "nsenter"].iter().all(|name| find_program(name).is_some())) else {
        return skip("it needs systemd, and unshare and nsenter of util-linux");
    };
    let (source, configuration, place) =
        (temporary_folder("source"), temporary_folder("configuration"), temporary_folder("mnt"));
    let size = 40 << 20;
    data::write_file(&source.path().join("model.safetensors"), 1, size);
    let_files_settle();
    let text = format!("source = {:?}\nmountpoint = {:?}\nram = \"128MiB\"\n", source.path(), place.path());
    fs::write(configuration.path().join("test.toml"), text).expect("write");
    let Some(systemd) = Systemd::boot(program, configuration.path()) else {
        return skip("systemd does not start in a namespace here");
    };

    systemd.systemctl(&["start", UNIT]);
    let model = systemd.path(&place.path().join("model.safetensors"));
    let whole = || fs::read(&model).expect("read");
    let resident = || systemd.status(place.path()).is_some_and(|status| status.resident() >= size);
    assert!(wait_until(PATIENCE, || data::check(1, 0, &whole()).is_ok() && resident()), "it becomes resident");
    let file = File::open(&model).expect("open");
    let map = Map::new(&file, size as usize, MapKind::Shared).expect("map");
    let read = systemd.status(place.path()).expect("it answers").source_read();
    for round in 1..=3 {
        systemd.systemctl(&["kill", "--signal", "KILL", "--kill-who", "all", UNIT]);
        let mut bytes = vec![0; size as usize];
        file.read_exact_at(&mut bytes, 0).expect("read what is open");
        data::check(1, 0, &bytes).expect("the right bytes");
        data::check(1, 0, &map.to_vec()).expect("mapped");
        let inside = systemd.run(&["cat", place.path().join("model.safetensors").to_str().expect("UTF-8")]);
        data::check(1, 0, &inside.stdout).expect("read by name, while it starts");
        let is_back =
            || systemd.property("NRestarts") == round.to_string() && systemd.property("SubState") == "running";
        assert!(wait_until(PATIENCE, is_back), "round {round}: it is started again");
        let answers = || systemd.status(place.path()).is_some();
        assert!(wait_until(PATIENCE, answers), "round {round}: it answers");
        assert!(resident(), "round {round}: what was in RAM is there");
    }
    let now = systemd.status(place.path()).expect("it answers").source_read();
    assert_eq!(now, read, "nothing was read again");
    drop((map, file));
    systemd.systemctl(&["stop", UNIT]);
    assert_eq!(["ActiveState", "NFileDescriptorStore"].map(|name| systemd.property(name)), ["inactive", "0"]);
    assert!(!model.exists(), "it is not mounted any more");
}
