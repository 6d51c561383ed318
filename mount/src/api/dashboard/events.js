// What happened, latest first: what was read, opened, evicted, and why.

import { attr, h, keyed, text } from "./dom.js";
import { basename, bytes, clock } from "./format.js";

export const KINDS = {
  opened: "Opened",
  filled: "Read in",
  evicted: "Evicted",
  budget: "Budget",
  pinned: "Pinned",
  unpinned: "Unpinned",
  prefetch: "Prefetch",
  worker: "Daemon",
  lost: "Missed",
};
const MOST_KEPT = 400;
const MOST_SHOWN = 120;
/// Alike and this close together are one line.
const TOGETHER_SECONDS = 5;

/// The events that are kept: {add(event), list(kinds)}. An event: {kind, at, path?, bytes?, reason?}.
export function createLog() {
  let events = [];
  let number = 0;
  return {
    add(event) {
      const last = events.find((one) => one.kind === event.kind && one.path === event.path);
      if (last && event.at - last.at < TOGETHER_SECONDS && last.reason === event.reason && event.kind !== "budget") {
        const joined = { ...last, at: event.at, bytes: sum(last.bytes, event.bytes), times: last.times + 1 };
        events = [joined, ...events.filter((one) => one !== last)];
      } else {
        number += 1;
        events = [{ ...event, id: number, times: 1 }, ...events].slice(0, MOST_KEPT);
      }
    },
    /// Those of the given kinds, or of all.
    list: (kinds = null) => (kinds ? events.filter((event) => kinds.has(event.kind)) : events),
  };
}

function sum(one, other) {
  return one === undefined && other === undefined ? undefined : (one ?? 0) + (other ?? 0);
}

/// Returns {root, update(events)}. `onChoose(path)` is called for the name of a file.
export function createEvents({ onChoose }) {
  const list = h("ol", { class: "wf-events", tabIndex: 0, "aria-label": "Events" });
  const empty = h("p", { class: "wf-empty" });
  const root = h("div", { class: "wf-events-box" }, list, empty);

  function create(event) {
    return h(
      "li",
      { class: `wf-event wf-event-${Object.hasOwn(KINDS, event.kind) ? event.kind : "other"}` },
      h("span", { class: "wf-event-kind" }),
      event.path
        ? h("button", { type: "button", class: "wf-link", onclick: () => onChoose(event.path) })
        : h("span", {}),
      h("time", {}),
      h("span", { class: "wf-event-why" }),
    );
  }

  function paint(node, event) {
    const [kind, name, time, why] = node.children;
    text(time, clock(event.at));
    text(kind, KINDS[event.kind] ?? event.kind);
    if (event.path) {
      text(name, basename(event.path));
      attr(name, "title", event.path);
    }
    const size = event.bytes > 0 ? bytes(event.bytes) : "";
    const times = event.times > 1 ? `${event.times} times` : "";
    text(why, [size, times, event.reason].filter(Boolean).join(", "));
  }

  return {
    root,
    update(events) {
      keyed(list, events.slice(0, MOST_SHOWN), (event) => event.id, create, paint);
      attr(empty, "hidden", events.length > 0);
      text(empty, "Nothing has happened since this page was opened.");
    },
  };
}
