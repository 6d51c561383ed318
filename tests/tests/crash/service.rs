//! As a service: what a service manager keeps is enough to go on, when the supervisor dies and when everything does.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use weightfs_tests::Mount;
use weightfs_tests::data::{self, Random};
use weightfs_tests::service::{Manager, Successor};
use weightfs_tests::system::{let_files_settle, temporary_folder, wait_until};

use crate::clients::{MODELS, Report, make_models, with_clients};
use crate::{answers, can_take_over, times, worker};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Death {
    Supervisor,
    Both,
}

/// What waits to go on with `mount`.
fn successor(mount: &Mount, manager: &Manager) -> Successor {
    let [source, place] = [mount.source(), mount.path()].map(|path| path.to_str().expect("UTF-8").to_owned());
    manager.successor(mount, &["mount", "--foreground", "--ram", "64M", &source, &place])
}

/// Kills, and starts the service again.
fn die(mount: &mut Mount, manager: &Manager, successor: Successor, death: Death) {
    die_and(mount, manager, successor, death, || {});
}

/// As [`die`]. `meanwhile` happens while nobody is there.
fn die_and(mount: &mut Mount, manager: &Manager, successor: Successor, death: Death, meanwhile: impl FnOnce()) {
    let (pid, ready) = (worker(mount).expect("a worker"), manager.ready());
    mount.signal(Signal::SIGKILL);
    if death == Death::Both {
        // It may have heard of it.
        let _ = kill(pid, Signal::SIGKILL);
    }
    mount.wait();
    meanwhile();
    mount.go_on_with(manager.again(successor));
    let is_ready = || manager.ready() > ready;
    assert!(wait_until(Duration::from_secs(20), is_ready), "after {death:?}:\n{}", mount.log());
    let is_gone = || kill(pid, None).is_err();
    assert!(wait_until(Duration::from_secs(10), is_gone), "there is one worker");
}

#[test]
fn nobody_notices() {
    if !can_take_over() {
        return;
    }
    let deaths = times("WEIGHTFS_DEATHS_OF_ALL", 6);
    let source = temporary_folder("source");
    make_models(source.path());
    let_files_settle();
    let manager = Manager::start();
    let socket = manager.socket();
    let environment = [("NOTIFY_SOCKET", socket.to_str().expect("UTF-8"))];
    let mut mount = Mount::start_with(source.path(), &["--ram", "64M"], &environment);
    let report = Report::where_everything_dies();
    let mut random = Random::from_environment();
    let place = mount.path().to_owned();
    let mut successors: Vec<_> = (0..deaths).map(|_| successor(&mount, &manager)).collect();
    with_clients(&place, &report, || {
        for round in 0..deaths {
            std::thread::sleep(Duration::from_millis(200 + random.below(400)));
            if !report.faults().is_empty() {
                break;
            }
            let next = successors.pop().expect("one for each");
            die(&mut mount, &manager, next, if round % 3 == 0 { Death::Supervisor } else { Death::Both });
        }
        std::thread::sleep(Duration::from_millis(500));
    });
    assert_eq!(report.faults(), [""; 0], "{}", mount.log());
    assert!(mount.status().number("/worker/restarts") >= deaths, "{:#}", mount.status().0);
    // What was handed on is complete: a worker alone can be replaced as ever.
    crate::kill_worker(&mount);
    assert!(answers(&mount));
    mount.stop();
    assert_eq!(manager.kept(), [""; 0], "nothing is kept of a daemon that has ended");
}

