//! Metrics in the text format of Prometheus. Every name is declared here, once, with its unit and what it counts.

use std::fmt::Write;
use std::sync::atomic::Ordering;

use weightfs::control::Status;

use super::Api;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricKind {
    /// Grows from the start of the daemon.
    Counter,
    Gauge,
}

/// One name that leaves the process.
#[derive(Clone, Copy, Debug)]
pub struct Metric {
    /// Ends with its unit, a counter then with `_total`.
    pub name: &'static str,
    pub kind: MetricKind,
    pub help: &'static str,
    values: fn(&Sample, &mut Values<'_>),
}

/// What the values are taken from.
struct Sample {
    status: Status,
    listeners: usize,
    events: u64,
    jobs: usize,
    connections: usize,
    turned_away: u64,
    requests: u64,
    refused: u64,
}

/// Writes the values of one metric.
struct Values<'a> {
    name: &'static str,
    text: &'a mut String,
}

impl Values<'_> {
    fn one(&mut self, value: impl std::fmt::Display) {
        // Writing to a String cannot fail.
        let _ = writeln!(self.text, "{} {value}", self.name);
    }

    /// `label` is one of a few words that stand in this file.
    fn labelled(&mut self, label: &str, of: &str, value: impl std::fmt::Display) {
        let _ = writeln!(self.text, "{}{{{label}=\"{}\"}} {value}", self.name, escaped(of));
    }
}

