// The modules of the page that compute and draw nothing.

import assert from "node:assert/strict";
import { test } from "node:test";

const from = (name) => import(new URL(`../../mount/src/api/dashboard/${name}`, import.meta.url));
const { bytes, duration, folder, percent, rate } = await from("format.js");
const { background, inWords, pieces, tensorPieces } = await from("residency.js");
const { squarify } = await from("squarify.js");
const flow = await from("flow.js");
const { binary, decimal } = await from("chart.js");
const { createLog } = await from("events.js");
const { messages } = await from("api.js");
const { bound } = await from("ram.js");

const GIB = 2 ** 30;
const MIB = 2 ** 20;

test("figures are written as people read them", () => {
  assert.deepEqual([0, 1023, 1536, 512 * MIB, 1.5 * GIB, 24 * GIB, 1023.9 * MIB, NaN].map(bytes), [
    "0 B",
    "1023 B",
    "1.5 KiB",
    "512 MiB",
    "1.5 GiB",
    "24 GiB",
    "1 GiB",
    "–",
  ]);
  assert.deepEqual([0, 12_300_000, 1_750_000_000].map(rate), ["0 MB/s", "12 MB/s", "1.8 GB/s"]);
  assert.deepEqual([0, 0.001, 0.5, 0.999, 1, NaN].map(percent), ["0 %", "< 1 %", "50 %", "99 %", "100 %", "–"]);
  assert.deepEqual([0.2, 80, 600, 7200, 400_000].map(duration), [
    "less than a second",
    "80 s",
    "10 min",
    "2 h",
    "5 days",
  ]);
  assert.deepEqual(
    [folder("/m/a/b.gguf", "/m"), folder("/m/b.gguf", "/m"), folder("/mm/b.gguf", "/m")],
    ["a", "", "/mm"],
  );
});

test("the pieces of a file add up to it, whatever the daemon reports", () => {
  const file = { size_bytes: 10, resident_bytes: 6, pinned_bytes: 2, filling_bytes: 1, client_held_bytes: 99 };
  const found = pieces(file);
  assert.deepEqual(
    found.map(({ state }) => state),
    ["pinned", "resident", "partial", "held"],
  );
  assert.ok(Math.abs(found.reduce((sum, { share }) => sum + share, 0) - 1) < 1e-9);
  assert.deepEqual(pieces({ size_bytes: 4 }), [{ state: "absent", share: 1 }]);
});

test("tensors are coloured in the order of the file, neighbours joined", () => {
  const tensor = (offset, resident_bytes, pinned = false) => ({ offset, size_bytes: 10, resident_bytes, pinned });
  const found = tensorPieces([tensor(30, 0), tensor(0, 10, true), tensor(10, 10), tensor(20, 10), tensor(40, 3)]);
  assert.deepEqual(found, [
    { state: "pinned", share: 0.2 },
    { state: "resident", share: 0.4 },
    { state: "absent", share: 0.2 },
    { state: "partial", share: 0.2 },
  ]);
  const alternating = Array.from({ length: 5000 }, (_, n) => tensor(10 * n, n % 2 ? 10 : 0));
  const few = tensorPieces(alternating);
  assert.ok(few.length <= 96);
  assert.ok(few.every(({ state }) => state === "partial"));
  assert.match(background(few), /^linear-gradient\(90deg, var\(--wf-partial\) 0\.00% 100\.00%\)$/);
});

test("states have words", () => {
  const words = (resident_bytes, more = {}) => inWords({ size_bytes: 100, resident_bytes, pinned_bytes: 0, ...more });
  assert.equal(words(0), "not in RAM");
  assert.equal(words(62), "62 % in RAM");
  assert.equal(words(100), "in RAM");
  assert.equal(words(100, { pinned_bytes: 100 }), "in RAM, pinned");
  assert.equal(words(0, { client_held_bytes: 5 }), "evicted, held by a program");
});

