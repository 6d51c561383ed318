//! The list of model files, and what of each is in RAM.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::path::Path;
use std::time::Duration;

use weightfs::control::{
    ControlError, FileSort, FileState, FileStatus, Files, FilesQuery, FormatName, LoadKind, MOST_LISTED, Totals,
};
use weightfs::format::Format;
use weightfs::predict::OpenKind;

use super::Control;
use super::rights::Peer;
use crate::fs::ModelFile;

/// How many files an answer has where it was not said.
const LISTED: u32 = 1000;

impl Control {
    pub fn files(&self, peer: &Peer, query: &FilesQuery) -> Result<Files, ControlError> {
        let start = query.cursor.as_deref().map_or(Ok(0), str::parse::<usize>);
        let start = start.map_err(|_| ControlError::BadRequest("this cursor is none that was given out".into()))?;
        let limit = query.limit.unwrap_or(LISTED);
        if !(1..=MOST_LISTED).contains(&limit) {
            return Err(ControlError::BadRequest(format!("limit is from 1 to {MOST_LISTED}")));
        }
        let reader = self.rights.reader(peer);
        let models = self.places.models(query.path.as_deref(), reader.as_ref())?;
        let held = self.store.client_held();
        let mut files: Vec<FileStatus> = models.iter().map(|model| self.file_status(model, &held)).collect();
        if query.resident == Some(true) {
            files.retain(|file| file.resident_bytes + file.filling_bytes + file.client_held_bytes > 0);
        }
        match query.sort.unwrap_or_default() {
            // As they come.
            FileSort::Path => {}
            FileSort::Size => files.sort_by_key(|file| Reverse(file.size_bytes)),
            FileSort::Resident => files.sort_by_key(|file| Reverse(file.resident_bytes)),
            FileSort::Used => {
                let unused = |file: &FileStatus| file.unused_seconds.unwrap_or(f64::INFINITY);
                files.sort_by(|a, b| unused(a).total_cmp(&unused(b)));
            }
        }
        let mut totals = Totals { files: files.len() as u64, ..Totals::default() };
        for file in &files {
            totals.size_bytes += file.size_bytes;
            totals.resident_bytes += file.resident_bytes;
        }
        let end = start.saturating_add(limit as usize);
        let next = (end < files.len()).then(|| end.to_string());
        let files = files.into_iter().skip(start).take(limit as usize).collect();
        Ok(Files { files, next, totals })
    }

    fn file_status(&self, model: &ModelFile, held: &HashMap<(u64, u64), u64>) -> FileStatus {
        let identity = &model.identity;
        let report = self.store.report(identity);
        let policy = report.policy.unwrap_or_default();
        let now = self.store.clock();
        let ago = |then: Duration| now.saturating_sub(then).as_secs_f64();
        FileStatus {
            path: model.path.clone(),
            size_bytes: identity.size,
            resident_bytes: report.resident,
            pinned_bytes: policy.pinned_bytes.min(identity.size),
            kept_bytes: policy.kept_bytes.min(identity.size),
            client_held_bytes: held.get(&(identity.device, identity.inode)).copied().unwrap_or(0),
            state: state_of(report.resident, identity.size),
            filling_bytes: report.filling,
            format: report.format.map_or_else(|| format_by_name(&model.path), format_name),
            priority: policy.priority,
            in_use: report.held || policy.in_use,
            in_vram: self.in_vram(identity),
            resident_seconds: policy.since.map(ago),
            unused_seconds: policy.last_use.map(ago),
            last_load: report.last_open.and_then(load_kind),
        }
    }
}

pub(super) fn state_of(resident: u64, size: u64) -> FileState {
    match resident {
        0 => FileState::Absent,
        part if part < size => FileState::Partial,
        _ => FileState::Resident,
    }
}

pub(super) fn format_name(format: Format) -> FormatName {
    match format {
        Format::Safetensors => FormatName::Safetensors,
        Format::Gguf => FormatName::Gguf,
        Format::TorchZip => FormatName::Torch,
        Format::Opaque => FormatName::Other,
    }
}

/// A guess, for a file that was not looked at.
fn format_by_name(path: &Path) -> FormatName {
    match path.extension().and_then(|ending| ending.to_str()).map(str::to_ascii_lowercase).as_deref() {
        Some("safetensors" | "sft") => FormatName::Safetensors,
        Some("gguf") => FormatName::Gguf,
        Some("pt" | "pth" | "ckpt" | "bin") => FormatName::Torch,
        _ => FormatName::Other,
    }
}

fn load_kind(kind: OpenKind) -> Option<LoadKind> {
    match kind {
        OpenKind::HeaderPeek => None,
        OpenKind::HashScan => Some(LoadKind::Whole),
        OpenKind::WholeLoadRead | OpenKind::Partial => Some(LoadKind::Pread),
        OpenKind::WholeLoadMapped => Some(LoadKind::Map),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_tell_formats_as_far_as_they_can() {
        let of = |name: &str| format_by_name(Path::new(name));
        assert_eq!(of("/m/a.SafeTensors"), FormatName::Safetensors);
        assert_eq!([of("b.gguf"), of("c.ckpt"), of("d")], [FormatName::Gguf, FormatName::Torch, FormatName::Other]);
        assert_eq!([state_of(0, 5), state_of(4, 5)], [FileState::Absent, FileState::Partial]);
        assert_eq!(state_of(5, 5), FileState::Resident);
    }
}
