//! The status for people: what is mounted, how full the arena is, where the bytes came from.

use std::fmt::Write;

use weightfs::control::{IoStatus, RamStatus, Status};
use weightfs::gpu::report::GpuReport;
use weightfs::units::ByteSize;

use super::bar::{HELD, RESIDENT, bar, cells};
use super::figures::{percent, plain, shown};
use super::paint::Paint;

/// Characters of the bar.
const BAR: u64 = 40;

/// Ended by a newline. Without `colour`, plain text.
pub fn status(status: &Status, paint: Paint) -> String {
    let mut text = String::new();
    for mount in &status.mounts {
        let from = if mount.source == mount.mountpoint {
            "over itself".into()
        } else {
            format!("from {}", shown(&mount.source))
        };
        let way = if mount.passthrough { paint.good("passthrough") } else { paint.dim("no passthrough") };
        line(&mut text, &format!("{}  {from}  {way}", paint.bold(&shown(&mount.mountpoint))));
    }
    if status.mounts.is_empty() {
        line(&mut text, &paint.dim("nothing is mounted any more"));
    }
    line(&mut text, "");
    ram(&mut text, &status.ram, paint);
    io(&mut text, &status.io);
    let worker = &status.worker;
    let restarts = match worker.restarts {
        0 => String::new(),
        1 => ", replaced once".into(),
        times => format!(", replaced {times} times"),
    };
    field(&mut text, "Daemon", &format!("version {}, process {}{restarts}", plain(&status.version), worker.pid));
    if let Some(gpu) = &status.gpu {
        gpus(&mut text, gpu);
    }
    for note in &status.notes {
        field(&mut text, "Note", &plain(note));
    }
    text
}

fn gpus(text: &mut String, report: &GpuReport) {
    for (number, device) in report.driver.devices.iter().enumerate() {
        let reads = device.direct_uploads.then(|| "reads the RAM of weightfs by itself".to_owned());
        let uploads =
            reads.into_iter().chain(device.reason.as_ref().map(|why| plain(why))).collect::<Vec<_>>().join(", ");
        let name = plain(&device.name);
        field(text, "GPU", &format!("cuda:{number} {name}, {}; {uploads}", ByteSize(device.memory_bytes)));
    }
    if let Some(reason) = &report.driver.reason {
        field(text, "GPU", &plain(reason));
    }
    let reason = report.cufile.reason.as_ref().map(|reason| plain(reason));
    let words = [report.cufile.mode.map(|mode| mode.to_string()), reason];
    field(text, "cuFile", &words.into_iter().flatten().collect::<Vec<_>>().join(": "));
}

fn ram(text: &mut String, ram: &RamStatus, paint: Paint) {
    let bar = ram_bar(ram, BAR);
    let used = ram.resident_bytes.saturating_add(ram.client_held_bytes);
    let bar = if used > ram.high_watermark_bytes { paint.warn(&bar) } else { paint.good(&bar) };
    field(text, "RAM", &format!("{bar}  {}", ram_figures(ram)));
    let marks = format!(
        "room is made from {} down to {}",
        ByteSize(ram.high_watermark_bytes),
        ByteSize(ram.low_watermark_bytes)
    );
    field(text, "", &marks);
    if ram.budget_bytes < ram.limit_bytes {
        let why = plain(&ram.budget_reason);
        field(text, "", &format!("less than the {} of --ram: {why}", ByteSize(ram.limit_bytes)));
    }
    for (bytes, what) in
        [(ram.pinned_bytes, "pinned"), (ram.client_held_bytes, "evicted, but still held by programs that have it open")]
    {
        if bytes > 0 {
            field(text, "", &format!("{} {what}", ByteSize(bytes)));
        }
    }
}

