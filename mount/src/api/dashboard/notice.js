// Short messages at the edge of the page: what was done, and what was not and why.

import { h } from "./dom.js";

const STAYS = { done: 5000, problem: 12_000 };
const MOST = 3;

/// `polite` and `urgent` are the regions that are read out; messages appear in them.
export function createNotices(polite, urgent) {
  function show(region, kind, words) {
    const close = h("button", { type: "button", class: "wf-button wf-small", "aria-label": "Dismiss" }, "×");
    const node = h("div", { class: `notice notice-${kind}` }, h("span", {}, words), close);
    close.addEventListener("click", () => node.remove());
    setTimeout(() => node.remove(), STAYS[kind]);
    region.append(node);
    while (region.childElementCount > MOST) region.firstChild.remove();
  }
  return {
    done: (words) => show(polite, "done", words),
    problem: (words) => show(urgent, "problem", words),
  };
}
