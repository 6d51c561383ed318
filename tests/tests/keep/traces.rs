//! A trace of real loads says what a simulation needs to know.

use std::fs;

use serde_json::Value;
use weightfs_tests::load::load;
use weightfs_tests::system::{let_files_settle, temporary_folder};
use weightfs_tests::{Mount, data};

use crate::{MIB, can_mount, refused, told};

#[test]
fn a_recorded_loop_is_replayed_under_other_budgets() {
    if !can_mount() {
        return;
    }
    let source = temporary_folder("source");
    let mut all = 0;
    for index in 0..3 {
        let real = source.path().join(format!("{index}.safetensors"));
        data::write_safetensors(&real, index * 100, 24);
        all += fs::metadata(&real).expect("it was written").len();
    }
    let_files_settle();
    let mount = Mount::start(source.path(), &["--ram", "48M"]);
    let folder = temporary_folder("trace");
    let file = folder.path().join("loop.trace");
    let file = file.to_str().expect("UTF-8");
    let of = mount.path().to_str().expect("UTF-8");
    assert!(refused(&mount, &["trace", "stop", "--of", of]).contains("no trace"));
    assert!(
        refused(&mount, &["trace", "start", mount.join("x").to_str().expect("UTF-8"), "--of", of])
            .contains("lies in a mount")
    );
    told(&mount, &["trace", "start", file, "--of", of]);
    assert!(refused(&mount, &["trace", "start", file, "--of", of]).contains("already"));
    let rounds = 4;
    for _ in 0..rounds {
        (0..3).for_each(|index| _ = load(&mount.join(&format!("{index}.safetensors"))));
    }
    let summary = told(&mount, &["trace", "stop", "--of", of]);
    assert!(summary.contains(" events in ") && !summary.contains("lost"), "{summary}");
    assert!(refused(&mount, &["trace", "start", file, "--of", of]).contains("there already"));

    let shown = told(&mount, &["trace", "show", file]);
    assert!(shown.contains("is opened, kind") && shown.contains("is read, extents"), "{shown}");
    assert!(shown.contains("admitted") && shown.contains("bypassed"), "{shown}");
    // A trace of a warm cache says what is there to begin with: the first round of its replay hits that.
    let warm = folder.path().join("warm.trace");
    let warm = warm.to_str().expect("UTF-8");
    told(&mount, &["trace", "start", warm, "--of", of]);
    load(&mount.join("0.safetensors"));
    told(&mount, &["trace", "stop", "--of", of]);
    assert!(told(&mount, &["trace", "show", warm]).contains(" in RAM"));
    let plot = folder.path().join("plot.svg");
    let plot = plot.to_str().expect("UTF-8");
    let arguments = ["simulate", file, "--ram", "48M,100M", "--policy", "auto,lru", "--json", "--plot", plot];
    let report: Value = serde_json::from_str(&told(&mount, &arguments)).expect("JSON");
    let number = |pointer: &str| report.pointer(pointer).and_then(Value::as_u64).expect("a number");
    assert!(number("/used_bytes") >= all, "{report:#}");
    // Where everything fits, only the first round misses; where it does not, LRU misses always.
    let (hit, missed) = (number("/rows/1/optimum/hit_bytes"), number("/rows/1/optimum/missed_bytes"));
    assert!(missed <= all + 12 * MIB && hit >= (rounds - 1) * missed / 10 * 9, "{report:#}");
    assert!(number("/rows/0/policies/auto/hit_bytes") > number("/rows/0/policies/lru/hit_bytes"), "{report:#}");
    assert!(fs::read_to_string(plot).expect("it was drawn").ends_with("</svg>\n"));
    assert!(told(&mount, &["simulate", file]).contains("optimum"));
    assert!(refused(&mount, &["simulate", plot]).contains("no weightfs trace"));
    mount.stop();
}
