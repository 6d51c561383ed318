//! What is said of a model file wherever files are listed.

use weightfs::control::{FileStatus, Priority};
use weightfs::units::ByteSize;

use super::bar::{FILLING, PINNED, RESIDENT, bar};
use super::figures::{percent, plain};

/// What of the file is pinned, resident besides, and on its way.
pub fn file_bar(file: &FileStatus, width: u64) -> String {
    parts_bar(file.pinned_bytes, file.resident_bytes, file.filling_bytes, file.size_bytes, width)
}

/// Pins may promise what is not there yet.
pub fn parts_bar(pinned: u64, resident: u64, filling: u64, size: u64, width: u64) -> String {
    let resident = resident.min(size);
    let pinned = pinned.min(resident);
    bar(&[(pinned, PINNED), (resident - pinned, RESIDENT), (filling, FILLING)], size, width)
}

/// `pinned, in use`: what is special about it.
pub fn marks(file: &FileStatus) -> String {
    let mut marks = Vec::new();
    match file.pinned_bytes {
        0 => {}
        all if all >= file.size_bytes => marks.push("pinned".to_owned()),
        part => marks.push(format!("{} pinned", ByteSize(part))),
    }
    if file.filling_bytes > 0 {
        let there = percent(file.resident_bytes, file.size_bytes).unwrap_or(100);
        marks.push(format!("filling, {there} %"));
    }
    if file.in_use {
        marks.push("in use".to_owned());
    }
    if file.client_held_bytes > 0 {
        marks.push(format!("{} held of old contents", ByteSize(file.client_held_bytes)));
    }
    marks.extend(file.in_vram.iter().map(|device| format!("in {}", plain(device))));
    match file.priority {
        Priority::Normal => {}
        Priority::Low => marks.push("low priority".to_owned()),
        Priority::High => marks.push("high priority".to_owned()),
    }
    marks.join(", ")
}

#[cfg(test)]
pub mod examples {
    use weightfs::control::{FileState, FileStatus, FormatName, Priority};

    /// Nothing special about it.
    pub fn file(path: &str, size_bytes: u64, resident_bytes: u64) -> FileStatus {
        let state = match resident_bytes {
            0 => FileState::Absent,
            all if all >= size_bytes => FileState::Resident,
            _ => FileState::Partial,
        };
        FileStatus {
            path: path.into(),
            size_bytes,
            resident_bytes,
            pinned_bytes: 0,
            kept_bytes: resident_bytes,
            client_held_bytes: 0,
            state,
            filling_bytes: 0,
            format: FormatName::Safetensors,
            priority: Priority::Normal,
            in_use: false,
            in_vram: Vec::new(),
            resident_seconds: None,
            unused_seconds: None,
            last_load: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::examples::file;
    use super::*;

    #[test]
    fn what_is_special_is_said() {
        let plain = file("/m/a", 100 << 20, 50 << 20);
        assert_eq!(marks(&plain), "");
        assert_eq!(file_bar(&plain, 10), "█████░░░░░");
        let special = FileStatus {
            pinned_bytes: 20 << 20,
            filling_bytes: 30 << 20,
            in_use: true,
            in_vram: vec!["cuda:0".into()],
            priority: Priority::High,
            ..plain
        };
        assert_eq!(marks(&special), "20.0 MiB pinned, filling, 50 %, in use, in cuda:0, high priority");
        assert_eq!(file_bar(&special, 10), "▓▓███▒▒▒░░");
    }
}