test("the map fills its rectangle with areas in proportion", () => {
  const weights = [50, 30, 9, 5, 3, 2, 1, 0];
  const placed = squarify(weights, (weight) => weight, { x: 5, y: 7, width: 400, height: 250 });
  assert.equal(placed.length, 7);
  for (const { item, x, y, width, height } of placed) {
    assert.ok(Math.abs(width * height - item * 1000) < 1e-6, `the area of ${item}`);
    assert.ok(x >= 5 - 1e-6 && y >= 7 - 1e-6 && x + width <= 405 + 1e-6 && y + height <= 257 + 1e-6);
  }
  assert.deepEqual(
    squarify([1], (weight) => weight, { x: 0, y: 0, width: 0, height: 9 }),
    [],
  );
});

test("history becomes rates, and shares that count passthrough", () => {
  const sample = (at, ram_bytes, source_bytes, passthrough_bytes = 0) => ({
    at,
    ram_bytes,
    source_bytes,
    source_read_bytes: source_bytes,
    passthrough_bytes,
    passthrough_opens: passthrough_bytes ? 1 : 0,
  });
  const history = { interval_seconds: 1, samples: [sample(10, 100, 0), sample(12, 400, 200), sample(13, 0, 0)] };
  assert.deepEqual(
    flow.throughput(history).map(({ values }) => values),
    [
      [100, 0, null],
      [200, 100, 100],
      [0, 0, null],
    ],
  );
  assert.deepEqual(flow.hitShare(history).at(-1).values, [500 / 700]);
  assert.equal(flow.hitShareNow({ samples: [sample(1, 0, 100, 300)] }).share, 0.75);
  assert.deepEqual(flow.hitShare({ samples: [sample(1, 0, 0)] })[0].values, [null]);
});

test("scales end at round numbers", () => {
  assert.deepEqual([1, 3, 7e9, 10].map(decimal), [1, 5, 1e10, 10]);
  assert.deepEqual([GIB, 1.2 * GIB, 48 * GIB, 50 * GIB].map(binary), [GIB, 1.5 * GIB, 48 * GIB, 64 * GIB]);
});

test("events that are alike and close together are one", () => {
  const log = createLog();
  log.add({ kind: "evicted", path: "/a", at: 1, bytes: 5, reason: "room" });
  log.add({ kind: "opened", path: "/b", at: 1 });
  log.add({ kind: "evicted", path: "/a", at: 2, bytes: 6, reason: "room" });
  log.add({ kind: "evicted", path: "/a", at: 20, bytes: 6, reason: "room" });
  assert.deepEqual(
    log.list().map(({ kind, bytes: size, times }) => [kind, size, times]),
    [
      ["evicted", 6, 1],
      ["evicted", 11, 2],
      ["opened", undefined, 1],
    ],
  );
  assert.equal(log.list(new Set(["opened"])).length, 1);
});

test("server-sent events are read however they are cut into pieces", async () => {
  const words = ': keep-alive\n\nevent: filled\ndata: {"a":1,\ndata: "b":"ü"}\r\n\r\ndata: {}\n\n';
  const raw = new TextEncoder().encode(words);
  for (const size of [1, 2, 7, 1000]) {
    const body = new ReadableStream({
      start(controller) {
        for (let place = 0; place < raw.length; place += size) controller.enqueue(raw.slice(place, place + size));
        controller.close();
      },
    });
    const found = [];
    for await (const { name, data } of messages(body)) if (data) found.push([name, JSON.parse(data)]);
    assert.deepEqual(
      found,
      [
        ["filled", { a: 1, b: "ü" }],
        ["message", {}],
      ],
      `in pieces of ${size}`,
    );
  }
});

test("what bounds the budget is a sentence", () => {
  assert.equal(
    bound({ budget_bytes: GIB, limit_bytes: GIB, budget_reason: "as much as --ram allows" }),
    "The budget is as much as --ram allows.",
  );
  assert.equal(
    bound({ budget_bytes: GIB, limit_bytes: 3 * GIB, budget_reason: "other programs are waiting for memory" }),
    "The budget is 2 GiB less than the 3 GiB of --ram: other programs are waiting for memory.",
  );
});
