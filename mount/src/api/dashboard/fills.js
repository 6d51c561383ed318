// What is being read into RAM now, with its progress.

import { attr, h, keyed, style, text } from "./dom.js";
import { basename, bytes, duration, rate } from "./format.js";

const CLASSES = {
  demand: "a program waits for it",
  open_wait: "an open waits for it",
  prefetch: "read ahead",
};
const MOST = 6;

/// Returns {root, update(fills)} for the `fills` of a status. With `onStop`, those that can be stopped have a button:
/// a fill with a `job`.
export function createFills({ onStop = null } = {}) {
  const list = h("ul", { class: "wf-fills" });
  const empty = h("p", { class: "wf-empty" });
  const more = h("p", { class: "wf-muted" });
  const root = h("div", { class: "wf-fills-box" }, list, empty, more);

  function create(fill) {
    const stop = onStop
      ? h("button", { type: "button", class: "wf-button wf-small", onclick: () => onStop(stop.job) }, "Stop")
      : null;
    const node = h(
      "li",
      {},
      h("div", { class: "wf-fill-line" }, h("span", { class: "wf-row-name" }), h("span", { class: "wf-muted" }), stop),
      h(
        "div",
        { class: "wf-progress", role: "progressbar", "aria-valuemin": "0", "aria-valuemax": "100" },
        h("div", {}),
      ),
      h("div", { class: "wf-fill-line wf-muted" }, h("span", {}), h("span", {})),
    );
    attr(node.children[1], "aria-label", fill.path);
    node.stop = stop;
    return node;
  }

  function paint(node, fill) {
    const [head, bar, foot] = node.children;
    const done = fill.bytes_total > 0 ? Math.min(1, fill.bytes_done / fill.bytes_total) : 0;
    text(head.children[0], basename(fill.path));
    attr(head.children[0], "title", fill.path);
    text(head.children[1], CLASSES[fill.class] ?? fill.class);
    if (node.stop) {
      node.stop.job = fill.job;
      attr(node.stop, "hidden", !fill.job);
    }
    style(bar.firstChild, "width", `${(done * 100).toFixed(1)}%`);
    attr(bar, "aria-valuenow", Math.round(done * 100));
    text(foot.children[0], `${bytes(fill.bytes_done)} of ${bytes(fill.bytes_total)}`);
    text(foot.children[1], pace(fill));
  }

  function update(fills) {
    keyed(list, fills.slice(0, MOST), (fill) => `${fill.job ?? ""}${fill.path}`, create, paint);
    attr(empty, "hidden", fills.length > 0);
    text(empty, "Nothing is being read.");
    attr(more, "hidden", fills.length <= MOST);
    text(more, `and ${fills.length - MOST} more`);
  }

  return { root, update };
}

/// How fast it goes, and how long it will take.
export function pace(fill) {
  return fill.bytes_per_second > 0 ? `${rate(fill.bytes_per_second)}, ${left(fill)}` : "";
}

function left(fill) {
  const seconds = (fill.bytes_total - fill.bytes_done) / fill.bytes_per_second;
  return seconds < 1 ? "nearly done" : `${duration(seconds)} left`;
}
