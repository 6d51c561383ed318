// What is known of the model files and their tensors: asked for in pages, kept up to date in small pieces.

import { isMixed, pieces, tensorPieces } from "./residency.js";

/// Files of one answer, and files at all: a library of more is shown in part, the largest first.
const PAGE = 2000;
const MOST_FILES = 40_000;
/// Files that are asked for one by one after events; for more, everything resident is asked for.
const FEW = 8;
/// Questions for tensors at a time, and how long an answer is good enough while a file changes, in milliseconds.
const AT_A_TIME = 3;
const TENSORS_AGE = 1000;

/// `changed()` is called when files or pieces are others than before.
export function createLibrary({ api, changed }) {
  let files = new Map();
  let totals = null;
  const touched = new Set();
  const tensors = new Map();
  const wanted = new Map();
  let asking = 0;
  /// Goes up when files or sizes are others than before, and when anything is.
  let shape = 0;
  let version = 0;

  function set(file) {
    if (files.get(file.path)?.size_bytes !== file.size_bytes) shape += 1;
    files.set(file.path, file);
  }

  function notify() {
    version += 1;
    changed();
  }

  /// Everything, page by page. What is new appears as it comes, what is gone goes at the end.
  async function loadAll() {
    const found = new Map();
    let cursor;
    do {
      const page = await api.get("/v1/files", { sort: "size", limit: PAGE, cursor });
      totals = page.totals;
      for (const file of page.files) found.set(file.path, file);
      for (const file of page.files) set(file);
      cursor = page.next;
      // The first page has the largest, which are most of what can be seen.
      if (found.size === page.files.length) notify();
    } while (cursor && found.size < MOST_FILES);
    if (files.size !== found.size) shape += 1;
    files = found;
    notify();
  }

  /// What is resident now. What was and is not in the answer is not any more.
  async function loadResident() {
    const found = new Map();
    let cursor;
    do {
      const page = await api.get("/v1/files", { resident: true, limit: PAGE, cursor });
      for (const file of page.files) found.set(file.path, file);
      cursor = page.next;
    } while (cursor && found.size < MOST_FILES);
    for (const file of files.values()) {
      if ((file.resident_bytes > 0 || file.filling_bytes > 0) && !found.has(file.path)) touched.add(file.path);
    }
    for (const file of found.values()) set(file);
    await loadTouched();
    notify();
  }

  /// Those that events have named.
  async function loadTouched() {
    const paths = [...touched];
    touched.clear();
    if (paths.length > FEW) {
      // Gone from RAM all at once, as by a flush: what they are otherwise comes with the next look at everything.
      const found = await api.get("/v1/files", { resident: true, limit: PAGE });
      const there = new Map(found.files.map((file) => [file.path, file]));
      for (const path of paths) {
        const file = files.get(path);
        const now = there.get(path) ?? (file && found.next === null ? absent(file) : null);
        if (now) set(now);
      }
    } else {
      await Promise.all(paths.map(loadOne));
    }
    if (paths.length > 0) notify();
  }

  async function loadOne(path) {
    try {
      const page = await api.get("/v1/files", { path, limit: 1 });
      const file = page.files.find((one) => one.path === path);
      if (file) set(file);
    } catch (error) {
      if (error.status !== 404) throw error;
      if (files.delete(path)) shape += 1;
    }
  }

  /// Asks for the tensors of those files whose tensors say more than the files do.
  function want(some) {
    wanted.clear();
    for (const file of some) if (isMixed(file)) wanted.set(file.path, file);
    ask();
  }

  function ask() {
    for (const [path, file] of wanted) {
      if (asking >= AT_A_TIME) return;
      wanted.delete(path);
      if (isFresh(file)) continue;
      asking += 1;
      loadTensors(path)
        .catch(() => {})
        .finally(() => {
          asking -= 1;
          ask();
        });
    }
  }

  function isFresh(file) {
    const known = tensors.get(file.path);
    return known && (known.of === stamp(file) || performance.now() - known.since < TENSORS_AGE);
  }

  async function loadTensors(path) {
    const of = stamp(files.get(path));
    const answer = await api.get("/v1/tensors", { path });
    tensors.set(path, { of, since: performance.now(), answer, pieces: tensorPieces(answer.tensors) });
    notify();
    return answer;
  }

  return {
    loadAll,
    loadResident,
    loadTouched,
    loadTensors,
    want,
    touch: (path) => touched.add(path),
    files: () => [...files.values()],
    file: (path) => files.get(path) ?? null,
    totals: () => totals,
    shape: () => shape,
    version: () => version,
    tensors: (path) => tensors.get(path)?.answer ?? null,
    tensorsAreOld: (file) => !isFresh(file),
    /// The coloured pieces of a file: by its tensors where they are known and say more.
    piecesOf(file) {
      const known = isMixed(file) && file.filling_bytes === 0 ? tensors.get(file.path)?.pieces : null;
      return known?.length > 0 ? known : pieces(file);
    },
  };
}

/// By what the answer for tensors would be another.
function stamp(file) {
  return file ? `${file.resident_bytes}/${file.pinned_bytes}/${file.size_bytes}` : "";
}

function absent(file) {
  return { ...file, resident_bytes: 0, filling_bytes: 0, state: "absent", resident_seconds: null };
}
