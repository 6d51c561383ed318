//! Real programs load real models through the mount and see, tensor by tensor, what they see in the source.

use std::fs;
use std::path::Path;

use weightfs_tests::Mount;
use weightfs_tests::data;
use weightfs_tests::python::{load, run, trained_model};
use weightfs_tests::requirements::{Need, met};
use weightfs_tests::system::{drop_page_cache, let_files_settle, temporary_folder};

const NEEDS: [Need; 2] = [Need::Mount, Need::Python];

/// Ways to load a safetensors file.
const READERS: [&str; 6] = ["safetensors", "safetensors-lazy", "safetensors-bytes", "aimdo", "read", "map"];

/// Loads `name` cold and then warm with each reader, from the source and through the mount.
fn check_readers(source: &Path, name: &str, readers: &[&str], options: &[&str]) {
    let real = source.join(name);
    let_files_settle();
    for reader in readers {
        let expected = load(reader, &real).unwrap_or_else(|fault| panic!("{reader} cannot load the source: {fault}"));
        assert!(expected.as_object().is_some_and(|tensors| !tensors.is_empty()), "{reader} sees something");
        drop_page_cache(&real);
        let mount = Mount::start(source, options);
        for round in ["cold", "warm", "warm again"] {
            let found = load(reader, &mount.join(name)).unwrap_or_else(|fault| panic!("{reader}, {round}: {fault}"));
            assert!(expected == found, "{reader}, {round}: other tensors than in the source");
        }
        mount.stop();
    }
}

#[test]
fn a_trained_model() {
    if !met(&NEEDS) {
        return;
    }
    let source = temporary_folder("source");
    fs::copy(trained_model(), source.path().join("text_encoder.safetensors")).expect("copy the trained model");
    check_readers(source.path(), "text_encoder.safetensors", &READERS, &["--ram", "256M"]);
}

#[test]
fn a_model_larger_than_the_budget() {
    if !met(&NEEDS) {
        return;
    }
    let source = temporary_folder("source");
    data::write_safetensors(&source.path().join("model.safetensors"), 3, 64);
    check_readers(
        source.path(),
        "model.safetensors",
        &["safetensors", "aimdo", "map"],
        &["--ram", "24M", "--open-wait", "0"],
    );
}

#[test]
fn a_gguf_model_through_a_shared_map() {
    if !met(&NEEDS) {
        return;
    }
    let source = temporary_folder("source");
    let path = source.path().join("llama.gguf");
    run("make_gguf.py", &[path.to_str().expect("UTF-8"), "40"]).expect("make a GGUF file");
    check_readers(source.path(), "llama.gguf", &["gguf", "map", "read"], &["--ram", "256M"]);
    check_readers(source.path(), "llama.gguf", &["gguf"], &["--ram", "256M", "--no-passthrough", "--open-wait", "0"]);
}

#[test]
fn saving_over_a_model_that_is_loaded() {
    if !met(&NEEDS) {
        return;
    }
    let source = temporary_folder("source");
    for name in ["mount.safetensors", "plain.safetensors"] {
        data::write_safetensors(&source.path().join(name), 3, 24);
    }
    let_files_settle();
    let mount = Mount::start(source.path(), &["--ram", "256M"]);
    load("safetensors", &mount.join("mount.safetensors")).expect("it becomes resident");
    let save = |path: &Path| run("save_in_place.py", &[path.to_str().expect("UTF-8")]).expect("save over it");
    let expected = save(&source.path().join("plain.safetensors"));
    let found = save(&mount.join("mount.safetensors"));
    assert_eq!(found["before"], found["still"], "what is loaded stays what it was");
    assert!(expected == found, "saving gives the same as in a plain folder");
    let behind = load("safetensors", &source.path().join("mount.safetensors")).expect("load");
    assert_eq!(behind, found["after"], "and it is in the source");
    mount.stop();
}
