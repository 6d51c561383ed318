// What can be changed from the page: each asks the daemon and says what came of it.

import { h, text } from "./dom.js";
import { basename, bytes } from "./format.js";

/// `jobs` is called with the prefetches in flight, as fills, whenever they change. `after(path)` is called when
/// something about a file may be different.
export function createSteering({ api, notices, after, jobs }) {
  const running = new Map();

  async function steer(path, done, ask) {
    try {
      notices.done(done(await ask()));
    } catch (error) {
      notices.problem(error.message);
    }
    after(path);
  }

  async function follow(job, path) {
    try {
      let now = job;
      while (now.state === "running") {
        running.set(job.id, { ...now, job: job.id, path, class: "prefetch" });
        jobs([...running.values()]);
        now = await api.get(`/v1/jobs/${encodeURIComponent(job.id)}`, { wait_ms: 500 });
      }
      const read = `${basename(path)}: ${bytes(now.bytes_done)} of ${bytes(now.bytes_total)} are in RAM`;
      if (now.state === "failed") notices.problem(now.detail ?? `The prefetch of ${basename(path)} failed.`);
      else
        notices.done(now.state === "cancelled" ? `Stopped. ${read}.` : `${read}.${now.detail ? ` ${now.detail}` : ""}`);
    } catch (error) {
      notices.problem(error.message);
    } finally {
      running.delete(job.id);
      jobs([...running.values()]);
      after(path);
    }
  }

  return {
    pin: (file, extra = {}) =>
      steer(
        file.path,
        (outcome) => kept(file, outcome),
        () => api.post("/v1/pin", { path: file.path, ...extra }),
      ),
    unpin: (file) =>
      steer(
        file.path,
        () => `${basename(file.path)} is not pinned any more.`,
        () => api.post("/v1/unpin", { path: file.path }),
      ),
    evict: (file) =>
      steer(
        file.path,
        (outcome) => freed(file, outcome),
        () => api.post("/v1/evict", { path: file.path }),
      ),
    priority: (file, priority) =>
      steer(
        file.path,
        () => `${basename(file.path)} has ${priority} priority.`,
        () => api.post("/v1/hints/priority", { path: file.path, priority }),
      ),
    async prefetch(file, extra = {}) {
      try {
        follow(await api.post("/v1/prefetch", { paths: [file.path], ...extra }), file.path);
      } catch (error) {
        notices.problem(error.message);
      }
    },
    async stop(job) {
      try {
        await api.remove(`/v1/jobs/${encodeURIComponent(job)}`);
      } catch (error) {
        notices.problem(error.message);
      }
    },
    budget: (limit) =>
      steer(
        null,
        () => (limit === null ? "The budget is as mounted." : `The budget is at most ${bytes(limit)}.`),
        () => api.post("/v1/budget", { limit_bytes: limit }),
      ),
  };
}

function kept(file, { bytes: pinned, left_bytes: left }) {
  const rest = left > 0 ? `, ${bytes(left)} are still to be read in` : "";
  return `${basename(file.path)} is pinned: ${bytes(pinned)}${rest}.`;
}

function freed(file, { bytes: gone, left_bytes: left }) {
  const rest = left > 0 ? `; ${bytes(left)} had to stay, being pinned or in use` : "";
  return `${basename(file.path)}: ${bytes(gone)} freed${rest}.`;
}

/// The window in which the budget is changed. Returns {root, open(ram)}.
export function createBudget({ onSet }) {
  const GIB = 2 ** 30;
  const range = h("input", { type: "range", id: "budget-range", min: 0, max: 1000, step: 1 });
  const number = h("input", { type: "number", id: "budget-number", min: 0, step: "any" });
  const most = h("p", { class: "wf-muted" });
  let limit = GIB;
  const set = (limit_bytes) => {
    root.close();
    onSet(limit_bytes);
  };
  const form = h(
    "form",
    { method: "dialog" },
    h("h2", {}, "Budget"),
    most,
    h("label", { for: "budget-range", class: "wf-unseen" }, "Budget, by a slider"),
    range,
    h("label", { for: "budget-number" }, "At most, in GiB"),
    number,
    h(
      "div",
      { class: "wf-actions" },
      h("button", { type: "submit", class: "wf-button wf-main" }, "Set"),
      h("button", { type: "button", class: "wf-button", onclick: () => set(null) }, "As mounted"),
      h("button", { type: "button", class: "wf-button", onclick: () => root.close() }, "Cancel"),
    ),
  );
  const root = h("dialog", { class: "budget", "aria-label": "Change the budget" }, form);
  range.addEventListener("input", () => {
    number.value = Number((((range.value / 1000) * limit) / GIB).toFixed(2));
  });
  number.addEventListener("input", () => {
    range.value = ((number.value * GIB) / limit) * 1000;
  });
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    set(Math.round(number.value * GIB));
  });
  return {
    root,
    open(ram) {
      limit = ram.limit_bytes || ram.budget_bytes;
      text(
        most,
        `The most RAM to keep models in: up to ${bytes(limit)}, as mounted. It is ${bytes(ram.budget_bytes)} now.`,
      );
      number.max = limit / GIB;
      number.value = Number((ram.budget_bytes / GIB).toFixed(2));
      range.value = (ram.budget_bytes / limit) * 1000;
      root.showModal();
    },
  };
}
