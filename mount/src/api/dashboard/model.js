// One model: what of it is in RAM and why, in words, its parts, and what can be done with it.

import { attr, h, keyed, style, text } from "./dom.js";
import { basename, bytes, count, duration, folder, sentence } from "./format.js";
import { pace } from "./fills.js";
import { background, inWords, marks, stateOf } from "./residency.js";

const COMPONENTS = {
  diffusion_model: "Diffusion model",
  text_encoder: "Text encoder",
  vae: "VAE",
  other: "Everything else",
};
const LOADS = { map: "mapped", pread: "tensor by tensor", whole: "from front to end" };
const FORMATS = { safetensors: "safetensors", gguf: "GGUF", torch: "PyTorch", other: "other" };
/// Groups shown; a model has some dozens.
const MOST_GROUPS = 400;

/// `actions`: {pin, unpin, prefetch, stop, evict, priority}, each called with what the daemon is to be asked; null where
/// nothing may be changed.
///
/// Returns {root, heading, update({file, fill, explained, tensors, piecesOf, problem})}; `explained` and `tensors` are
/// null until they are known, `file` is null when none is chosen, `fill` is how it is being read in or null, and `problem`
/// says why nothing is known.
export function createModel({ actions = null, onClose = null } = {}) {
  const heading = h("h3", { class: "wf-model-name", tabIndex: -1 });
  const where = h("p", { class: "wf-muted" });
  const flags = h("div", { class: "wf-flags" });
  const strip = h("div", { class: "wf-strip wf-strip-large", role: "img" });
  const state = h("span", {});
  const speed = h("span", { class: "wf-muted" });
  const why = h("p", { class: "wf-why" });
  const next = h("p", { class: "wf-why" });
  const facts = h("dl", { class: "wf-facts" });
  const parts = h("ul", { class: "wf-parts" });
  const partsTitle = h("h4", {}, "Components");
  const groups = h("ul", { class: "wf-groups", tabIndex: 0, "aria-label": "Groups of tensors" });
  const groupsTitle = h("h4", {}, "Tensors");
  const buttons = actions ? steering(actions) : null;
  const close = onClose
    ? h("button", { type: "button", class: "wf-button wf-close", "aria-label": "Close", onclick: () => onClose() }, "×")
    : null;
  const body = h(
    "div",
    { class: "wf-model-body" },
    where,
    flags,
    strip,
    h("p", { class: "wf-model-state" }, state, speed),
    buttons?.root,
    h("h4", {}, "Why"),
    why,
    next,
    facts,
    partsTitle,
    parts,
    groupsTitle,
    groups,
  );
  const none = h("p", { class: "wf-empty" });
  const root = h("div", { class: "wf-model" }, h("div", { class: "wf-model-head" }, heading, close), body, none);
  let shown = null;

  function update({ file, fill, explained, tensors, piecesOf, problem }) {
    attr(body, "hidden", !file);
    attr(none, "hidden", Boolean(file));
    attr(close, "hidden", !file);
    text(heading, file ? basename(file.path) : "No model chosen");
    if (!file) {
      text(none, problem ?? "Choose a model to see what of it is in RAM, and why.");
      shown = null;
      return;
    }
    if (shown !== file.path) {
      root.scrollTop = 0;
      shown = file.path;
    }
    text(where, folder(file.path));
    keyed(
      flags,
      marks(file),
      (mark) => mark.words,
      (mark) => h("span", { class: `wf-flag wf-flag-${mark.name}` }),
      (node, mark) => {
        text(node, mark.words);
        attr(node, "title", mark.title);
      },
    );
    style(strip, "background-image", background(piecesOf(file)));
    attr(strip, "aria-label", `${inWords(file)}, from the first tensor to the last`);
    text(state, `${bytes(file.resident_bytes)} of ${bytes(file.size_bytes)} in RAM`);
    text(speed, fill ? pace(fill) : "");
    text(why, sentence(problem ?? explained?.why ?? "…"));
    text(next, explained ? nextToGo(explained) : "");
    describe(facts, file);
    buttons?.update(file, fill);
    const components = (tensors?.components ?? []).filter((part) => part.size_bytes > 0);
    attr(partsTitle, "hidden", components.length < 2);
    attr(parts, "hidden", components.length < 2);
    keyed(
      parts,
      components,
      (part) => part.name,
      (part) => component(part, actions),
      (node, part) => node.paint(part, file),
    );
    const list = (tensors?.groups ?? []).slice(0, MOST_GROUPS);
    text(groupsTitle, tensors ? tensorWords(tensors) : "Tensors …");
    attr(groups, "hidden", tensors !== null && list.length === 0);
    keyed(groups, list, (group) => group.name, groupRow, paintGroup);
  }

  return { root, heading, update };
}

function tensorWords(tensors) {
  const whole = tensors.groups.reduce((sum, group) => sum + group.tensors, 0);
  if (whole === 0) return "No tensors are known: kept as one piece";
  const left = tensors.groups.length - MOST_GROUPS;
  return `${count(whole, "tensor")} in ${count(tensors.groups.length, "group")}${left > 0 ? `, the first ${MOST_GROUPS}` : ""}`;
}

