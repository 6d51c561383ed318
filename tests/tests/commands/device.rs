//! `prefetch --to cuda:0`, against stand-ins for NVIDIA's libraries.

use serde_json::json;
use weightfs_tests::gpu::Gpu;
use weightfs_tests::load::load;

use crate::Library;

#[test]
fn a_file_goes_to_the_device_past_ram_and_is_read_once() {
    for (mode, words) in [("gds", "GPUDirect Storage"), ("compat", "compatibility mode, through RAM")] {
        let gpu = Gpu::new();
        let Some(library) = Library::with_gpu(&gpu.environment(&format!("mode={mode}"))) else { return };
        let printed = library.prints(&["prefetch", "--wait", "--to", "cuda:0", &library.base()]);
        assert!(printed.starts_with("# SIZE on cuda:#, # file (") && printed.contains(words), "{printed}");
        let reads = gpu.log().matches(" read ").count();
        assert!(reads > 0);
        assert_eq!(library.mount.status().resident(), 0, "RAM is left out");
        // What is on the device is not read again, and nobody waits for it.
        for wait in [&["--wait"][..], &[]] {
            let job = library.json(&[&["prefetch", "--json", "--to", "cuda:0", &library.base()], wait].concat());
            assert_eq!((&job["state"], &job["bytes_done"]), (&json!("done"), &job["bytes_total"]), "{job:#}");
            assert_eq!(job["detail"], "on the device already", "{job:#}");
        }
        assert_eq!(gpu.log().matches(" read ").count(), reads);
        library.mount.stop();
    }
}

#[test]
fn where_it_is_impossible_it_says_why_and_how_to_do_without() {
    let gpu = Gpu::new();
    let Some(library) = Library::with_gpu(&gpu.environment("")) else { return };
    let base = library.base();
    let refused = |arguments: &[&str], words: &[&str]| {
        let (code, stdout, stderr) = library.run(&[&["prefetch"], arguments, &[&base[..]]].concat());
        assert_eq!((code, &stdout[..]), (1, ""), "{stderr}");
        for words in [words, &["nothing is read into cuda:", "Without --to", "weightfs doctor"]].concat() {
            assert!(stderr.contains(words), "no '{words}' in {stderr}");
        }
    };
    refused(&["--wait", "--to", "cuda:3"], &["no cuda:3", "devices here: 1"]);
    gpu.remove_module();
    refused(&["--wait", "--to", "cuda:1"], &["nvidia-fs", "modprobe", "allow_compat_mode"]);
    refused(&["--to", "cuda:1"], &["nvidia-fs", "modprobe"]);
    gpu.remove_device();
    refused(&["--to", "cuda:2"], &["no /dev/nvidiactl", "--gpus all"]);
    let (code, _, stderr) = library.run(&["prefetch", "--to", "cpu", &base]);
    assert!(code == 2 && stderr.contains("'cpu' is no device"), "{code} {stderr}");
    // It is a file as any other.
    assert!(load(&library.mount.join("checkpoints/base.safetensors")) > 0);
    library.told(&["prefetch", "--wait", &base]);
    library.mount.stop();
}

#[test]
fn libraries_that_crash_or_are_too_old_end_no_daemon() {
    let gpu = Gpu::new();
    for (script, words) in [
        ("abort=cuFileDriverOpen", "ended or does not answer"),
        ("fail=cuFileDriverOpen:0:5004", "another version"),
        ("fail=cuMemAlloc_v2:0:2", "CUDA_ERROR_OUT_OF_MEMORY"),
        ("version=11000", "for CUDA 11.0; update it"),
        ("devices=0", "CUDA_ERROR_NO_DEVICE"),
    ] {
        let Some(library) = Library::with_gpu(&gpu.environment(script)) else { return };
        let (code, _, stderr) = library.run(&["prefetch", "--wait", "--to", "cuda:0", &library.base()]);
        assert!(code == 1 && stderr.contains(words), "{script}: {code} {stderr}");
        library.told(&["prefetch", "--wait", &library.base()]);
        library.mount.stop();
    }
}