/// `15.0 GiB of 24.0 GiB (62 %)`: how much of the budget is taken.
pub fn ram_figures(ram: &RamStatus) -> String {
    let used = ram.resident_bytes.saturating_add(ram.client_held_bytes);
    match percent(used, ram.budget_bytes) {
        Some(percent) => format!("{} of {} ({percent} %)", ByteSize(used), ByteSize(ram.budget_bytes)),
        None => format!("{} of no budget", ByteSize(used)),
    }
}

/// What is resident, held by clients and free, in `width` cells; `│` stands at the watermarks.
pub fn ram_bar(ram: &RamStatus, width: u64) -> String {
    let budget = ram.budget_bytes;
    let mark = |bytes: u64| cells(bytes, budget, width).min(width - 1);
    let marks = [ram.low_watermark_bytes, ram.high_watermark_bytes].map(mark);
    bar(&[(ram.resident_bytes, RESIDENT), (ram.client_held_bytes, HELD)], budget, width)
        .chars()
        .zip(0..)
        .map(|(cell, at)| if budget > 0 && marks.contains(&at) { '│' } else { cell })
        .collect()
}

fn io(text: &mut String, io: &IoStatus) {
    let served = io.served_from_ram_bytes.saturating_add(io.served_from_source_bytes);
    let share = percent(io.served_from_ram_bytes, served).map(|percent| format!(" ({percent} %)")).unwrap_or_default();
    field(
        text,
        "Served",
        &format!(
            "{} from RAM{share}, {} from the source",
            ByteSize(io.served_from_ram_bytes),
            ByteSize(io.served_from_source_bytes)
        ),
    );
    field(text, "Opened", &format!("{} by passthrough, {} streamed", io.passthrough_opens, io.stream_opens));
    field(text, "Read", &format!("{} from the source by {}", ByteSize(io.source_read_bytes), plain(&io.engine)));
    field(text, "Evicted", &ByteSize(io.evicted_bytes).to_string());
}

fn field(text: &mut String, name: &str, value: &str) {
    line(text, &format!("{name:<8}{value}"));
}

fn line(text: &mut String, content: &str) {
    // Writing to a String cannot fail.
    let _ = writeln!(text, "{}", content.trim_end());
}

#[cfg(test)]
mod tests {
    use super::*;
    use weightfs::control::{MountStatus, WorkerStatus};

    const GIB: u64 = 1 << 30;

    fn example() -> Status {
        Status {
            mounts: vec![
                MountStatus { mountpoint: "/srv/models".into(), source: "/srv/models".into(), passthrough: true },
                MountStatus { mountpoint: "/mnt/loras".into(), source: "/data/loras".into(), passthrough: false },
            ],
            ram: RamStatus {
                budget_bytes: 24 * GIB,
                limit_bytes: 32 * GIB,
                budget_reason: "others need it".into(),
                high_watermark_bytes: 24 * GIB / 100 * 95,
                low_watermark_bytes: 24 * GIB / 100 * 90,
                resident_bytes: 12 * GIB,
                pinned_bytes: GIB,
                client_held_bytes: 3 * GIB,
            },
            io: IoStatus {
                engine: "uring".into(),
                source_read_bytes: 33 * GIB,
                served_from_ram_bytes: 120 * GIB,
                served_from_source_bytes: 10 * GIB,
                passthrough_opens: 12,
                stream_opens: 30,
                evicted_bytes: 4 * GIB,
            },
            worker: WorkerStatus { pid: 1234, restarts: 0 },
            version: "0.1.0".into(),
            notes: vec!["no 2 MiB pages: mapped reads are slower".into()],
            ..Status::default()
        }
    }

