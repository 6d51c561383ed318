//! Many readers and writers at once, each file with its own lock and its content in memory.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::RwLock;
use std::time::{Duration, Instant};

use weightfs_tests::Mount;
use weightfs_tests::data::{self, EDGE_SIZES, Random, same_bytes};
use weightfs_tests::maps::{Map, MapKind};
use weightfs_tests::requirements::{Need, met};
use weightfs_tests::system::temporary_folder;

use crate::step::read_full;

const TIME: Duration = Duration::from_secs(8);
const FILES: usize = 6;

/// A file of the mount and what must be in it.
struct Model {
    path: PathBuf,
    content: RwLock<Vec<u8>>,
}

#[test]
fn readers_and_writers_at_once() {
    check(&[]);
}

#[test]
fn readers_and_writers_at_once_where_there_is_no_passthrough() {
    check(&["--no-passthrough"]);
}

fn check(options: &[&str]) {
    if !met(&[Need::Mount]) {
        return;
    }
    let source = temporary_folder("source");
    let mut random = Random::from_environment();
    let mount = Mount::start(source.path(), &[&["--ram", "16M", "--open-wait", "200ms"], options].concat());
    let models: Vec<Model> =
        (0..FILES).map(|index| Model::new(mount.join(&format!("{index}.safetensors")), &mut random)).collect();
    let end = Instant::now() + TIME;
    std::thread::scope(|scope| {
        for index in 0..6 {
            let (models, mut random) = (&models, random.fork());
            scope.spawn(move || {
                while Instant::now() < end {
                    let model = random.pick(models);
                    // Writes are rare: a file that was just written is not kept, and that would be all there is.
                    if index < 2 && random.chance(12) { model.write(&mut random) } else { model.read(&mut random) }
                }
            });
        }
    });
    for model in &models {
        let content = model.content.read().expect("no thread panicked");
        assert_eq!(same_bytes(&content, &fs::read(&model.path).expect("read"), 0), Ok(()));
    }
    mount.stop();
}

impl Model {
    fn new(path: PathBuf, random: &mut Random) -> Model {
        let content = data::bytes(random.number(), 0, random.below(6 << 20) as usize);
        fs::write(&path, &content).expect("write");
        Model { path, content: RwLock::new(content) }
    }

    fn read(&self, random: &mut Random) {
        let content = self.content.read().expect("no thread panicked");
        let file = File::open(&self.path).expect("open");
        let len = file.metadata().expect("stat").len();
        assert_eq!(len, content.len() as u64, "length of {}", self.path.display());
        // Whole, as a loader does it, or some of it.
        let is_load = random.chance(3);
        let offset = if is_load { 0 } else { random.below(len + 5000).min(len) as usize };
        let end = if is_load { content.len() } else { content.len().min(offset + random.below(3 << 20) as usize) };
        let expected = &content[offset..end];
        let mut found = vec![0; expected.len()];
        match random.below(3) {
            0 if !content.is_empty() => {
                let kind = *random.pick(&[MapKind::Private, MapKind::Shared]);
                Map::new(&file, content.len(), kind).expect("map").read(offset, &mut found);
            }
            _ => assert_eq!(read_full(&file, &mut found, offset as u64), Ok(expected.len())),
        }
        assert_eq!(same_bytes(expected, &found, offset as u64), Ok(()), "{}", self.path.display());
    }

    fn write(&self, random: &mut Random) {
        let mut content = self.content.write().expect("no thread panicked");
        let size = if random.chance(3) { *random.pick(&EDGE_SIZES) } else { random.below(6 << 20) } as usize;
        let bytes = data::bytes(random.number(), 0, size);
        match random.below(4) {
            0 => {
                fs::write(&self.path, &bytes).expect("overwrite");
                *content = bytes;
            }
            1 => {
                let temporary = self.path.with_extension("tmp");
                fs::write(&temporary, &bytes).expect("write");
                fs::rename(&temporary, &self.path).expect("rename");
                *content = bytes;
            }
            2 => {
                let file = OpenOptions::new().write(true).open(&self.path).expect("open");
                file.set_len(size as u64).expect("truncate");
                content.resize(size, 0);
            }
            _ => {
                let offset = random.below(content.len() as u64 + 1) as usize;
                let file = OpenOptions::new().write(true).open(&self.path).expect("open");
                file.write_all_at(&bytes, offset as u64).expect("write");
                if content.len() < offset + size {
                    content.resize(offset + size, 0);
                }
                content[offset..offset + size].copy_from_slice(&bytes);
            }
        }
    }
}
