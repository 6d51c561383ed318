// A small chart over time: areas stacked on each other, or lines. Drawn as SVG, read by pointer, arrow keys and ear.

import { attr, h, svg, text } from "./dom.js";
import { clock, duration } from "./format.js";

const WIDTH = 300;
const HEIGHT = 100;

/// `series`: [{name, colour, kind}], where `colour` is the name of a colour of the theme and `kind` is "area" (stacked),
/// "line" or "dashed". `words` makes a value readable. `full` is the top of the scale, if it does not follow the values;
/// `least` is the lowest top that it may have, and `round` finds a
/// round number above a value.
///
/// Returns {root, update({points, seconds, headline, note})}; points: [{at, values}] in order of time, a value null
/// where it is not known; `seconds` is the length of time shown, up to the last point.
export function createChart({ title, series, words, full = null, least = 1, round = decimal }) {
  const headline = h("strong", { class: "wf-figure" }, "–");
  const note = h("span", { class: "wf-note" });
  const top = h("span", { class: "wf-scale" });
  const readout = h("span", { class: "wf-readout" });
  const paths = series.map(({ colour, kind }) => svg("path", { class: `wf-${kind} wf-ink-${colour}` }));
  const cursor = svg("path", { class: "wf-cursor" });
  const plot = svg(
    "svg",
    { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", "aria-hidden": "true" },
    svg("path", { class: "wf-rule", d: `M0 0.5H${WIDTH}M0 ${HEIGHT / 2}H${WIDTH}` }),
    ...paths,
    cursor,
  );
  const frame = h("div", { class: "wf-plot", role: "img", tabIndex: 0 }, plot, top);
  const live = h("span", { class: "wf-unseen", "aria-live": "polite" });
  const begin = h("span", {});
  const root = h(
    "figure",
    { class: "wf-chart" },
    h(
      "figcaption",
      {},
      h("span", { class: "wf-title" }, h("span", {}, title), series.length > 1 ? legend(series) : null),
      headline,
      note,
    ),
    frame,
    h("div", { class: "wf-axis" }, begin, readout, h("span", {}, "now")),
    live,
  );

  let shown = { points: [], from: 0, until: 1, max: 1 };
  let chosen = null;

  function update({ points, seconds, headline: head, note: side = "" }) {
    const until = points.at(-1)?.at ?? 0;
    const from = until - seconds;
    const visible = points.filter((point) => point.at >= from);
    const max = full ?? round(Math.max(least, 1.05 * Math.max(0, ...visible.map((point) => tallest(point.values)))));
    shown = { points: visible, from, until, max };
    text(headline, head);
    text(note, side);
    text(top, words(max));
    text(begin, `${duration(seconds)} ago`);
    series.forEach(({ kind }, index) => attr(paths[index], "d", outline(index, kind)));
    attr(frame, "aria-label", `${title}: ${head}. ${side}`.trim());
    read();
  }

  function tallest(values) {
    let stack = 0;
    let highest = 0;
    series.forEach(({ kind }, index) => {
      if (kind === "area") stack += values[index] ?? 0;
      else highest = Math.max(highest, values[index] ?? 0);
    });
    return Math.max(stack, highest);
  }

  /// The path of one series; an area lies on those before it. What is not known leaves a gap.
  function outline(index, kind) {
    const below = series.map((one, place) => place).filter((place) => place < index && series[place].kind === "area");
    const base = (point) => (kind === "area" ? below.reduce((sum, place) => sum + (point.values[place] ?? 0), 0) : 0);
    return runs(index)
      .map((run) => {
        const upper = run.map((point) => `${x(point.at)} ${y(base(point) + point.values[index])}`);
        if (kind !== "area") return `M${upper.join("L")}`;
        const lower = run.map((point) => `${x(point.at)} ${y(base(point))}`).reverse();
        return `M${upper.join("L")}L${lower.join("L")}Z`;
      })
      .join("");
  }

  function runs(index) {
    const gap = 5 * spacing();
    const found = [];
    let last = null;
    for (const point of shown.points) {
      if (!Number.isFinite(point.values[index])) last = null;
      else {
        if (last === null || point.at - last > gap) found.push([]);
        found.at(-1).push(point);
        last = point.at;
      }
    }
    return found;
  }

  function spacing() {
    const { points } = shown;
    return points.length > 1 ? (points.at(-1).at - points[0].at) / (points.length - 1) : 1;
  }

  const x = (at) => (((at - shown.from) / (shown.until - shown.from || 1)) * WIDTH).toFixed(2);
  const y = (value) => (HEIGHT - (Math.min(value, shown.max) / shown.max) * HEIGHT).toFixed(2);

  function read(aloud = false) {
    const point = chosen === null ? null : nearest(chosen);
    attr(cursor, "d", point ? `M${x(point.at)} 0V${HEIGHT}` : null);
    const values =
      point &&
      series
        .map(({ name }, index) =>
          Number.isFinite(point.values[index]) ? `${name} ${words(point.values[index])}` : null,
        )
        .filter(Boolean)
        .join(", ");
    text(readout, point ? `${clock(point.at)}: ${values}` : "");
    if (aloud) text(live, readout.textContent);
  }

  function nearest(at) {
    return shown.points.reduce(
      (best, point) => (best === null || Math.abs(point.at - at) < Math.abs(best.at - at) ? point : best),
      null,
    );
  }

  frame.addEventListener("pointermove", (event) => {
    const box = frame.getBoundingClientRect();
    chosen = shown.from + ((event.clientX - box.left) / box.width) * (shown.until - shown.from);
    read();
  });
  const leave = () => {
    chosen = null;
    text(live, "");
    read();
  };
  frame.addEventListener("pointerleave", leave);
  frame.addEventListener("blur", leave);
  frame.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!step || shown.points.length === 0) return;
    event.preventDefault();
    const stride = spacing() * (event.shiftKey ? 10 : 1);
    chosen = Math.min(shown.until, Math.max(shown.points[0].at, (chosen ?? shown.until) + step * stride));
    read(true);
  });

  return { root, update };
}

function legend(series) {
  return h(
    "span",
    { class: "wf-series", "aria-hidden": "true" },
    series.map(({ name, colour, kind }) =>
      h("span", {}, h("span", { class: `wf-swatch wf-${kind === "area" ? colour : "rule-mark"}` }), name),
    ),
  );
}

/// The next round number at or above `value`: 1, 2 or 5 with zeros.
export function decimal(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map((digit) => digit * power).find((round) => round >= value * 0.999);
}

/// The same for sizes in powers of 1024: a power of two, or one and a half of it.
export function binary(value) {
  const power = 2 ** Math.floor(Math.log2(value));
  return [1, 1.5, 2].map((digit) => digit * power).find((round) => round >= value * 0.999);
}
