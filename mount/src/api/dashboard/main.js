// Puts the page together: what comes from the daemon goes into the state, and the views are drawn from it.

import { createApi } from "./api.js";
import { binary, createChart } from "./chart.js";
import { attr, framed, h, text } from "./dom.js";
import { createEvents, createLog, KINDS } from "./events.js";
import { createFills } from "./fills.js";
import * as flow from "./flow.js";
import { bytes, count, duration, percent, rate } from "./format.js";
import { createLibrary } from "./library.js";
import { createLive } from "./live.js";
import { createModel } from "./model.js";
import { createModels } from "./models.js";
import { createNotices } from "./notice.js";
import { createRam } from "./ram.js";
import { createBudget, createSteering } from "./steer.js";
import { themeSwitch } from "./theme.js";

const at = (id) => document.getElementById(id);
const EXPLAIN_EVERY_MS = 2000;
const narrow = matchMedia("(max-width: 899px)");

const api = createApi({ token: takeToken() });
const notices = createNotices(at("polite"), at("urgent"));
const log = createLog();
const state = { status: null, history: null, jobs: [], chosen: null, explained: null, problem: null, kinds: null };

const library = createLibrary({ api, changed: framed(drawModels) });
const steering = createSteering({
  api,
  notices,
  jobs(list) {
    state.jobs = list;
    drawFills();
  },
  after(path) {
    if (path) library.touch(path);
    live.look().catch(() => {});
    explain();
  },
});
const budget = createBudget({ onSet: steering.budget });
const ram = createRam({ onBudget: api.hasToken ? () => state.status && budget.open(state.status.ram) : null });
const models = createModels({ library, onChoose: choose });
const model = createModel({ actions: api.hasToken ? steering : null, onClose: () => choose(null) });
const fills = createFills({ onStop: api.hasToken ? steering.stop : null });
const events = createEvents({ onChoose: choose });
const charts = createCharts();
const live = createLive({
  api,
  library,
  onStatus(status) {
    state.status = status;
    drawStatus();
  },
  onHistory(history) {
    state.history = history;
    drawCharts();
  },
  onEvent(event) {
    log.add(
      event.kind === "lost" ? { ...event, at: Date.now() / 1000, reason: `${event.lost} events came too fast` } : event,
    );
    if (event.path) library.touch(event.path);
    if (event.path && event.path === state.chosen) explain();
    drawEvents();
  },
  onConnection(name, words) {
    attr(at("connection"), "data-state", name);
    text(at("connection-words"), words);
  },
  onBack(worker) {
    notices.done(
      worker ? `The daemon's worker was replaced (${count(worker.restarts, "time")} so far).` : "The daemon is back.",
    );
    library.loadAll().catch(() => {});
  },
});

/// The token of the address, which then disappears from it. It is kept for this tab, so that the page can be reloaded.
function takeToken() {
  const given = new URLSearchParams(location.hash.slice(1)).get("token");
  if (given) history.replaceState(null, "", location.pathname);
  try {
    if (given) sessionStorage.setItem("weightfs-token", given);
    return given ?? sessionStorage.getItem("weightfs-token");
  } catch {
    return given;
  }
}

function createCharts() {
  const share = (value) => percent(value);
  const list = {
    throughput: createChart({
      title: "Throughput",
      words: rate,
      least: 1e7,
      series: [
        { name: "RAM", colour: "resident", kind: "area" },
        { name: "waited for", colour: "held", kind: "area" },
        { name: "disk", colour: "ink", kind: "line" },
      ],
    }),
    hits: createChart({
      title: "Served from RAM",
      words: share,
      full: 1,
      series: [{ name: "from RAM", colour: "resident", kind: "line" }],
    }),
    holding: createChart({
      title: "In RAM",
      words: bytes,
      least: 2 ** 20,
      round: binary,
      series: [
        { name: "pinned", colour: "pinned", kind: "area" },
        { name: "kept", colour: "resident", kind: "area" },
        { name: "held", colour: "held", kind: "area" },
        { name: "budget", colour: "ink", kind: "dashed" },
      ],
    }),
    pressure: createChart({
      title: "Memory pressure",
      words: (value) => `${value.toFixed(value < 10 ? 1 : 0)} %`,
      least: 10,
      series: [{ name: "waiting", colour: "held", kind: "line" }],
    }),
  };
  at("charts").append(...Object.values(list).map(({ root }) => root));
  return list;
}

const drawCharts = framed(() => {
  const { history } = state;
  if (!history) return;
  const seconds = flow.span(history.samples);
  const [fromRam, hadToRead, disk] = flow.throughputNow(history);
  const { share, passthrough_opens: past } = flow.hitShareNow(history);
  const last = history.samples.at(-1);
  charts.throughput.update({
    points: flow.throughput(history),
    seconds,
    headline: rate(fromRam + hadToRead),
    note: `disk ${rate(disk)}`,
  });
  charts.hits.update({
    points: flow.hitShare(history),
    seconds,
    headline: percent(share ?? NaN),
    note: past > 0 ? `${count(past, "open")} in passthrough` : "",
  });
  charts.holding.update({
    points: flow.holding(history),
    seconds,
    headline: last ? bytes(last.resident_bytes + last.client_held_bytes) : "–",
    note: last ? `budget ${bytes(last.budget_bytes)}` : "",
  });
  const { pressure } = state.status ?? {};
  const waiting = last?.psi_some_avg10;
  charts.pressure.update({
    points: flow.pressure(history),
    seconds,
    headline: Number.isFinite(waiting) ? `${waiting.toFixed(1)} %` : "not known",
    note: pressure ? `${bytes(pressure.mem_available_bytes)} free · reserve ${bytes(pressure.reserve_bytes)}` : "",
  });
});

