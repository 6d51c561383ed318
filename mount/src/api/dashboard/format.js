// Figures as people read them. Pure functions.

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];

/// Bytes in powers of 1024, with as many digits as help: 0 B, 512 MiB, 1.5 GiB, 24 GiB.
export function bytes(count) {
  if (!Number.isFinite(count)) return "–";
  let value = Math.max(0, count);
  let unit = 0;
  while (value >= 1023.5 && unit < UNITS.length - 1) {
    value /= 1024;
    unit += 1;
  }
  const digits = unit === 0 || value >= 99.95 || Math.abs(value - Math.round(value)) < 0.05 ? 0 : 1;
  return `${value.toFixed(digits)} ${UNITS[unit]}`;
}

/// Bytes per second, in powers of 1000 as drives and links are rated.
export function rate(count) {
  if (!Number.isFinite(count) || count < 0) return "–";
  if (count < 500) return "0 MB/s";
  if (count < 1e6) return `${Math.round(count / 1e3)} kB/s`;
  if (count < 1e9) return `${(count / 1e6).toFixed(count < 1e7 ? 1 : 0)} MB/s`;
  return `${(count / 1e9).toFixed(count < 1e10 ? 1 : 0)} GB/s`;
}

/// A share of one, as a percentage that says 100 % and 0 % only where that is so.
export function percent(share) {
  if (!Number.isFinite(share)) return "–";
  if (share > 0.99 && share < 1) return "99 %";
  if (share > 0 && share < 0.01) return "< 1 %";
  return `${Math.round(share * 100)} %`;
}

/// A length of time, in its largest unit: 8 s, 3 min, 2 h, 5 days.
export function duration(seconds) {
  if (!Number.isFinite(seconds)) return "–";
  if (seconds < 1) return "less than a second";
  if (seconds < 90) return `${Math.round(seconds)} s`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min`;
  if (seconds < 129600) return `${Math.round(seconds / 3600)} h`;
  return `${Math.round(seconds / 86400)} days`;
}

/// The time of day of a Unix time.
export function clock(at) {
  return new Date(at * 1000).toLocaleTimeString([], {
    hour: "2-digit",
    minute: "2-digit",
    second: "2-digit",
    hourCycle: "h23",
  });
}

/// A count with its noun: 1 file, 2,000 files.
export function count(number, one, many = `${one}s`) {
  return `${number.toLocaleString("en")} ${number === 1 ? one : many}`;
}

/// Words of the daemon as a sentence of their own.
export function sentence(words) {
  const begun = words.charAt(0).toUpperCase() + words.slice(1);
  return /[.!?…]$/.test(begun) || begun === "" ? begun : `${begun}.`;
}

/// The last part of a path.
export function basename(path) {
  return path.slice(path.lastIndexOf("/") + 1) || path;
}

/// What comes before the last part of a path, as seen from `root` if it lies beneath it.
export function folder(path, root = "") {
  const whole = path.slice(0, Math.max(0, path.lastIndexOf("/")));
  if (root && whole === root) return "";
  return root && whole.startsWith(`${root}/`) ? whole.slice(root.length + 1) : whole;
}
