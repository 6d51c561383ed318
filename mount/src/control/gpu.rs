//! Prefetches that go to the memory of a GPU: carried out by the process for cuFile.

use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};

use rustix::fs::{Mode, OFlags};
use weightfs::control::{ControlError, DeviceMemory, Job, PrefetchRequest};
use weightfs::gpu::device_number;
use weightfs::gpu::presence::Presence;
use weightfs::gpu::probe;
use weightfs::gpu::process::{Gds, GdsError};
use weightfs::gpu::protocol::Order;
use weightfs::gpu::report::GpuReport;
use weightfs::ids::SourceIdentity;

use super::Control;
use super::places::Places;
use super::prefetch::{Elsewhere, Wanted};
use super::rights::Peer;
use crate::source::proc_path;

/// How long what nobody has loaded yet is held in the memory of a device.
const HELD_SECONDS: u64 = 600;

/// The program of this very process: its file may have been replaced.
const THIS_PROGRAM: &str = "/proc/self/exe";

/// The process for cuFile, which is started when it is needed.
pub fn gds() -> Arc<Gds> {
    Arc::new(Gds::new(THIS_PROGRAM.into(), vec!["gds".into(), "serve".into()]))
}

/// Has the driver and cuFile asked, by processes of their own, where there is a GPU at all.
pub fn look() -> Arc<OnceLock<GpuReport>> {
    let found = Arc::<OnceLock<GpuReport>>::default();
    if Presence::look().driver().is_ok() {
        let answer = Arc::clone(&found);
        let ask = move || _ = answer.set(probe::ask(Path::new(THIS_PROGRAM), &[OsStr::new("gds")], probe::PATIENCE));
        if let Err(error) = std::thread::Builder::new().name("gpu-probe".to_owned()).spawn(ask) {
            tracing::warn!("GPUs are not looked at: {error}");
        }
    }
    found
}

/// A file, and what is read of it.
struct Reading {
    path: PathBuf,
    identity: SourceIdentity,
    file: File,
    order: Order,
}

impl Control {
    /// Begins to read `wanted`, the files of `paths`, into the memory of `device`.
    pub(super) fn prefetch_to_device(
        &self,
        peer: &Peer,
        request: &PrefetchRequest,
        device: &str,
        wanted: Vec<(PathBuf, Wanted)>,
    ) -> Result<Job, ControlError> {
        let device = device_number(device).map_err(ControlError::BadRequest)?;
        if request.into.is_some() && wanted.len() != 1 {
            return Err(ControlError::BadRequest("memory of one's own is for one file at a time".to_owned()));
        }
        let into = request.into.as_ref();
        let readings: Vec<Reading> =
            wanted.iter().map(|(path, file)| self.reading(path, file, device, into)).collect::<Result<_, _>>()?;
        let bytes = |order: &Order| order.spans.iter().map(|span| span.1).fold(0, u64::saturating_add);
        let total = readings.iter().map(|reading| bytes(&reading.order)).fold(0, u64::saturating_add);
        let (job, course) = self.jobs.start_elsewhere(readings.len() as u64, total, *peer)?;
        let (places, gds) = (Arc::clone(&self.places), Arc::clone(&self.gds));
        let run = move || {
            // The files are held open as those of any prefetch are.
            let _wanted = wanted;
            let end = read_all(&places, &gds, &readings, &course);
            *course.end.lock() = Some(end);
        };
        let started = std::thread::Builder::new().name("gds".to_owned()).spawn(run);
        started.map_err(|error| ControlError::Failed(format!("no thread to read with: {error}")))?;
        Ok(job)
    }

    fn reading(
        &self,
        path: &Path,
        wanted: &Wanted,
        device: u32,
        into: Option<&DeviceMemory>,
    ) -> Result<Reading, ControlError> {
        let failed =
            |error: rustix::io::Errno| ControlError::NoFile { path: path.to_owned(), reason: error.to_string() };
        let generation = &wanted.opened.generation;
        let source = proc_path(generation.source.file().as_fd());
        let open = |flags| rustix::fs::open(&source, OFlags::RDONLY | OFlags::CLOEXEC | flags, Mode::empty());
        // Without O_DIRECT cuFile reads through the page cache, which some filesystems insist on.
        let file = open(OFlags::DIRECT).or_else(|_| open(OFlags::empty())).map_err(failed)?;
        let identity = self.places.identity(path)?;
        let order = Order {
            content: format!("{identity:?}"),
            file_bytes: generation.size,
            device,
            spans: into.map_or_else(|| packed(wanted), |into| into.spans.clone()),
            size_bytes: 0,
            into: into.map(|into| into.handle.clone()),
            direct_only: into.is_some(),
            hold_seconds: HELD_SECONDS,
        };
        let packed_bytes = order.spans.iter().map(|span| span.1).fold(0, u64::saturating_add);
        let size_bytes = into.map_or(packed_bytes, |into| into.size_bytes);
        Ok(Reading { path: path.to_owned(), identity, file: file.into(), order: Order { size_bytes, ..order } })
    }
}

/// What it came to, or why it did not.
fn read_all(places: &Places, gds: &Gds, readings: &[Reading], course: &Elsewhere) -> Result<String, String> {
    let (mut before, mut read, mut seconds, mut how) = (0, 0, 0.0, None);
    for reading in readings {
        let mut progress = |bytes: u64| {
            course.done.store(before + bytes, Ordering::Release);
            !course.cancelled.load(Ordering::Acquire)
        };
        if !progress(0) {
            return Err("it was stopped".to_owned());
        }
        let filled = gds.fill(&reading.file, &reading.order, &mut progress).map_err(|error| match error {
            GdsError::Refused(reason) => format!("{}: {reason}", reading.path.display()),
            error => error.to_string(),
        })?;
        // What was read while it changed is neither the old nor the new.
        if places.identity(&reading.path).ok() != Some(reading.identity) {
            return Err(format!("{} was changed while it was read; ask again", reading.path.display()));
        }
        before += filled.bytes;
        course.done.store(before, Ordering::Release);
        if !filled.was_held {
            read += filled.bytes;
            seconds += filled.seconds;
            how = Some(filled.mode);
        }
    }
    let Some(how) = how else { return Ok("on the device already".to_owned()) };
    let speed = if seconds > 0.0 { read as f64 / seconds / 1e9 } else { 0.0 };
    Ok(format!("{how}, {speed:.2} GB/s"))
}

/// What is wanted, one after the other.
fn packed(wanted: &Wanted) -> Vec<(u64, u64, u64)> {
    let all = 0..wanted.opened.generation.size;
    let mut end = 0;
    let ranges = wanted.ranges.as_deref().unwrap_or(std::slice::from_ref(&all));
    ranges
        .iter()
        .map(|range| {
            let at = end;
            end += range.end - range.start;
            (range.start, range.end - range.start, at)
        })
        .collect()
}
