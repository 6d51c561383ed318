//! Beginnings: over the source, in the background, several folders, a configuration file.

use std::fs;
use std::path::Path;
use std::time::Duration;

use nix::sys::signal::Signal;
use weightfs_tests::Mount;
use weightfs_tests::data;
use weightfs_tests::mount::program;
use weightfs_tests::system::{mounts_on, processes_mentioning, temporary_folder, wait_until};

use crate::{Traces, can_mount};

#[test]
fn over_the_source_itself() {
    if !can_mount() {
        return;
    }
    let traces = Traces::note();
    let source = temporary_folder("source");
    data::write_file(&source.path().join("model.safetensors"), 1, 3 << 20);
    let mount = Mount::over(source.path(), &["--ram", "64M"]);
    assert_eq!(mounts_on(source.path()).len(), 1);
    let found = fs::read(source.path().join("model.safetensors")).expect("read");
    assert_eq!((found.len(), data::check(1, 0, &found)), (3 << 20, Ok(())));
    fs::write(source.path().join("new"), b"through the mount").expect("write");
    let status = mount.status();
    assert_eq!(status.0["mounts"][0]["mountpoint"], source.path().to_str().expect("UTF-8"));
    assert_eq!(status.0["mounts"][0]["source"], source.path().to_str().expect("UTF-8"));
    mount.stop();
    assert_eq!(fs::read(source.path().join("new")).expect("read"), b"through the mount");
    traces.check("a mount over its source");
}

#[test]
fn in_the_background() {
    if !can_mount() {
        return;
    }
    let traces = Traces::note();
    let (source, private) = (temporary_folder("source"), temporary_folder("run"));
    data::write_file(&source.path().join("model.safetensors"), 1, 3 << 20);
    let place = temporary_folder("mnt");
    let (source_text, place_text) = (source.path().to_str().expect("UTF-8"), place.path().to_str().expect("UTF-8"));
    let start = program(private.path())
        .args(["mount", "--ram", "64M", source_text, place_text])
        // A daemon that kept this pipe would keep us waiting for it.
        .output()
        .expect("run weightfs");
    assert!(start.status.success(), "{}", String::from_utf8_lossy(&start.stderr));
    // No waiting here: it returns once the mount answers.
    let found = fs::read(place.path().join("model.safetensors"));
    let daemons = processes_mentioning(place_text);
    let end = program(private.path()).args(["unmount", place_text]).output().expect("run weightfs");
    let found = found.expect("the mount answers");
    assert_eq!((found.len(), data::check(1, 0, &found)), (3 << 20, Ok(())));
    assert!(!daemons.is_empty(), "a daemon is there");
    assert!(end.status.success(), "{}", String::from_utf8_lossy(&end.stderr));
    assert!(mounts_on(place.path()).is_empty());
    let gone = || processes_mentioning(place_text).is_empty();
    assert!(wait_until(Duration::from_secs(10), gone), "processes are left: {:?}", processes_mentioning(place_text));
    traces.check("a mount in the background");
}

#[test]
fn several_folders_in_one_daemon() {
    if !can_mount() {
        return;
    }
    let traces = Traces::note();
    let folders = ["models", "more", "over"].map(temporary_folder);
    for (seed, folder) in folders.iter().enumerate() {
        data::write_file(&folder.path().join("m.safetensors"), seed as u64, 3 << 20);
    }
    let places = ["mnt", "mnt"].map(temporary_folder);
    let [models, more, over] = folders.each_ref().map(|folder| folder.path().to_str().expect("UTF-8"));
    let [first, second] = places.each_ref().map(|place| place.path().to_str().expect("UTF-8"));
    let also = format!("{more}:{second}");
    let arguments = ["--ram", "64M", "--also", &also, "--also", over, models, first];
    let mount = Mount::start_raw(folders[0].path(), places[0].path(), &arguments, None);
    let all_there = || mounts_on(places[1].path()).len() == 1 && mounts_on(folders[2].path()).len() == 1;
    assert!(wait_until(Duration::from_secs(10), all_there), "{}", mount.log());
    for (seed, place) in [first, second, over].iter().enumerate() {
        let found = fs::read(Path::new(place).join("m.safetensors")).expect("read");
        assert_eq!((found.len(), data::check(seed as u64, 0, &found)), (3 << 20, Ok(())), "{place}");
    }
    let status = mount.status();
    assert_eq!(status.0["mounts"].as_array().map(Vec::len), Some(3), "{:#}", status.0);
    assert_eq!(status.number("/ram/budget_bytes"), 64 << 20, "one budget for all");
    for (place, left) in [(second, 2), (over, 1)] {
        let output = mount.run(&["unmount", place]);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        assert!(mounts_on(Path::new(place)).is_empty(), "{place} is gone");
        assert_eq!(mount.status().0["mounts"].as_array().map(Vec::len), Some(left), "the others stay");
    }
    mount.stop();
    traces.check("several folders");
}

#[test]
fn as_a_file_says() {
    if !can_mount() {
        return;
    }
    let traces = Traces::note();
    let (source, more) = (temporary_folder("source"), temporary_folder("more"));
    fs::write(source.path().join("f"), b"one").expect("write");
    fs::write(more.path().join("g"), b"two").expect("write");
    let place = temporary_folder("mnt");
    let config = place.path().join("weightfs.toml");
    let mountpoint = place.path().join("models");
    fs::create_dir(&mountpoint).expect("mkdir");
    let text = format!(
        "source = {:?}\nmountpoint = {:?}\nalso = [{:?}]\nram = '96M'\nread-only = true\nhigh-watermark = 80\nlow-watermark = 50\n",
        source.path(),
        mountpoint,
        more.path()
    );
    fs::write(&config, text).expect("write");
    let mut mount = Mount::start_raw(
        source.path(),
        &mountpoint,
        &["--config", config.to_str().expect("UTF-8"), "--low-watermark", "60"],
        None,
    );
    assert_eq!(fs::read(mount.join("f")).expect("read"), b"one");
    assert_eq!(mounts_on(more.path()).len(), 1);
    assert!(fs::write(mount.join("new"), b"x").is_err(), "read-only");
    let status = mount.status();
    let ram = ["budget", "high_watermark", "low_watermark"]
        .map(|name| status.number(&format!("/ram/{name}_bytes")) * 100 / (96 << 20));
    assert!(
        ram[0] == 100 && ram[1].abs_diff(80) <= 2 && ram[2].abs_diff(60) <= 2,
        "the command line wins: {:#}",
        status.0
    );
    mount.signal(Signal::SIGTERM);
    mount.check_gone();
    traces.check("a mount by file");
}

#[test]
fn status_for_people() {
    if !can_mount() {
        return;
    }
    let _traces = Traces::note();
    let source = temporary_folder("source");
    let mount = Mount::start(source.path(), &["--ram", "64M"]);
    let output = mount.run(&["status", mount.path().to_str().expect("UTF-8")]);
    let text = String::from_utf8(output.stdout).expect("text");
    assert!(output.status.success());
    assert!(text.contains(mount.path().to_str().expect("UTF-8")) && text.contains("64"), "{text}");
    mount.status().check_contract();
    mount.stop();
}
