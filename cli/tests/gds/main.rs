//! The process that calls cuFile, against stand-ins for NVIDIA's libraries: every way, every failure, and nothing left.

mod failures;
mod probes;
mod reads;

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::rc::Rc;
use std::sync::OnceLock;
use std::time::Duration;

use tempfile::TempDir;
use weightfs::gpu::process::Gds;
use weightfs::gpu::protocol::{Order, to_hex};
use weightfs::sys::cuda::{Context, Cuda, Memory};

const MIB: u64 = 1 << 20;

/// A folder with the libraries, less the functions `missing`.
fn build(folder: &Path, missing: &[&str]) {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/standins/build.sh");
    let status = Command::new(script).arg(folder).args(missing).status().expect("run the build of the stand-ins");
    assert!(status.success(), "a C compiler is needed");
}

/// With all functions, built once.
fn complete() -> &'static Path {
    static FOLDER: OnceLock<TempDir> = OnceLock::new();
    FOLDER
        .get_or_init(|| {
            let folder = tempfile::tempdir().expect("a folder");
            build(folder.path(), &[]);
            folder
        })
        .path()
}

/// A machine with a GPU, as the program sees it.
struct Machine {
    folder: TempDir,
    libraries: PathBuf,
    script: String,
}

impl Machine {
    /// `script` is what `tests/standins/standin.h` describes.
    fn new(script: &str) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        for name in ["dev", "proc/driver/nvidia-fs", "etc"] {
            fs::create_dir_all(folder.path().join(name)).expect("make a folder");
        }
        fs::write(folder.path().join("dev/nvidiactl"), "").expect("write");
        Self { folder, libraries: complete().to_owned(), script: script.to_owned() }
    }

    fn without(mut self, missing: &[&str]) -> Self {
        self.libraries = self.folder.path().join("libraries");
        build(&self.libraries, missing);
        self
    }

    fn path(&self) -> &Path {
        self.folder.path()
    }

    fn environment(&self) -> [(&'static str, String); 4] {
        let text = |path: PathBuf| path.to_str().expect("UTF-8").to_owned();
        [
            ("WEIGHTFS_GPU_ROOT", text(self.path().to_owned())),
            ("WEIGHTFS_LIBCUDA", text(self.libraries.join("libcuda.so.1"))),
            ("WEIGHTFS_LIBCUFILE", text(self.libraries.join("libcufile.so.0"))),
            ("STANDIN", format!("log={} {}", text(self.path().join("log")), self.script)),
        ]
    }

    fn gds(&self) -> Gds {
        let gds = Gds::new(env!("CARGO_BIN_EXE_weightfs").into(), vec!["gds".into(), "serve".into()])
            .patience(Duration::from_secs(20));
        self.environment().into_iter().fold(gds, |gds, (name, value)| gds.env(name, value))
    }

    fn log(&self) -> String {
        fs::read_to_string(self.path().join("log")).unwrap_or_default()
    }

    /// Writes a file to read.
    fn file(&self, len: u64) -> (File, Vec<u8>) {
        let bytes: Vec<u8> = (0..len).map(|at| (at * 131 % 253) as u8 ^ (at >> 13) as u8).collect();
        let path = self.path().join("model");
        fs::write(&path, &bytes).expect("write");
        (File::open(path).expect("open"), bytes)
    }
}

/// Memory of a client, in this process.
struct Client {
    context: Rc<Context>,
}

impl Client {
    fn new() -> Self {
        let cuda = Cuda::load(complete().join("libcuda.so.1").into()).expect("the stand-in");
        cuda.start().expect("start");
        Self { context: Context::of(&cuda, 0).expect("a context") }
    }

    fn memory(&self, len: u64) -> Rc<Memory> {
        Memory::new(&self.context, len as usize).expect("memory")
    }
}

fn order(len: u64, spans: &[(u64, u64, u64)], into: Option<&Memory>, size: u64) -> Order {
    Order {
        content: "1:2:3".to_owned(),
        file_bytes: len,
        device: 0,
        spans: spans.to_vec(),
        size_bytes: size,
        into: into.map(|memory| to_hex(&memory.handle().expect("a handle").0)),
        direct_only: false,
        hold_seconds: 600,
    }
}

/// That every span is where it belongs.
fn check(memory: &Memory, file: &[u8], spans: &[(u64, u64, u64)]) {
    for &(start, len, at) in spans {
        let mut found = vec![0; len as usize];
        memory.read(at as usize, &mut found).expect("read back");
        assert!(found == file[start as usize..(start + len) as usize], "{len} bytes from {start} at {at}");
    }
}