    #[test]
    fn gpus_are_shown_with_what_they_can_do() {
        let gpu = serde_json::from_value(serde_json::json!({
            "driver": {"devices": [{"name": "H200", "bus_id": "", "memory_bytes": 1u64 << 37, "direct_uploads": true}]},
            "cufile": {"mode": "compatibility", "reason": "the module nvidia-fs is not loaded"},
        }));
        let mut gpu: GpuReport = gpu.unwrap();
        let shown = status(&Status { gpu: Some(gpu.clone()), ..example() }, Paint::PLAIN);
        assert!(shown.contains("cuda:0 H200, 128.0 GiB; reads the RAM of weightfs by itself\n"), "{shown}");
        gpu.driver.devices[0].reason = Some("it registers no more".into());
        let limited = status(&Status { gpu: Some(gpu.clone()), ..example() }, Paint::PLAIN);
        assert!(limited.contains("GiB; reads the RAM of weightfs by itself, it registers no more\n"), "{limited}");
        gpu.driver.devices[0].direct_uploads = false;
        let without = status(&Status { gpu: Some(gpu), ..example() }, Paint::PLAIN);
        assert!(without.contains("128.0 GiB; it registers no more\n"), "{without}");
        assert!(shown.contains("compatibility mode, through RAM: the module nvidia-fs is not loaded"), "{shown}");
    }

    #[test]
    fn a_busy_daemon_at_a_glance() {
        let expected = "\
/srv/models  over itself  passthrough
/mnt/loras  from /data/loras  no passthrough

RAM     ████████████████████▒▒▒▒▒░░░░░░░░░░│░│░░  15.0 GiB of 24.0 GiB (62 %)
        room is made from 22.8 GiB down to 21.6 GiB
        less than the 32.0 GiB of --ram: others need it
        1.0 GiB pinned
        3.0 GiB evicted, but still held by programs that have it open
Served  120.0 GiB from RAM (92 %), 10.0 GiB from the source
Opened  12 by passthrough, 30 streamed
Read    33.0 GiB from the source by uring
Evicted 4.0 GiB
Daemon  version 0.1.0, process 1234
Note    no 2 MiB pages: mapped reads are slower
";
        assert_eq!(status(&example(), Paint::PLAIN), expected);
    }

    #[test]
    fn a_daemon_that_has_done_nothing_yet() {
        let mut fresh = example();
        fresh.mounts.truncate(1);
        fresh.ram = RamStatus {
            budget_bytes: GIB,
            high_watermark_bytes: GIB,
            low_watermark_bytes: GIB,
            ..RamStatus::default()
        };
        fresh.io = IoStatus { engine: "threads".into(), ..IoStatus::default() };
        fresh.worker.restarts = 2;
        fresh.notes.clear();
        let expected = "\
/srv/models  over itself  passthrough

RAM     ░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░│  0 B of 1.0 GiB (0 %)
        room is made from 1.0 GiB down to 1.0 GiB
Served  0 B from RAM, 0 B from the source
Opened  0 by passthrough, 0 streamed
Read    0 B from the source by threads
Evicted 0 B
Daemon  version 0.1.0, process 1234, replaced 2 times
";
        assert_eq!(status(&fresh, Paint::PLAIN), expected);
    }

    #[test]
    fn nothing_that_a_daemon_says_breaks_the_view() {
        let mut odd = example();
        odd.ram = RamStatus { resident_bytes: u64::MAX, client_held_bytes: u64::MAX, ..RamStatus::default() };
        odd.io.served_from_ram_bytes = u64::MAX;
        odd.io.served_from_source_bytes = u64::MAX;
        odd.version = "\x1b[2J\n".into();
        odd.mounts[0].mountpoint = "/a\x07".into();
        odd.notes = vec!["\x1b]0;title\x07".into()];
        let text = status(&odd, Paint::PLAIN);
        assert!(!text.contains('\x1b') && !text.contains('\x07'), "{text}");
        assert!(text.contains("of no budget"), "{text}");
    }

    #[test]
    fn colour_adds_nothing_but_colour() {
        let coloured = status(&example(), Paint { colour: true });
        let mut stripped = coloured.clone();
        for code in ["\x1b[1m", "\x1b[2m", "\x1b[32m", "\x1b[33m", "\x1b[0m"] {
            stripped = stripped.replace(code, "");
        }
        assert_ne!(coloured, stripped);
        assert_eq!(stripped, status(&example(), Paint::PLAIN));
    }
}
