//! Headers that lie: the right bytes come out, and nobody else notices.

use std::fs::{self, File};
use std::io::Write;

use weightfs_tests::Mount;
use weightfs_tests::data::{self, same_bytes, write_hostile_safetensors};
use weightfs_tests::maps::{Map, MapKind};
use weightfs_tests::system::{let_files_settle, temporary_folder};

use crate::{MIB, can_mount, make_resident, name_of};

const BODY: u64 = 5 * MIB + 321;

#[test]
fn hostile_files_are_served_as_they_are() {
    if !can_mount() {
        return;
    }
    let source = temporary_folder("source");
    let path = |name: &str| source.path().join(name);
    let tensor = |from: u64, to: u64| format!(r#"{{"a":{{"dtype":"F16","shape":[1],"data_offsets":[{from},{to}]}}}}"#);
    let headers = [
        ("length-max", u64::MAX, "{}".to_owned()),
        ("length-sign", 1 << 63, "{}".to_owned()),
        ("length-overflow", u64::MAX - 7, "{}".to_owned()),
        ("length-behind-the-end", BODY * 2, "{}".to_owned()),
        ("length-zero", 0, String::new()),
        ("not-json", 20, "}}}}}}}}}}}}}}}}}}}}".to_owned()),
        ("not-utf8-length", 3, "{\"\u{fffd}\"".to_owned()),
        ("offsets-overflow", 80, tensor(u64::MAX - 1, u64::MAX)),
        ("offsets-backwards", 80, tensor(4096, 0)),
        ("offsets-behind-the-end", 80, tensor(0, 1 << 50)),
        ("offsets-negative", 80, tensor(0, 8).replace(",8]", ",-8]")),
        ("deep", 4 << 20, "[".repeat(4 << 20)),
        ("many", 4 << 20, format!("{{{}", r#""a":{"dtype":"F16","shape":[],"data_offsets":[0,0]},"#.repeat(80_000))),
    ];
    for (name, claimed, json) in &headers {
        let padded = format!("{json:<80}");
        write_hostile_safetensors(&path(&format!("{name}.safetensors")), *claimed, &padded, 9, BODY);
    }
    let gguf = |name: &str, version: u32, tensors: u64, pairs: u64| {
        let mut file = File::create(path(name)).expect("create");
        file.write_all(b"GGUF").expect("write");
        file.write_all(&version.to_le_bytes()).expect("write");
        file.write_all(&[tensors.to_le_bytes(), pairs.to_le_bytes()].concat()).expect("write");
        file.write_all(&u64::MAX.to_le_bytes().repeat(64)).expect("write");
        file.write_all(&data::bytes(1, 0, BODY as usize)).expect("write");
    };
    gguf("counts.gguf", 3, u64::MAX, u64::MAX);
    gguf("strings.gguf", 3, 1, 1);
    gguf("version.gguf", 4_000_000_000, 1, 0);
    let mut zip = data::bytes(2, 0, BODY as usize);
    zip.splice(0..4, *b"PK\x03\x04");
    let end = zip.len() - 22;
    zip[end..].copy_from_slice(&[b"PK\x05\x06".as_slice(), &[0xff; 16], &[0, 0]].concat());
    fs::write(path("directory.ckpt"), zip).expect("write");
    fs::write(path("model.safetensors.index.json"), r#"{"weight_map": {"a": "../../../../etc/passwd"}}"#)
        .expect("write");
    data::write_file(&path("cut.safetensors"), 3, 7);
    data::write_safetensors(&path("good.safetensors"), 100, 6);
    let_files_settle();

    let mount = Mount::start(source.path(), &["--ram", "256M"]);
    let mut names: Vec<_> =
        fs::read_dir(source.path()).expect("list").map(|entry| entry.expect("entry").path()).collect();
    names.sort();
    for round in ["cold", "warm"] {
        for real in &names {
            let name = name_of(real);
            let expected = fs::read(real).expect("read");
            let found = fs::read(mount.join(&name)).unwrap_or_else(|error| panic!("{round} {name}: {error}"));
            assert_eq!(same_bytes(&expected, &found, 0), Ok(()), "{round} {name} by read");
            let file = File::open(mount.join(&name)).expect("open");
            let map = Map::new(&file, expected.len(), MapKind::Private).expect("map").to_vec();
            assert_eq!(same_bytes(&expected, &map, 0), Ok(()), "{round} {name} by map");
        }
    }
    assert!(!mount.log().contains("panicked"), "{}", mount.log());
    let before = mount.status().source_read();
    make_resident(&mount, "good.safetensors", 6 * MIB);
    assert!(mount.status().source_read() - before < MIB, "the good file is warm: {:#}", mount.status().0);
    mount.stop();
}
