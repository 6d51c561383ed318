// The map of the models: one tile a file, its area in proportion to its size, coloured by what of it is in RAM. Files
// are grouped by folder; what is too small to be seen is drawn as one tile for its folder.

import { attr, framed, h, keyed, style, text } from "./dom.js";
import { basename, bytes, count, folder } from "./format.js";
import { background, inWords, marks, pieces, sum } from "./residency.js";
import { squarify } from "./squarify.js";

/// Tiles smaller than this many square pixels are joined, and more than this many are not drawn.
const LEAST_AREA = 900;
const MOST_TILES = 160;
/// Folders with less than this share of everything are put together.
const LEAST_GROUP = 0.02;
const OTHERS = "smaller folders";
const HEAD = 18;
/// Marks that the words for the state say already.
const SAID = new Set(["pinned", "held"]);

/// `onChoose(path)` is called for a tile, `onFolder(folder)` for a tile that stands for many files.
///
/// Returns {root, update({files, shape, weight, chosen, piecesOf, folderOf, empty})}: `weight(file)` is what areas are in
/// proportion to, `piecesOf(file)` its coloured pieces, `folderOf(file)` the name that it is grouped under, and `empty`
/// what to say without files. `shape` is another value whenever files or weights are others than before: only then is
/// everything placed anew.
export function createMap({ onChoose, onFolder }) {
  const root = h("div", { class: "wf-map", role: "group", "aria-label": "Map of the models; arrow keys move" });
  const empty = h("p", { class: "wf-empty" });
  let data = null;
  let layout = { key: "", tiles: [], heads: [] };
  let current = null;

  const draw = framed(() => {
    if (!data) return;
    const box = { width: root.clientWidth, height: root.clientHeight };
    if (!box.width || !box.height) return;
    const key = `${box.width} ${box.height} ${data.shape}`;
    if (key !== layout.key) layout = { key, ...arrange(data, box) };
    const files = new Map(data.files.map((file) => [file.path, file]));
    const tiles = layout.tiles.map((tile) => ({
      ...tile,
      files: tile.paths.map((path) => files.get(path)).filter(Boolean),
    }));
    keyed(root, [...layout.heads, ...tiles], (part) => part.key, create, paint);
    empty.remove();
    if (tiles.length === 0) {
      text(empty, data.empty ?? "No models here.");
      root.append(empty);
    }
    focusable();
  });

  function create(part) {
    if (part.head) return h("div", { class: "wf-map-head", "aria-hidden": "true" });
    const tile = h(
      "button",
      { type: "button", class: "wf-tile", tabIndex: -1 },
      h(
        "span",
        { class: "wf-tile-label" },
        h("span", { class: "wf-tile-name" }),
        h("span", { class: "wf-tile-more" }),
        h("span", { class: "wf-tile-more" }),
      ),
    );
    tile.addEventListener("click", () =>
      tile.only ? onChoose(tile.only) : onFolder(tile.group === OTHERS ? "" : tile.group),
    );
    return tile;
  }

  function paint(node, part) {
    for (const side of ["left", "top"]) style(node, side, `${part[side].toFixed(1)}px`);
    for (const side of ["width", "height"]) style(node, side, `${Math.max(0, part[side]).toFixed(1)}px`);
    if (part.head) {
      text(node, part.head);
      return;
    }
    const one = part.files.length === 1 ? part.files[0] : null;
    const whole = one ?? sum(part.files);
    node.only = one?.path ?? null;
    node.group = part.group;
    const name = one ? basename(one.path) : count(part.files.length, "smaller file");
    const within = one ? "" : basename(part.group);
    const more = `${bytes(whole.size_bytes)} · ${inWords(whole)}`;
    const [label] = node.children;
    text(label.children[0], name);
    text(label.children[1], more);
    const found = one ? marks(one) : [];
    const flags = found
      .filter((mark) => !SAID.has(mark.name))
      .map((mark) => mark.words)
      .join(", ");
    const roomy = part.height > 64 && part.width > 90;
    text(label.children[2], within || flags);
    attr(label.children[2], "hidden", !roomy || !(within || flags));
    attr(node, "data-marks", roomy ? null : found.map((mark) => mark.name).join(" ") || null);
    attr(node, "aria-label", [name, part.group, more, flags].filter(Boolean).join(", "));
    attr(node, "title", [name, more, flags].filter(Boolean).join("\n"));
    attr(node, "aria-pressed", one ? String(one.path === data.chosen) : null);
    attr(label, "hidden", part.width < 54 || part.height < 26);
    attr(label.children[1], "hidden", part.height < 46 || part.width < 90);
    style(node, "background-image", background(one ? data.piecesOf(one) : pieces(whole)));
  }

  /// One tile takes part in the order of tabs: the chosen one, else the one that was focused last, else the first.
  function focusable() {
    const tiles = [...root.querySelectorAll(".wf-tile")];
    current =
      tiles.find((tile) => tile === document.activeElement) ??
      tiles.find((tile) => tile.only && tile.only === data.chosen) ??
      (tiles.includes(current) ? current : (tiles[0] ?? null));
    for (const tile of tiles) tile.tabIndex = tile === current ? 0 : -1;
  }

  root.addEventListener("keydown", (event) => {
    const direction = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
    const from = event.target.closest(".wf-tile");
    if (!direction || !from) return;
    event.preventDefault();
    const next = neighbour(from, direction, root.querySelectorAll(".wf-tile"));
    if (next) {
      next.focus();
      focusable();
    }
  });

  new ResizeObserver(draw).observe(root);
  return {
    root,
    update(next) {
      data = next;
      draw();
    },
  };
}

