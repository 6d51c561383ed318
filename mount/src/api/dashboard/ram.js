// How full the arena is: against its budget, its watermarks, and what the mount may take at most.

import { attr, h, style, text } from "./dom.js";
import { bytes, percent } from "./format.js";

const PARTS = [
  { name: "pinned", words: "Pinned" },
  { name: "resident", words: "Kept" },
  { name: "held", words: "Evicted, held by programs" },
  { name: "free", words: "Free" },
];

/// Returns {root, update(ram)} for the `ram` of a status. `onBudget` is called when the budget is to be changed; without
/// it there is nothing to click.
export function createRam({ onBudget } = {}) {
  const used = h("strong", { class: "wf-figure" }, "–");
  const of = h("span", { class: "wf-of" }, " of …");
  const why = h("p", { class: "wf-why" }, "…");
  const parts = PARTS.map(({ name }) => h("div", { class: `wf-part wf-${name}` }));
  const away = h("div", { class: "wf-part wf-away" });
  const low = h("div", { class: "wf-mark" });
  const high = h("div", { class: "wf-mark" });
  const bar = h(
    "div",
    { class: "wf-bar", role: "meter", "aria-label": "RAM used for models", "aria-valuemin": "0" },
    parts,
    away,
    low,
    high,
  );
  const legend = PARTS.map(({ name, words }) => {
    const value = h("dd", {}, "–");
    return { value, node: h("div", {}, h("dt", {}, h("span", { class: `wf-swatch wf-${name}` }), words), value) };
  });
  const marks = h("dd", {}, "–");
  const change = onBudget
    ? h("button", { type: "button", class: "wf-button", onclick: () => onBudget() }, "Change budget…")
    : null;
  const root = h(
    "div",
    { class: "wf-ram" },
    h("div", { class: "wf-ram-head" }, h("p", { class: "wf-headline" }, used, of), change),
    bar,
    h(
      "dl",
      { class: "wf-legend" },
      legend.map(({ node }) => node),
      h("div", {}, h("dt", {}, h("span", { class: "wf-swatch wf-marks" }), "Makes room"), marks),
    ),
    why,
  );

  function update(ram) {
    const budget = ram.budget_bytes;
    const full = Math.max(1, ram.limit_bytes || budget, budget, ram.resident_bytes + ram.client_held_bytes);
    const taken = ram.resident_bytes + ram.client_held_bytes;
    const sizes = {
      pinned: Math.min(ram.pinned_bytes, ram.resident_bytes),
      resident: Math.max(0, ram.resident_bytes - ram.pinned_bytes),
      held: ram.client_held_bytes,
      free: Math.max(0, budget - taken),
    };
    PARTS.forEach(({ name }, index) => {
      style(parts[index], "width", share(sizes[name], full));
      text(legend[index].value, bytes(sizes[name]));
    });
    style(away, "width", share(full - Math.max(budget, taken), full));
    style(low, "left", share(ram.low_watermark_bytes, full));
    style(high, "left", share(ram.high_watermark_bytes, full));
    text(used, bytes(taken));
    text(of, ` of ${bytes(budget)} (${percent(budget ? taken / budget : 0)})`);
    text(marks, `from ${bytes(ram.high_watermark_bytes)} down to ${bytes(ram.low_watermark_bytes)}`);
    text(why, bound(ram));
    attr(bar, "aria-valuemax", budget);
    attr(bar, "aria-valuenow", taken);
    attr(bar, "aria-valuetext", `${bytes(taken)} of ${bytes(budget)}, ${bytes(sizes.pinned)} of it pinned`);
  }

  return { root, update };
}

/// What bounds the budget, as a sentence.
export function bound(ram) {
  const reason = ram.budget_reason || "as much as --ram allows";
  if (ram.limit_bytes <= ram.budget_bytes) return `The budget is ${reason}.`;
  const missing = bytes(ram.limit_bytes - ram.budget_bytes);
  return `The budget is ${missing} less than the ${bytes(ram.limit_bytes)} of --ram: ${reason}.`;
}

function share(part, whole) {
  return `${(Math.min(1, Math.max(0, part / whole)) * 100).toFixed(3)}%`;
}