const fn counter(name: &'static str, help: &'static str, values: fn(&Sample, &mut Values<'_>)) -> Metric {
    Metric { name, kind: MetricKind::Counter, help, values }
}

const fn gauge(name: &'static str, help: &'static str, values: fn(&Sample, &mut Values<'_>)) -> Metric {
    Metric { name, kind: MetricKind::Gauge, help, values }
}

/// Every metric.
pub const METRICS: [Metric; 32] = [
    gauge("weightfs_build_info", "Always 1; the label is the version of the daemon.", |sample, values| {
        values.labelled("version", &sample.status.version, 1);
    }),
    gauge("weightfs_uptime_seconds", "Since the process that serves the mounts began.", |sample, values| {
        values.one(sample.status.uptime_seconds);
    }),
    counter("weightfs_worker_restarts_total", "How often the process that serves was replaced.", |sample, values| {
        values.one(sample.status.worker.restarts);
    }),
    gauge("weightfs_mounts", "Mounts that are served.", |sample, values| values.one(sample.status.mounts.len())),
    gauge("weightfs_passthrough_mounts", "Mounts whose resident files the kernel reads alone.", |sample, values| {
        values.one(sample.status.mounts.iter().filter(|mount| mount.passthrough).count());
    }),
    gauge("weightfs_budget_bytes", "The most that the arena may hold now.", |sample, values| {
        values.one(sample.status.ram.budget_bytes);
    }),
    gauge("weightfs_limit_bytes", "The most that the arena may ever hold (--ram).", |sample, values| {
        values.one(sample.status.ram.limit_bytes);
    }),
    gauge("weightfs_high_watermark_bytes", "Where room begins to be made.", |sample, values| {
        values.one(sample.status.ram.high_watermark_bytes);
    }),
    gauge("weightfs_low_watermark_bytes", "Where room has been made.", |sample, values| {
        values.one(sample.status.ram.low_watermark_bytes);
    }),
    gauge("weightfs_resident_bytes", "What the arena holds of current files.", |sample, values| {
        values.one(sample.status.ram.resident_bytes);
    }),
    gauge("weightfs_pinned_bytes", "What is promised to stay.", |sample, values| {
        values.one(sample.status.ram.pinned_bytes);
    }),
    gauge("weightfs_client_held_bytes", "Given up, but kept alive by programs.", |sample, values| {
        values.one(sample.status.ram.client_held_bytes);
    }),
    gauge("weightfs_filling_bytes", "On their way into the arena.", |sample, values| {
        let left = |fill: &weightfs::control::FillStatus| fill.bytes_total - fill.bytes_done;
        values.one(sample.status.fills.iter().map(left).sum::<u64>());
    }),
    gauge("weightfs_filling_files", "Files that are being read into the arena.", |sample, values| {
        values.one(sample.status.fills.len());
    }),
    counter("weightfs_served_bytes_total", "Answered by the daemon; passthrough is not seen.", |sample, values| {
        values.labelled("from", "ram", sample.status.io.served_from_ram_bytes);
        values.labelled("from", "source", sample.status.io.served_from_source_bytes);
    }),
    counter("weightfs_source_read_bytes_total", "Read from the sources, for any reason.", |sample, values| {
        values.one(sample.status.io.source_read_bytes);
    }),
    counter("weightfs_evicted_bytes_total", "Taken out of the arena to make room.", |sample, values| {
        values.one(sample.status.io.evicted_bytes);
    }),
    counter("weightfs_opens_total", "Files opened for reading, by how they are served.", |sample, values| {
        values.labelled("mode", "passthrough", sample.status.io.passthrough_opens);
        values.labelled("mode", "stream", sample.status.io.stream_opens);
    }),
    gauge("weightfs_memory_available_bytes", "What the machine could give without swapping.", |sample, values| {
        values.one(sample.status.pressure.mem_available_bytes);
    }),
    gauge("weightfs_reserve_bytes", "To be left free for other programs (--reserve).", |sample, values| {
        values.one(sample.status.pressure.reserve_bytes);
    }),
    gauge("weightfs_cgroup_limit_bytes", "The limit of the control group, if it has one.", |sample, values| {
        if let Some(limit) = sample.status.pressure.cgroup_limit_bytes {
            values.one(limit);
        }
    }),
    gauge("weightfs_memory_stall_ratio", "Part of ten seconds in which some process waited for memory.", |sample, values| {
        if let Some(percent) = sample.status.pressure.psi_some_avg10 {
            values.one(percent / 100.0);
        }
    }),
    gauge("weightfs_hinted_files", "Files that programs have said something of.", |sample, values| {
        values.labelled("hint", "in_use", sample.status.hints.in_use);
        values.labelled("hint", "queued", sample.status.hints.queued);
        values.labelled("hint", "in_vram", sample.status.hints.in_vram);
    }),
    gauge("weightfs_prefetch_jobs", "Prefetches that run.", |sample, values| values.one(sample.jobs)),
    gauge("weightfs_trace_recording", "1 while a trace is recorded.", |sample, values| {
        values.one(u8::from(sample.status.trace.recording));
    }),
    gauge("weightfs_notes", "Things that are missing on this machine; see 'weightfs status'.", |sample, values| {
        values.one(sample.status.notes.len());
    }),
    gauge("weightfs_control_connections", "Connections to the control interface.", |sample, values| {
        values.one(sample.connections);
    }),
    counter("weightfs_control_turned_away_total", "Connections that found no room.", |sample, values| {
        values.one(sample.turned_away);
    }),
    counter("weightfs_control_requests_total", "Requests that were answered.", |sample, values| {
        values.one(sample.requests);
    }),
    counter("weightfs_control_problems_total", "Requests that were answered with a problem.", |sample, values| {
        values.one(sample.refused);
    }),
    gauge("weightfs_event_listeners", "Who listens to events.", |sample, values| values.one(sample.listeners)),
    counter("weightfs_events_total", "Events that somebody listened to.", |sample, values| values.one(sample.events)),
];

/// How things are now. May block.
pub(super) fn text(api: &Api) -> String {
    let (control, inner) = (api.control(), &api.0);
    let (connections, turned_away) = inner.admission.counts();
    let sample = Sample {
        status: control.status(),
        listeners: control.hub().listeners(),
        events: control.hub().told(),
        jobs: control.jobs_running(),
        connections,
        turned_away,
        requests: inner.counters.requests.load(Ordering::Relaxed),
        refused: inner.counters.refused.load(Ordering::Relaxed),
    };
    let mut text = String::new();
    for metric in METRICS {
        write(&metric, &sample, &mut text);
    }
    text
}

fn write(metric: &Metric, sample: &Sample, text: &mut String) {
    let kind = match metric.kind {
        MetricKind::Counter => "counter",
        MetricKind::Gauge => "gauge",
    };
    let Metric { name, help, values, .. } = metric;
    let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}");
    values(sample, &mut Values { name, text });
}

fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// What a name may end with, before `_total`: units, or what is counted.
    const ENDS: [&str; 17] = [
        "bytes", "seconds", "ratio", "info", "mounts", "files", "jobs", "notes", "connections", "listeners", "events",
        "opens", "restarts", "away", "requests", "problems", "recording",
    ];

    #[test]
    fn names_are_declared_once_with_a_unit_and_a_help() {
        let names: BTreeSet<_> = METRICS.iter().map(|metric| metric.name).collect();
        assert_eq!(names.len(), METRICS.len());
        for Metric { name, kind, help, .. } in METRICS {
            assert_eq!(name.ends_with("_total"), kind == MetricKind::Counter, "{name}");
            let plain = name.strip_suffix("_total").unwrap_or(name);
            assert!(name.starts_with("weightfs_") && ENDS.iter().any(|end| plain.ends_with(end)), "{name}");
            assert!(help.ends_with('.') && help.len() > 10 && !help.contains('\n'), "{name}");
        }
    }

    #[test]
    fn values_stand_under_their_names() {
        let mut status = Status { version: "a\"b".into(), ..Status::default() };
        status.io.served_from_source_bytes = 5;
        let sample = Sample {
            status,
            listeners: 0,
            events: 0,
            jobs: 0,
            connections: 0,
            turned_away: 0,
            requests: 0,
            refused: 0,
        };
        let mut text = String::new();
        METRICS.iter().for_each(|metric| write(metric, &sample, &mut text));
        assert!(text.contains("\nweightfs_served_bytes_total{from=\"source\"} 5\n"), "{text}");
        assert!(text.contains("weightfs_build_info{version=\"a\\\"b\"} 1\n"), "{text}");
        assert!(text.contains("# TYPE weightfs_budget_bytes gauge\nweightfs_budget_bytes 0\n"), "{text}");
        assert!(!text.contains("\nweightfs_cgroup_limit_bytes "), "{text}");
    }
}
