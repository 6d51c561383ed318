//! The lists for people: a bar and a few figures a row.

use std::fmt::Write;
use std::path::Path;

use weightfs::control::{Component, FileStatus, Tensors, Totals};
use weightfs::units::ByteSize;

use crate::output::figures::{files as count_files, plain, shown, time};
use crate::output::files::{file_bar, marks, parts_bar};
use crate::output::paint::Paint;

const BAR: u64 = 16;

/// The files beneath `base`, whose names are shown from there, or from the root where there is none.
pub fn files(files: &[FileStatus], totals: &Totals, base: Option<&Path>, paint: Paint) -> String {
    let mut text = String::new();
    let head = format!("{:<1$}  {2:>10}  {3:>10}  {4:>8}  {5}", "", BAR as usize, "IN RAM", "SIZE", "USED", "FILE");
    // Writing to a String cannot fail.
    let _ = writeln!(text, "{}", paint.bold(head.as_str()));
    for file in files {
        let name = match base.and_then(|base| file.path.strip_prefix(base).ok()) {
            Some(below) if !below.as_os_str().is_empty() => shown(below),
            _ => shown(&file.path),
        };
        let used = file.unused_seconds.map_or_else(|| "–".to_owned(), time);
        let marks = marks(file);
        let gap = if marks.is_empty() { "" } else { "  " };
        let (resident, size) = (ByteSize(file.resident_bytes).to_string(), ByteSize(file.size_bytes).to_string());
        let (bar, marks) = (paint.good(&file_bar(file, BAR)), paint.dim(&marks));
        let _ = writeln!(text, "{bar}  {resident:>10}  {size:>10}  {used:>8}  {name}{gap}{marks}");
    }
    let _ = writeln!(
        text,
        "{}, {} of {} in RAM",
        count_files(totals.files),
        ByteSize(totals.resident_bytes),
        ByteSize(totals.size_bytes)
    );
    text
}

/// A file's tensors by group.
pub fn tensors(tensors: &Tensors, paint: Paint) -> String {
    let mut text = String::new();
    let resident: u64 = tensors.groups.iter().map(|group| group.resident_bytes).sum();
    let of_tensors: u64 = tensors.groups.iter().map(|group| group.size_bytes).sum();
    let count: u64 = tensors.groups.iter().map(|group| group.tensors).sum();
    let _ = writeln!(
        text,
        "{}\n{count} tensors, {} of {} in RAM, behind a header of {}\n",
        paint.bold(&shown(&tensors.path)),
        ByteSize(resident),
        ByteSize(of_tensors),
        ByteSize(tensors.header_bytes)
    );
    if tensors.components.len() > 1 {
        for part in &tensors.components {
            let pattern = part.pattern.as_ref().map(|pattern| format!("--tensors '{}'", plain(pattern)));
            let row = Row {
                name: component(part.name),
                tensors: part.tensors,
                size: part.size_bytes,
                resident: part.resident_bytes,
                pinned: 0,
            };
            row.write(&mut text, &pattern.unwrap_or_default(), paint);
        }
        text.push('\n');
    }
    for group in &tensors.groups {
        let pinned = match group.pinned_bytes {
            0 => String::new(),
            all if all >= group.size_bytes => "pinned".to_owned(),
            part => format!("{} pinned", ByteSize(part)),
        };
        let row = Row {
            name: &group.name,
            tensors: group.tensors,
            size: group.size_bytes,
            resident: group.resident_bytes,
            pinned: group.pinned_bytes,
        };
        row.write(&mut text, &pinned, paint);
    }
    text
}

/// Tensors that belong together.
struct Row<'a> {
    name: &'a str,
    tensors: u64,
    size: u64,
    resident: u64,
    pinned: u64,
}

impl Row<'_> {
    fn write(&self, text: &mut String, remark: &str, paint: Paint) {
        let bar = paint.good(&parts_bar(self.pinned, self.resident, 0, self.size, BAR));
        let (resident, size) = (ByteSize(self.resident).to_string(), ByteSize(self.size).to_string());
        let gap = if remark.is_empty() { "" } else { "  " };
        let (name, remark) = (plain(self.name), paint.dim(remark));
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{bar}  {resident:>10}  {size:>10}  {:>6}  {name}{gap}{remark}", self.tensors);
    }
}

fn component(component: Component) -> &'static str {
    match component {
        Component::DiffusionModel => "diffusion model",
        Component::TextEncoder => "text encoder",
        Component::Vae => "VAE",
        Component::Other => "other",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::files::examples::file;
    use weightfs::control::{ComponentStatus, FormatName, GroupStatus};

    const GIB: u64 = 1 << 30;

    #[test]
    fn a_folder_at_a_glance() {
        let used = FileStatus { unused_seconds: Some(240.0), ..file("/m/loras/b.safetensors", GIB, GIB / 2) };
        let pinned = FileStatus { pinned_bytes: 2 * GIB, in_use: true, ..file("/m/a.safetensors", 2 * GIB, 2 * GIB) };
        let totals = Totals { files: 2, size_bytes: 3 * GIB, resident_bytes: 5 * GIB / 2 };
        let expected = "\
\x20                     IN RAM        SIZE      USED  FILE
▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓     2.0 GiB     2.0 GiB         –  a.safetensors  pinned, in use
████████░░░░░░░░   512.0 MiB     1.0 GiB     4 min  loras/b.safetensors
2 files, 2.5 GiB of 3.0 GiB in RAM
";
        assert_eq!(files(&[pinned, used], &totals, Some(Path::new("/m")), Paint::PLAIN), expected);
    }

    #[test]
    fn tensors_by_group_and_part() {
        let group = |name: &str, size, resident, pinned| GroupStatus {
            name: name.into(),
            tensors: 12,
            size_bytes: size,
            resident_bytes: resident,
            pinned_bytes: pinned,
        };
        let part = |name, size, resident, pattern: Option<&str>| ComponentStatus {
            name,
            tensors: 12,
            size_bytes: size,
            resident_bytes: resident,
            pattern: pattern.map(str::to_owned),
        };
        let example = Tensors {
            path: "/m/sd.safetensors".into(),
            size_bytes: 2 * GIB,
            header_bytes: 2048,
            format: FormatName::Safetensors,
            groups: vec![group("model.diffusion_model.input_blocks.0", GIB, GIB, 0), group("vae\x1b", GIB, 0, GIB)],
            components: vec![
                part(Component::DiffusionModel, GIB, GIB, Some("model.diffusion_model.*")),
                part(Component::Vae, GIB, 0, None),
            ],
            tensors: Vec::new(),
            omitted: 0,
        };
        let expected = "\
/m/sd.safetensors
24 tensors, 1.0 GiB of 2.0 GiB in RAM, behind a header of 2.0 KiB

████████████████     1.0 GiB     1.0 GiB      12  diffusion model  --tensors 'model.diffusion_model.*'
░░░░░░░░░░░░░░░░         0 B     1.0 GiB      12  VAE

████████████████     1.0 GiB     1.0 GiB      12  model.diffusion_model.input_blocks.0
░░░░░░░░░░░░░░░░         0 B     1.0 GiB      12  vae\u{fffd}  pinned
";
        assert_eq!(tensors(&example, Paint::PLAIN), expected);
    }
}