#[test]
fn what_is_open_and_in_ram_stays() {
    if !can_take_over() {
        return;
    }
    let source = temporary_folder("source");
    make_models(source.path());
    fs::write(source.path().join("small"), b"small").expect("write");
    let_files_settle();
    let manager = Manager::start();
    let socket = manager.socket();
    let environment = [("NOTIFY_SOCKET", socket.to_str().expect("UTF-8"))];
    let mut mount = Mount::start_with(source.path(), &["--ram", "64M"], &environment);
    let next = successor(&mount, &manager);
    let name = |seed: usize| format!("model-{seed}.safetensors");
    fs::read(mount.join(&name(0))).expect("read");
    let whole = || mount.status().resident() >= MODELS[0];
    assert!(wait_until(Duration::from_secs(20), whole), "{:#}", mount.status().0);
    let [resident, stream, gone, small] =
        [name(0), name(4), name(1), "small".to_owned()].map(|name| File::open(mount.join(&name)).expect("open"));
    let written = File::create(mount.join("written")).expect("create");
    written.write_all_at(b"before", 0).expect("write");
    let mut bytes = vec![0; 1 << 20];
    for (seed, file) in [(0, &resident), (4, &stream), (1, &gone)] {
        file.read_exact_at(&mut bytes, 0).expect("read");
        data::check(seed, 0, &bytes).expect("the right bytes");
    }
    // Open, of known content, and without a name.
    fs::remove_file(mount.join(&name(1))).expect("unlink");
    let before = mount.status().resident();
    die(&mut mount, &manager, next, Death::Both);
    let now = mount.status();
    assert!(now.resident() >= before.min(MODELS[0]), "{:#}", now.0);
    let read_before = now.source_read();
    for (seed, file) in [(0, &resident), (4, &stream), (1, &gone)] {
        file.read_exact_at(&mut bytes, 3 << 20).expect("read");
        data::check(seed, 3 << 20, &bytes).expect("the right bytes");
    }
    let again = fs::read(mount.join(&name(0))).expect("read");
    data::check(0, 0, &again).expect("the right bytes");
    let mut text = [0; 5];
    small.read_exact_at(&mut text, 0).expect("read");
    assert_eq!(&text, b"small");
    written.write_all_at(b" after", 6).expect("write");
    assert_eq!(fs::read(source.path().join("written")).expect("read"), b"before after");
    let after = mount.status();
    assert!(after.source_read() - read_before < MODELS[4] + MODELS[1] + MODELS[0], "{:#}", after.0);
    drop((resident, stream, gone, small, written));
    mount.stop();
}

fn has_open(process: u32, path: &Path) -> bool {
    let descriptors = fs::read_dir(format!("/proc/{process}/fd")).expect("it is there");
    descriptors.flatten().any(|descriptor| fs::read_link(descriptor.path()).is_ok_and(|target| target == path))
}

#[test]
fn another_file_that_was_given_the_number_is_not_taken_for_the_one_that_was_open() {
    if !can_take_over() {
        return;
    }
    let source = temporary_folder("source");
    let place = source.path().join("notes");
    fs::write(&place, b"of before").expect("write");
    let_files_settle();
    let manager = Manager::start();
    let socket = manager.socket();
    let environment = [("NOTIFY_SOCKET", socket.to_str().expect("UTF-8"))];
    let mut mount = Mount::start_with(source.path(), &["--ram", "64M"], &environment);
    let next = successor(&mount, &manager);
    let open = File::options().read(true).write(true).open(mount.join("notes")).expect("open");
    let number = fs::metadata(&place).expect("stat").ino();
    // On its way between the two, the descriptor would not die with them.
    assert!(wait_until(Duration::from_secs(10), || has_open(mount.pid(), &place)), "its descriptor is parked");
    let mut came_again = false;
    die_and(&mut mount, &manager, next, Death::Both, || {
        // Until then the worker has had it open.
        std::thread::sleep(Duration::from_millis(200));
        fs::remove_file(&place).expect("unlink");
        // File systems give a number to the next file, or never again.
        let made: Vec<_> = (0..64).map(|n| (n, source.path().join(format!("made-{n}")))).collect();
        for (_, path) in &made {
            fs::write(path, b"of others").expect("write");
        }
        let same = made.iter().find(|(_, path)| fs::metadata(path).expect("stat").ino() == number);
        came_again = same.is_some();
        fs::rename(&same.unwrap_or(&made[0]).1, &place).expect("rename");
    });
    println!("the number came again: {came_again}");
    let mut text = [0; 9];
    let refused = [open.read_exact_at(&mut text, 0), open.write_all_at(b"of nobody", 0)];
    assert_eq!(refused.map(|result| result.map_err(|error| error.raw_os_error())), [Err(Some(nix::libc::EBADF)); 2]);
    assert_eq!(fs::read(&place).expect("read"), b"of others");
    assert_eq!(fs::read(mount.join("notes")).expect("read"), b"of others");
    drop(open);
    mount.stop();
}