function drawStatus() {
  const { status } = state;
  ram.update(status.ram);
  text(at("mounts"), status.mounts.map((mount) => mount.mountpoint).join(", ") || "nothing mounted");
  attr(
    at("mounts"),
    "title",
    status.mounts
      .map(
        ({ mountpoint, source, passthrough }) =>
          `${mountpoint} over ${source === mountpoint ? "itself" : source}, ${passthrough ? "passthrough" : "no passthrough"}`,
      )
      .join("\n"),
  );
  const parts = [
    `weightfs ${status.version}`,
    `up for ${duration(status.uptime_seconds)}`,
    `process ${status.worker.pid}`,
    status.worker.restarts > 0 && `${count(status.worker.restarts, "restart")} of the worker`,
    `reads by ${status.io.engine}`,
    `${bytes(status.io.evicted_bytes)} evicted`,
    status.hints?.queued > 0 && `${count(status.hints.queued, "file")} queued`,
    status.policy && `policy: ${status.policy}`,
  ];
  text(at("about"), parts.filter(Boolean).join(" · "));
  attr(at("notes-box"), "hidden", status.notes.length === 0);
  text(at("notes-title"), `Missing on this machine (${status.notes.length})`);
  if (at("notes").childElementCount !== status.notes.length) {
    at("notes").replaceChildren(...status.notes.map((note) => h("li", {}, note)));
  }
  drawFills();
  drawModels();
}

function drawFills() {
  fills.update(inFlight());
  drawModel();
}

/// The prefetches of this page, which can be stopped, and whatever else is being read in.
function inFlight() {
  const known = new Set(state.jobs.map((job) => job.path));
  return [...state.jobs, ...(state.status?.fills ?? []).filter((fill) => !known.has(fill.path))];
}

function drawModels() {
  models.update({ mounts: state.status?.mounts ?? [], chosen: state.chosen });
  drawModel();
}

function drawModel() {
  const file = state.chosen ? library.file(state.chosen) : null;
  if (file && library.tensorsAreOld(file)) library.want([file]);
  model.update({
    file,
    fill: file ? (inFlight().find((fill) => fill.path === file.path) ?? null) : null,
    explained: state.explained,
    tensors: file ? library.tensors(file.path) : null,
    piecesOf: library.piecesOf,
    problem: state.problem ?? (state.chosen && !file ? "This file is not there any more." : null),
  });
}

const drawEvents = framed(() => events.update(log.list(state.kinds)));

/// Shows a model, or none.
function choose(path) {
  const before = document.activeElement;
  if (path && !state.chosen) choose.from = before;
  state.chosen = path;
  state.explained = null;
  state.problem = null;
  attr(document.body, "data-chosen", path !== null);
  cover();
  drawModels();
  if (path) {
    explain();
    library.loadTensors(path).catch(() => {});
    if (narrow.matches) model.heading.focus();
  } else {
    choose.from?.focus?.();
  }
}

/// On a narrow screen the chosen model covers the page, and nothing below it can be reached.
function cover() {
  const covered = narrow.matches && state.chosen !== null;
  for (const part of document.querySelectorAll("[data-below]")) part.inert = covered;
}

async function explain() {
  const path = state.chosen;
  if (!path) return;
  try {
    const explained = await api.get("/v1/explain", { path });
    if (path !== state.chosen) return;
    state.explained = explained;
    state.problem = null;
  } catch (error) {
    if (path !== state.chosen || error.status === 0) return;
    state.problem = error.message;
  }
  drawModel();
}

function createKinds() {
  const buttons = Object.entries({
    all: "All",
    evicted: KINDS.evicted,
    filled: KINDS.filled,
    opened: KINDS.opened,
  }).map(([kind, words]) =>
    h(
      "button",
      {
        type: "button",
        "aria-pressed": String(kind === "all"),
        onclick(event) {
          state.kinds = kind === "all" ? null : new Set([kind]);
          for (const button of buttons) attr(button, "aria-pressed", String(button === event.currentTarget));
          drawEvents();
        },
      },
      words,
    ),
  );
  at("event-kinds").append(...buttons);
}

themeSwitch(at("theme"));
createKinds();
at("ram").append(ram.root, budget.root);
at("models").append(models.root);
at("model").append(model.root);
at("fills").append(fills.root);
at("events").append(events.root);
attr(at("access"), "hidden", api.hasToken);
attr(at("read-only"), "hidden", api.hasToken);
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && state.chosen && !document.querySelector("dialog[open]")) choose(null);
  if (event.key === "/" && !/^(INPUT|SELECT|TEXTAREA)$/.test(document.activeElement?.tagName ?? "")) {
    event.preventDefault();
    at("search").focus();
  }
});
narrow.addEventListener("change", cover);
setInterval(explain, EXPLAIN_EVERY_MS);
fills.update([]);
events.update([]);
drawModel();
document.body.removeAttribute("data-loading");
live.start();
