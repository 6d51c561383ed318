// The models as rows. Only the rows in sight are in the page, so that any number of files scrolls as a few would.

import { attr, framed, h, keyed, style, text } from "./dom.js";
import { basename, bytes, count } from "./format.js";
import { background, inWords, marks } from "./residency.js";

const ROW = 52;
const SPARE = 4;
let lists = 0;

/// Returns {root, update({files, chosen, piecesOf, folderOf, empty}), seen()}; `seen()` gives the files whose rows are
/// in sight. `onChoose(path)` is called for a row, `onScroll()` when other rows came into sight.
export function createList({ onChoose, onScroll }) {
  lists += 1;
  const prefix = `wf-list-${lists}-`;
  const sizer = h("div", { class: "wf-sizer", role: "presentation" });
  const empty = h("p", { class: "wf-empty", hidden: true });
  const root = h("div", { class: "wf-list", role: "listbox", tabIndex: 0, "aria-label": "Models" }, sizer, empty);
  let data = { files: [] };
  let active = -1;

  function window() {
    const first = Math.max(0, Math.floor(root.scrollTop / ROW) - SPARE);
    const last = Math.min(data.files.length, Math.ceil((root.scrollTop + root.clientHeight) / ROW) + SPARE);
    return { first, last };
  }

  const draw = framed(() => {
    const { first, last } = window();
    style(sizer, "height", `${data.files.length * ROW}px`);
    attr(empty, "hidden", data.files.length > 0);
    text(empty, data.empty ?? "");
    const rows = data.files.slice(first, last).map((file, offset) => ({ file, index: first + offset }));
    keyed(sizer, rows, ({ file }) => file.path, create, paint);
    attr(root, "aria-activedescendant", active >= first && active < last ? prefix + active : null);
  });

  function create() {
    const row = h(
      "div",
      { class: "wf-row", role: "option" },
      h("div", { class: "wf-row-names" }, h("span", { class: "wf-row-name" }), h("span", { class: "wf-row-folder" })),
      h("div", { class: "wf-row-marks" }),
      h("div", { class: "wf-row-state" }, h("div", { class: "wf-strip" }), h("span", {})),
    );
    row.addEventListener("click", () => choose(row.index));
    return row;
  }

  function paint(row, { file, index }) {
    row.index = index;
    row.id = prefix + index;
    style(row, "top", `${index * ROW}px`);
    const [names, flags, state] = row.children;
    text(names.children[0], basename(file.path));
    text(names.children[1], data.folderOf(file));
    const found = marks(file);
    keyed(
      flags,
      found,
      (mark) => mark.words,
      (mark) => h("span", { class: `wf-flag wf-flag-${mark.name}` }),
      (node, mark) => {
        text(node, mark.words);
        attr(node, "title", mark.title);
      },
    );
    style(state.children[0], "background-image", background(data.piecesOf(file)));
    text(state.children[1], `${bytes(file.size_bytes)} · ${inWords(file)}`);
    attr(row, "aria-selected", String(file.path === data.chosen));
    attr(row, "aria-setsize", data.files.length);
    attr(row, "aria-posinset", index + 1);
    attr(row, "data-active", index === active);
  }

  function choose(index) {
    const file = data.files[index];
    if (!file) return;
    active = index;
    onChoose(file.path);
    draw();
  }

  function move(index) {
    active = Math.max(0, Math.min(data.files.length - 1, index));
    const top = active * ROW;
    if (top < root.scrollTop) root.scrollTop = top;
    if (top + ROW > root.scrollTop + root.clientHeight) root.scrollTop = top + ROW - root.clientHeight;
    draw();
  }

  root.addEventListener("keydown", (event) => {
    const page = Math.max(1, Math.floor(root.clientHeight / ROW) - 1);
    const target = {
      ArrowDown: active + 1,
      ArrowUp: active - 1,
      PageDown: active + page,
      PageUp: active - page,
      Home: 0,
      End: data.files.length - 1,
    }[event.key];
    if (target !== undefined) move(target);
    else if ((event.key === "Enter" || event.key === " ") && active >= 0) choose(active);
    else return;
    event.preventDefault();
  });
  root.addEventListener(
    "scroll",
    () => {
      draw();
      onScroll?.();
    },
    { passive: true },
  );
  new ResizeObserver(draw).observe(root);

  return {
    root,
    update(next) {
      const before = data.files[active]?.path;
      data = next;
      active = before ? data.files.findIndex((file) => file.path === before) : -1;
      attr(root, "aria-label", `Models, ${count(data.files.length, "file")}`);
      draw();
    },
    seen() {
      const { first, last } = window();
      return data.files.slice(first, last);
    },
  };
}
