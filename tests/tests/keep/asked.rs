//! What people ask for: pins, prefetches, evictions, reasons.

use std::fs;

use serde_json::Value;
use weightfs_tests::load::load;
use weightfs_tests::system::{let_files_settle, temporary_folder, wait_until};
use weightfs_tests::{Mount, data};

use crate::{MIB, PATIENCE, can_mount, refused, told};

fn text(path: &std::path::Path) -> &str {
    path.to_str().expect("UTF-8")
}

fn explained(mount: &Mount, path: &str) -> Value {
    serde_json::from_str(&told(mount, &["explain", path, "--json"])).expect("JSON")
}

fn pinned(mount: &Mount) -> u64 {
    mount.status().number("/ram/pinned_bytes")
}

#[test]
fn a_pinned_file_is_read_in_and_stays_whatever_else_is_loaded() {
    if !can_mount() {
        return;
    }
    let source = temporary_folder("source");
    for index in 0..4 {
        data::write_safetensors(&source.path().join(format!("{index}.safetensors")), index * 100, 24);
    }
    let_files_settle();
    let mount = Mount::start(source.path(), &["--ram", "64M"]);
    let path = mount.join("0.safetensors");
    told(&mount, &["pin", text(&path)]);
    let size = fs::metadata(&path).expect("it is there").len();
    let is_whole = |mount: &Mount| explained(mount, text(&path))["resident_bytes"] == size;
    assert!(wait_until(PATIENCE, || is_whole(&mount)), "it is read in: {}", explained(&mount, text(&path)));
    assert!(pinned(&mount) >= size);
    for _ in 0..3 {
        (1..4).for_each(|index| _ = load(&mount.join(&format!("{index}.safetensors"))));
    }
    assert!(is_whole(&mount), "{}", explained(&mount, text(&path)));

    let more = refused(&mount, &["pin", &format!("{}/*.safetensors", mount.path().display())]);
    assert!(more.contains("pinned already") && more.contains("0.safetensors"), "{more}");
    assert!(pinned(&mount) < size + 4 * MIB, "what was refused leaves nothing behind: {:#}", mount.status().0);
    let kept = told(&mount, &["evict", text(&path)]);
    assert!(kept.contains("0 B freed") && kept.contains("stay"), "{kept}");

    // Another content under the same name.
    data::write_safetensors(&source.path().join("new"), 7, 24);
    fs::rename(source.path().join("new"), source.path().join("0.safetensors")).expect("rename");
    let is_new = || {
        let now = explained(&mount, text(&path));
        now["resident_bytes"] == now["size_bytes"] && now["pinned_bytes"].as_u64() >= now["size_bytes"].as_u64()
    };
    assert!(wait_until(PATIENCE, is_new), "{}", explained(&mount, text(&path)));
    let expected = fs::read(source.path().join("0.safetensors")).expect("read");
    assert_eq!(data::same_bytes(&expected, &fs::read(&path).expect("read"), 0), Ok(()));

    told(&mount, &["unpin", text(&path)]);
    assert_eq!(pinned(&mount), 0);
    assert!(refused(&mount, &["unpin", text(&path)]).contains("not pinned"));
    let gone = || {
        told(&mount, &["evict", text(&path)]);
        explained(&mount, text(&path))["resident_bytes"] == 0
    };
    assert!(wait_until(PATIENCE, gone), "{}", explained(&mount, text(&path)));
    mount.stop();
}

#[test]
fn pins_of_tensors_and_names_to_come_survive_a_restart() {
    if !can_mount() {
        return;
    }
    let source = temporary_folder("source");
    data::write_safetensors(&source.path().join("model.safetensors"), 1, 72);
    let_files_settle();
    let mountpoint = temporary_folder("mnt");
    let start = |private| Mount::again(source.path(), mountpoint.path(), &["--ram", "128M"], private);
    let mount = start(None);
    let model = mount.join("model.safetensors");
    // One tensor of three, of 24 MiB each.
    told(&mount, &["pin", text(&model), "--tensors", "blocks.1.attn.*"]);
    told(&mount, &["pin", text(&model), "--tensors", "blocks.1.mlp.bias"]);
    let a_third = |mount: &Mount| {
        let now = explained(mount, text(&model));
        let resident = now["resident_bytes"].as_u64().unwrap_or(0);
        (24 * MIB..=30 * MIB).contains(&resident)
    };
    assert!(wait_until(PATIENCE, || a_third(&mount)), "{}", explained(&mount, text(&model)));
    let all = format!("{}/lora*", mount.path().display());
    assert!(refused(&mount, &["pin", &all]).contains("no file"), "there is none yet");
    data::write_safetensors(&source.path().join("lora1.safetensors"), 50, 6);
    let_files_settle();
    told(&mount, &["pin", &all]);
    let private = mount.stop_and_keep();

    data::write_safetensors(&source.path().join("lora2.safetensors"), 60, 6);
    let mount = start(Some(private));
    let is_back = || a_third(&mount) && pinned(&mount) >= (24 + 6 + 6) * MIB;
    assert!(wait_until(PATIENCE, is_back), "{:#} {}", mount.status().0, explained(&mount, text(&model)));
    told(&mount, &["unpin", &all]);
    assert!(pinned(&mount) < 30 * MIB && a_third(&mount));
    mount.stop();
}

#[test]
fn a_file_is_prefetched_explained_and_evicted() {
    if !can_mount() {
        return;
    }
    let source = temporary_folder("source");
    data::write_safetensors(&source.path().join("model.safetensors"), 1, 24);
    fs::write(source.path().join("small.safetensors"), "small").expect("write");
    let_files_settle();
    let mount = Mount::start(source.path(), &["--ram", "128M"]);
    let path = mount.join("model.safetensors");
    assert!(told(&mount, &["explain", text(&path)]).contains("not in RAM"));
    let done = told(&mount, &["prefetch", text(&path), "--wait"]);
    assert!(done.contains("24.0 MiB resident, 1 file"), "{done}");
    let reasons = told(&mount, &["explain", text(&path)]);
    assert!(
        reasons.contains("in RAM, since") && reasons.contains("Policy  auto") && reasons.contains("Next"),
        "{reasons}"
    );
    let done = told(&mount, &["evict", text(&path)]);
    assert!(done.contains("24.0 MiB freed"), "{done}");
    assert_eq!(mount.status().resident(), 0);
    assert!(refused(&mount, &["pin", text(&mount.join("small.safetensors"))]).contains("smaller than"));
    assert!(refused(&mount, &["pin", text(mount.path())]).contains("no file"));
    mount.stop();
}
