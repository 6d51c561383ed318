// The section with the models: the map or the list, what is looked for, and the chosen one.

import { attr, h, text } from "./dom.js";
import { bytes, count, folder } from "./format.js";
import { createList } from "./list.js";
import { createMap } from "./map.js";
import { STATES } from "./residency.js";

const SHOWN = {
  all: { words: "All", test: () => true },
  ram: { words: "In RAM", test: (file) => file.resident_bytes > 0 || file.filling_bytes > 0 },
  pinned: { words: "Pinned", test: (file) => file.pinned_bytes > 0 },
  use: { words: "In use", test: (file) => file.in_use || file.in_vram?.length > 0 || file.client_held_bytes > 0 },
};
const SORTS = {
  size: { words: "Largest first", order: (a, b) => b.size_bytes - a.size_bytes },
  resident: { words: "Most in RAM first", order: (a, b) => b.resident_bytes - a.resident_bytes },
  used: { words: "Last used first", order: (a, b) => (a.unused_seconds ?? Infinity) - (b.unused_seconds ?? Infinity) },
  name: { words: "By name", order: (a, b) => (a.path < b.path ? -1 : 1) },
};

/// Files whose tensors are asked for to draw the map: those with the largest tiles.
const MOST_DETAILED = 160;

/// `library` has the files; `onChoose(path)` is called when one is chosen.
///
/// Returns {root, update({mounts, chosen})}.
export function createModels({ library, onChoose }) {
  let mounts = [];
  let chosen = null;
  let view = "map";
  let shown = "all";
  let sort = "size";
  let wanted = "";
  let found = {};

  const map = createMap({ onChoose, onFolder: openFolder });
  const list = createList({ onChoose, onScroll: () => library.want(list.seen()) });
  const search = h("input", {
    type: "search",
    id: "search",
    placeholder: "Search…",
    "aria-label": "Search for models",
    autocomplete: "off",
    spellcheck: false,
  });
  const order = h(
    "select",
    { class: "wf-select", "aria-label": "Order" },
    Object.entries(SORTS).map(([value, { words }]) => h("option", { value }, words)),
  );
  const summary = h("p", { class: "wf-muted models-summary", "aria-live": "polite" }, "…");
  const views = choice(
    "View",
    { map: "Map", list: "List" },
    () => view,
    (value) => (view = value),
  );
  const filters = choice(
    "Show",
    Object.fromEntries(Object.entries(SHOWN).map(([key, { words }]) => [key, words])),
    () => shown,
    (value) => (shown = value),
  );
  const legend = h(
    "ul",
    { class: "wf-key", "aria-label": "Colours" },
    STATES.map(({ name, words }) => h("li", {}, h("span", { class: `wf-swatch wf-${name}` }), words)),
  );
  const root = h(
    "div",
    { class: "models" },
    h("div", { class: "toolbar" }, views.root, filters.root, search, order),
    summary,
    h("div", { class: "models-view" }, map.root, list.root),
    legend,
  );

  function choice(label, options, get, set) {
    const buttons = Object.entries(options).map(([value, words]) =>
      h(
        "button",
        {
          type: "button",
          "data-value": value,
          onclick: () => {
            set(value);
            draw();
          },
        },
        words,
      ),
    );
    return {
      root: h("div", { class: "choice", role: "group", "aria-label": label }, buttons),
      draw: () => buttons.forEach((button) => attr(button, "aria-pressed", String(button.dataset.value === get()))),
    };
  }

  function openFolder(name) {
    view = "list";
    search.value = name ? `${name}/` : "";
    wanted = search.value.toLowerCase();
    draw();
    list.root.focus();
  }

  search.addEventListener("input", () => {
    wanted = search.value.trim().toLowerCase();
    draw();
  });
  order.addEventListener("change", () => {
    sort = order.value;
    draw();
  });

  /// Where a file lies within its mount; with several mounts, with the mount's name before it.
  function place(path) {
    const mount = mounts
      .filter(({ mountpoint }) => path.startsWith(`${mountpoint}/`))
      .sort((a, b) => b.mountpoint.length - a.mountpoint.length)[0];
    const inner = folder(path, mount?.mountpoint ?? "");
    return mounts.length > 1 && mount ? [mount.mountpoint, inner].filter(Boolean).join("/") : inner;
  }

  function group(path) {
    const mount =
      mounts.length > 1 ? mounts.find(({ mountpoint }) => path.startsWith(`${mountpoint}/`))?.mountpoint : null;
    const inner = place(path)
      .slice(mount ? mount.length + 1 : 0)
      .split("/")[0];
    return mount ? [mount, inner].filter(Boolean).join("/") : inner;
  }

  /// What is looked for, in order; found again only when something is different.
  function matching() {
    const key = [library.version(), shown, sort, wanted, mounts.length].join(" ");
    if (key !== found.key) {
      const files = library
        .files()
        .filter((file) => SHOWN[shown].test(file) && (!wanted || searched(file).includes(wanted)));
      const sum = (name) => files.reduce((total, file) => total + file[name], 0);
      found = { key, files: files.sort(SORTS[sort].order), size: sum("size_bytes"), resident: sum("resident_bytes") };
    }
    return found;
  }

  function searched(file) {
    return `${place(file.path)}/${file.path}`.toLowerCase();
  }

  function draw() {
    const { files, size, resident } = matching();
    const known = library.files().length;
    const empty = known === 0 ? "No model files of 1 MiB or more are in the mount." : "Nothing matches.";
    attr(map.root, "hidden", view !== "map");
    attr(list.root, "hidden", view !== "list");
    attr(order, "hidden", view !== "list");
    views.draw();
    filters.draw();
    const common = { files, chosen, piecesOf: library.piecesOf, empty };
    if (view === "map") {
      const byRam = shown === "ram";
      map.update({
        ...common,
        shape: [byRam ? library.version() : library.shape(), shown, wanted, files.length, mounts.length].join(" "),
        weight: byRam ? (file) => file.resident_bytes + file.filling_bytes : (file) => file.size_bytes,
        folderOf: (file) => group(file.path),
      });
      library.want(files.slice(0, MOST_DETAILED));
    } else {
      list.update({ ...common, folderOf: (file) => place(file.path) });
      library.want(list.seen());
    }
    const more = (library.totals()?.files ?? 0) - known;
    text(
      summary,
      `${count(files.length, "model")}, ${bytes(size)}; ${bytes(resident)} in RAM` +
        `${more > 0 ? `. ${count(more, "smaller one")} not shown` : ""}`,
    );
  }

  return {
    root,
    update(next) {
      ({ mounts, chosen } = next);
      draw();
    },
  };
}
