// What the history says, as points of charts. Pure functions.

/// How long a share is taken over, so that single reads do not make it jump.
const SHARE_SECONDS = 10;
/// How long a rate is taken over for the figure beside the chart.
const NOW_SECONDS = 3;

/// The length of time to show: no longer than there is something, in steps.
export function span(samples) {
  const length = samples.length > 1 ? samples.at(-1).at - samples[0].at : 0;
  return [60, 300].find((step) => length <= step) ?? 600;
}

function lengths(samples, interval) {
  return samples.map((sample, index) => {
    const before = samples[index - 1]?.at;
    return before === undefined ? interval : Math.max(0.001, Math.min(sample.at - before, 10 * interval));
  });
}

/// Bytes per second: [answered out of RAM, answered with what had to be read, read from the sources at all, or null].
export function throughput({ samples, interval_seconds: interval }) {
  const each = lengths(samples, interval);
  return samples.map((sample, index) => ({
    at: sample.at,
    values: [
      sample.ram_bytes / each[index],
      sample.source_bytes / each[index],
      sample.source_read_bytes > 0 ? sample.source_read_bytes / each[index] : null,
    ],
  }));
}

/// The same, for now.
export function throughputNow({ samples, interval_seconds: interval }) {
  const last = Math.max(1, Math.round(NOW_SECONDS / interval));
  const points = throughput({ samples, interval_seconds: interval }).slice(-last);
  return [0, 1, 2].map(
    (index) => points.reduce((sum, { values }) => sum + (values[index] ?? 0), 0) / Math.max(1, points.length),
  );
}

/// What came out of RAM of what was asked for, as a share. A file that was opened in passthrough counts whole: its reads
/// are not seen by the daemon.
function hits(samples) {
  let ram = 0;
  let all = 0;
  for (const sample of samples) {
    const passed = sample.passthrough_bytes ?? 0;
    ram += sample.ram_bytes + passed;
    all += sample.ram_bytes + sample.source_bytes + passed;
  }
  return all > 0 ? ram / all : null;
}

/// The share over time, null where nothing was asked for.
export function hitShare({ samples }) {
  let first = 0;
  return samples.map(({ at }, index) => {
    while (samples[first].at <= at - SHARE_SECONDS) first += 1;
    return { at, values: [hits(samples.slice(first, index + 1))] };
  });
}

/// The share over everything shown, and how much of it went past the daemon.
export function hitShareNow({ samples }) {
  return {
    share: hits(samples),
    passthrough_opens: samples.reduce((sum, sample) => sum + (sample.passthrough_opens ?? 0), 0),
  };
}

/// What the arena holds, and may: [pinned, kept besides, held by programs, budget].
export function holding({ samples }) {
  return samples.map((sample) => {
    const pinned = Math.min(sample.pinned_bytes ?? 0, sample.resident_bytes);
    return {
      at: sample.at,
      values: [pinned, sample.resident_bytes - pinned, sample.client_held_bytes ?? 0, sample.budget_bytes],
    };
  });
}

/// Percent of the time in which something waited for memory.
export function pressure({ samples }) {
  return samples.map((sample) => ({ at: sample.at, values: [sample.psi_some_avg10 ?? null] }));
}