/// Where everything goes: {heads, tiles}, a tile with the paths of the files that it stands for.
function arrange({ files, weight, folderOf }, box) {
  const groups = new Map();
  for (const file of files) {
    if (weight(file) <= 0) continue;
    const name = folderOf(file);
    if (!groups.has(name)) groups.set(name, []);
    groups.get(name).push(file);
  }
  const heavy = (list) => list.reduce((total, file) => total + weight(file), 0);
  const total = heavy(files) || 1;
  const slight = [...groups].filter(([, list]) => heavy(list) < LEAST_GROUP * total);
  if (slight.length > 1) {
    for (const [name] of slight) groups.delete(name);
    groups.set(
      OTHERS,
      slight.flatMap(([, list]) => list),
    );
  }
  const visible = [...files].sort((a, b) => weight(b) - weight(a)).slice(0, MOST_TILES);
  const least = Math.max(
    (LEAST_AREA / (box.width * box.height)) * total,
    visible.length < MOST_TILES ? 0 : weight(visible.at(-1)),
  );
  const heads = [];
  const tiles = [];
  const areas = squarify([...groups.entries()], ([, list]) => heavy(list), { x: 0, y: 0, ...box });
  for (const {
    item: [name, list],
    ...area
  } of areas) {
    const headed = area.height > 60 && area.width > 70 && groups.size > 1;
    if (headed)
      heads.push({
        key: `h:${name}`,
        head: name || "(top)",
        left: area.x,
        top: area.y,
        width: area.width,
        height: HEAD,
      });
    const inner = headed ? { ...area, y: area.y + HEAD, height: area.height - HEAD } : area;
    const large = list.filter((file) => weight(file) >= least);
    const small = list.filter((file) => weight(file) < least);
    const parts = [
      ...large.map((file) => ({ key: `f:${file.path}`, weight: weight(file), paths: [file.path] })),
      ...together(small, name, heavy, least),
    ];
    for (const { item, x, y, width, height } of squarify(parts, (part) => part.weight, inner)) {
      tiles.push({
        key: item.key,
        paths: item.paths,
        group: item.folder ?? name,
        left: x,
        top: y,
        width: width - 2,
        height: height - 2,
      });
    }
  }
  return { heads, tiles };
}

/// Small files as one tile for each folder that can be seen, and one for the rest.
function together(small, name, heavy, least) {
  const folders = Map.groupBy(small, (file) => folder(file.path));
  const seen = [...folders].filter(([, list]) => heavy(list) >= least);
  const rest = [...folders].filter(([, list]) => heavy(list) < least).flatMap(([, list]) => list);
  const part = (key, list, under) => ({
    key,
    weight: heavy(list),
    paths: list.map((file) => file.path),
    folder: under,
  });
  return [
    ...seen.map(([path, list]) => part(`s:${path}`, list, seen.length > 1 ? path : name)),
    ...(rest.length > 0 ? [part(`s:${name}`, rest, name)] : []),
  ];
}

/// The nearest tile in a direction: near along it, and not far beside it.
function neighbour(from, [dx, dy], tiles) {
  const middle = (node) => ({ x: node.offsetLeft + node.offsetWidth / 2, y: node.offsetTop + node.offsetHeight / 2 });
  const start = middle(from);
  let best = null;
  for (const tile of tiles) {
    const { x, y } = middle(tile);
    const along = (x - start.x) * dx + (y - start.y) * dy;
    const beside = Math.abs((x - start.x) * dy) + Math.abs((y - start.y) * dx);
    if (tile === from || along <= 1) continue;
    const distance = along + 2 * beside;
    if (!best || distance < best.distance) best = { tile, distance };
  }
  return best?.tile ?? null;
}
