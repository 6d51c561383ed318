//! A machine with a GPU, as the program sees it: stand-ins for NVIDIA's libraries, and the files that say what is there.

use std::fs;
use std::path::Path;
use std::process::Command;

use tempfile::TempDir;

use crate::python::workspace;
use crate::system::temporary_folder;

/// What the module of GPUDirect Storage makes.
const MODULE: &str = "root/proc/driver/nvidia-fs";

/// Host memory is its device memory.
pub struct Gpu {
    folder: TempDir,
}

impl Gpu {
    /// One device, and the module of GPUDirect Storage.
    ///
    /// # Panics
    /// Where there is no C compiler to build the stand-ins with.
    #[expect(clippy::new_without_default, reason = "it builds libraries")]
    pub fn new() -> Gpu {
        let folder = temporary_folder("gpu");
        for name in ["root/dev", "root/etc", MODULE] {
            fs::create_dir_all(folder.path().join(name)).expect("make a folder");
        }
        fs::write(folder.path().join("root/dev/nvidiactl"), "").expect("write");
        let script = workspace().join("tests/standins/build.sh");
        let status = Command::new(script).arg(folder.path()).status().expect("run the build of the stand-ins");
        assert!(status.success(), "a C compiler is needed");
        Gpu { folder }
    }

    /// What a daemon needs in its environment to see it. `script` is what `tests/standins/standin.h` describes.
    pub fn environment(&self, script: &str) -> [(&'static str, String); 4] {
        let text = |path: &str| self.folder.path().join(path).to_str().expect("UTF-8").to_owned();
        [
            ("WEIGHTFS_GPU_ROOT", text("root")),
            ("WEIGHTFS_LIBCUDA", text("libcuda.so.1")),
            ("WEIGHTFS_LIBCUFILE", text("libcufile.so.0")),
            ("STANDIN", format!("log={} {script}", text("log"))),
        ]
    }

    /// As where the module of GPUDirect Storage is not loaded.
    pub fn remove_module(&self) {
        fs::remove_dir(self.folder.path().join(MODULE)).expect("remove");
    }

    /// As on a machine without a GPU.
    pub fn remove_device(&self) {
        fs::remove_file(self.folder.path().join("root/dev/nvidiactl")).expect("remove");
    }

    /// The calls so far, of all processes.
    pub fn log(&self) -> String {
        fs::read_to_string(Path::new(self.folder.path()).join("log")).unwrap_or_default()
    }
}