function nextToGo({ next }) {
  if (!next) return "Nothing of it would go if room were needed.";
  const before =
    next.bytes_before > 0 ? `, after ${bytes(next.bytes_before)} of other models` : ", before anything else";
  return sentence(`If room were needed, ${bytes(next.bytes)} of it would go next${before}: ${next.reason}`);
}

function describe(facts, file) {
  const ago = (seconds) => (seconds === null || seconds === undefined ? null : `${duration(seconds)} ago`);
  const rows = [
    ["Last used", ago(file.unused_seconds)],
    ["In RAM since", ago(file.resident_seconds)],
    ["Last loaded", LOADS[file.last_load]],
    ["Kept by the policy", file.kept_bytes > 0 ? bytes(file.kept_bytes) : null],
    ["Pinned", file.pinned_bytes > 0 ? bytes(file.pinned_bytes) : null],
    ["Held by programs", file.client_held_bytes > 0 ? bytes(file.client_held_bytes) : null],
    ["Format", FORMATS[file.format]],
  ].filter(([, value]) => value);
  keyed(
    facts,
    rows,
    ([name]) => name,
    ([name]) => h("div", {}, h("dt", {}, name), h("dd", {})),
    (node, [, value]) => text(node.lastChild, value),
  );
}

/// The buttons for a whole file. They stay where they are; what cannot be done now is disabled.
function steering(actions) {
  let file = null;
  let job = null;
  const button = (words, title, act) =>
    h("button", { type: "button", class: "wf-button", title, onclick: () => act(file) }, words);
  const pin = button("Pin", "Read it into RAM and keep it there", (one) =>
    one.pinned_bytes > 0 ? actions.unpin(one) : actions.pin(one),
  );
  const prefetch = button("Prefetch", "Read it into RAM now, as far as the policy keeps it", (one) =>
    job ? actions.stop(job) : actions.prefetch(one),
  );
  const evict = button("Evict", "Free what it takes of the RAM", (one) => actions.evict(one));
  const priority = h(
    "select",
    { class: "wf-select", onchange: () => actions.priority(file, priority.value) },
    ["low", "normal", "high"].map((value) => h("option", { value }, value)),
  );
  const root = h(
    "div",
    {},
    h("div", { class: "wf-actions" }, pin, prefetch, evict),
    h("label", { class: "wf-priority" }, "Priority", priority),
  );
  return {
    root,
    update(next, fill) {
      file = next;
      job = fill?.job ?? null;
      text(pin, next.pinned_bytes > 0 ? "Unpin" : "Pin");
      attr(pin, "title", next.pinned_bytes > 0 ? "Take the pin back" : "Read it into RAM and keep it there");
      text(prefetch, job ? "Stop" : "Prefetch");
      prefetch.disabled = !job && next.resident_bytes >= next.size_bytes;
      evict.disabled = next.resident_bytes === 0;
      if (document.activeElement !== priority) priority.value = next.priority ?? "normal";
    },
  };
}

function component(part, actions) {
  const strip = h("div", { class: "wf-strip" });
  const value = h("span", { class: "wf-muted" });
  let now = part;
  let file = null;
  const words = COMPONENTS[part.name] ?? part.name;
  const button = (label, act) =>
    h(
      "button",
      {
        type: "button",
        class: "wf-button wf-small",
        "aria-label": `${label}: ${words}`,
        onclick: () => act(),
      },
      label,
    );
  const prefetch = button("Prefetch", () => actions.prefetch(file, { component: now.name }));
  const pin = button("Pin", () => actions.pin(file, { tensors: now.pattern }));
  const node = h(
    "li",
    {},
    h("span", { class: "wf-part-name" }, words),
    value,
    strip,
    actions && h("span", { class: "wf-part-actions" }, prefetch, pin),
  );
  node.paint = (next, of) => {
    now = next;
    file = of;
    text(value, `${bytes(next.resident_bytes)} of ${bytes(next.size_bytes)}`);
    style(strip, "background-image", level(next));
    prefetch.disabled = next.resident_bytes >= next.size_bytes;
    pin.disabled = next.pattern === null || next.pattern === undefined;
  };
  return node;
}

function groupRow() {
  return h(
    "li",
    {},
    h("span", { class: "wf-group-name" }),
    h("span", { class: "wf-muted" }),
    h("div", { class: "wf-strip" }),
  );
}

function paintGroup(node, group) {
  const [name, size, strip] = node.children;
  text(name, group.name || "(no name)");
  attr(name, "title", `${group.name}, ${count(group.tensors, "tensor")}`);
  text(
    size,
    group.resident_bytes > 0 && group.resident_bytes < group.size_bytes
      ? `${bytes(group.resident_bytes)} of ${bytes(group.size_bytes)}`
      : bytes(group.size_bytes),
  );
  style(strip, "background-image", level(group));
  attr(node, "data-state", stateOf(group));
}

/// How much of a part is there, as a level. What is there of a part in the middle may lie anywhere in it.
function level(part) {
  const size = Math.max(1, part.size_bytes);
  const there = Math.min(1, part.resident_bytes / size);
  const state = stateOf(part);
  return background(
    [
      { state: state === "partial" ? "resident" : state, share: there },
      { state: "absent", share: 1 - there },
    ].filter((piece) => piece.share > 0),
  );
}
