// What of a file is in RAM, as coloured pieces. Pure functions of what the daemon reports; no DOM.

/// The states of a piece, from the weakest to the strongest, with the words of the legend. Each has a colour
/// `--wf-NAME`; they differ in lightness, so that they can be told apart without seeing colours.
export const STATES = [
  { name: "absent", words: "not in RAM" },
  { name: "partial", words: "in part, or being read" },
  { name: "resident", words: "in RAM" },
  { name: "pinned", words: "pinned" },
  { name: "held", words: "evicted, held by a program" },
];

/// The most pieces that a strip is drawn with: more could not be seen.
const MOST_PIECES = 96;

/// The pieces of a whole file without its tensors: [{state, share}], shares adding up to one.
export function pieces(file) {
  const size = Math.max(1, file.size_bytes);
  const resident = Math.min(size, file.resident_bytes ?? 0);
  const pinned = Math.min(resident, file.pinned_bytes ?? 0);
  const filling = Math.min(size - resident, file.filling_bytes ?? 0);
  const held = Math.min(size - resident - filling, file.client_held_bytes ?? 0);
  return [
    { state: "pinned", share: pinned / size },
    { state: "resident", share: (resident - pinned) / size },
    { state: "partial", share: filling / size },
    { state: "held", share: held / size },
    { state: "absent", share: (size - resident - filling - held) / size },
  ].filter((piece) => piece.share > 0);
}

/// The state of one tensor or group.
export function stateOf({ size_bytes, resident_bytes, pinned, pinned_bytes }) {
  if (!resident_bytes) return "absent";
  if (resident_bytes < size_bytes) return "partial";
  return pinned || (pinned_bytes > 0 && pinned_bytes >= size_bytes) ? "pinned" : "resident";
}

/// The pieces of a file in the order of its tensors, neighbours of one state joined. With very many, what falls into
/// one piece is summed up.
export function tensorPieces(tensors) {
  const ordered = [...tensors].filter((tensor) => tensor.size_bytes > 0).sort((a, b) => a.offset - b.offset);
  const total = ordered.reduce((sum, tensor) => sum + tensor.size_bytes, 0);
  if (!total) return [];
  const joined = join(ordered.map((tensor) => ({ state: stateOf(tensor), bytes: tensor.size_bytes })));
  const few = joined.length <= MOST_PIECES ? joined : coarse(ordered, total);
  return few.map(({ state, bytes }) => ({ state, share: bytes / total }));
}

function join(parts) {
  const joined = [];
  for (const part of parts) {
    const last = joined.at(-1);
    if (last?.state === part.state) last.bytes += part.bytes;
    else joined.push({ ...part });
  }
  return joined;
}

function coarse(ordered, total) {
  const buckets = Array.from({ length: MOST_PIECES }, () => ({ size_bytes: 0, resident_bytes: 0, pinned_bytes: 0 }));
  let before = 0;
  for (const tensor of ordered) {
    const middle = before + tensor.size_bytes / 2;
    const bucket = buckets[Math.min(MOST_PIECES - 1, Math.floor((middle / total) * MOST_PIECES))];
    bucket.size_bytes += tensor.size_bytes;
    bucket.resident_bytes += tensor.resident_bytes;
    bucket.pinned_bytes += tensor.pinned ? tensor.size_bytes : 0;
    before += tensor.size_bytes;
  }
  const filled = buckets.filter((bucket) => bucket.size_bytes > 0);
  return join(filled.map((bucket) => ({ state: stateOf(bucket), bytes: bucket.size_bytes })));
}

/// Whether the tensors of a file would show more than the file itself: only where some are there and others are not.
export function isMixed(file) {
  const resident = file.resident_bytes ?? 0;
  const pinned = file.pinned_bytes ?? 0;
  return (resident > 0 && resident < file.size_bytes) || (pinned > 0 && pinned < resident);
}

/// The pieces as a background, from left to right: `linear-gradient(…)` over the colours of the theme.
export function background(list, direction = "90deg") {
  if (list.length === 0) return "none";
  let from = 0;
  const stops = list.map(({ state, share }) => {
    const start = from;
    from += share;
    return `var(--wf-${state}) ${(start * 100).toFixed(2)}% ${(Math.min(1, from) * 100).toFixed(2)}%`;
  });
  return `linear-gradient(${direction}, ${stops.join(", ")})`;
}

/// The state of a file in one or two words.
export function inWords(file) {
  if (file.filling_bytes > 0) return "being read";
  if (file.resident_bytes >= file.size_bytes && file.size_bytes > 0) {
    return file.pinned_bytes >= file.resident_bytes ? "in RAM, pinned" : "in RAM";
  }
  if (file.resident_bytes > 0) {
    const share = Math.max(1, Math.floor((file.resident_bytes / file.size_bytes) * 100));
    return `${share} % in RAM${file.pinned_bytes > 0 ? ", pinned in part" : ""}`;
  }
  return file.client_held_bytes > 0 ? "evicted, held by a program" : "not in RAM";
}

/// What else is to be said of a file, as short marks: [{name, words, title}].
export function marks(file) {
  const found = [];
  if (file.pinned_bytes > 0) found.push({ name: "pinned", words: "pinned", title: "Promised not to be evicted" });
  if (file.in_use) found.push({ name: "use", words: "in use", title: "A program has it open or mapped" });
  for (const device of file.in_vram ?? []) {
    found.push({ name: "vram", words: `in VRAM (${device})`, title: `Held whole by ${device}, as a program said` });
  }
  if (file.client_held_bytes > 0) {
    found.push({ name: "held", words: "held", title: "Evicted, but a program still maps its bytes" });
  }
  if (file.priority && file.priority !== "normal") {
    found.push({ name: "priority", words: `${file.priority} priority`, title: "How hard it is kept" });
  }
  return found;
}

/// Many files as one.
export function sum(files) {
  const total = { size_bytes: 0, resident_bytes: 0, pinned_bytes: 0, client_held_bytes: 0, filling_bytes: 0 };
  for (const file of files) for (const name of Object.keys(total)) total[name] += file[name] ?? 0;
  return total;
}
