// Serves the page and speaks the control interface for a made-up daemon. `node fake.mjs [PORT [LORAS]]` to look at it.

import { createServer } from "node:http";
import { readFile } from "node:fs/promises";
import { fileURLToPath } from "node:url";

import { createWorld } from "./world.mjs";

const PAGE = new URL("../../mount/src/api/dashboard/", import.meta.url);
const TYPES = {
  html: "text/html; charset=utf-8",
  css: "text/css; charset=utf-8",
  js: "text/javascript; charset=utf-8",
  svg: "image/svg+xml",
};
export const TOKEN = "a-token-for-tests";
export const POLICY =
  "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; " +
  "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'";

/// Starts a server on a free port, or on `port`. Returns {url, world, close(), drop()}: `drop` ends all connections, as a
/// daemon does that goes away.
export async function serve({ port = 0, loras, beat = 1000 } = {}) {
  const world = createWorld({ loras });
  const sockets = new Set();
  let away = false;
  const server = createServer((request, response) => {
    if (away) request.socket.destroy();
    else answer(world, request, response).catch((error) => problem(response, 500, "failed", String(error)));
  });
  server.on("connection", (socket) => {
    sockets.add(socket);
    socket.on("close", () => sockets.delete(socket));
  });
  await new Promise((resolve) => server.listen(port, "127.0.0.1", resolve));
  const timer = beat > 0 ? setInterval(world.step, beat) : null;
  return {
    url: `http://127.0.0.1:${server.address().port}/`,
    world,
    setAway(value) {
      away = value;
      if (away) for (const socket of sockets) socket.destroy();
    },
    async close() {
      clearInterval(timer);
      for (const socket of sockets) socket.destroy();
      await new Promise((resolve) => server.close(resolve));
    },
  };
}

function json(response, status, value, type = "application/json") {
  response.writeHead(status, { "Content-Type": type, "Content-Security-Policy": POLICY });
  response.end(JSON.stringify(value));
}

function problem(response, status, kind, detail) {
  json(
    response,
    status,
    { type: `urn:weightfs:problem:${kind}`, title: kind, status, detail },
    "application/problem+json",
  );
}

async function body(request) {
  const parts = [];
  for await (const part of request) parts.push(part);
  return parts.length > 0 ? JSON.parse(Buffer.concat(parts).toString()) : {};
}

async function answer(world, request, response) {
  const url = new URL(request.url, "http://localhost");
  const query = url.searchParams;
  if (!url.pathname.startsWith("/v1/")) return file(url.pathname, response);
  const path = query.get("path");
  if (request.method !== "GET") return steer(world, request, response, url.pathname);
  switch (url.pathname) {
    case "/v1/status":
      return json(response, 200, world.status());
    case "/v1/history":
      return json(response, 200, world.history());
    case "/v1/files":
      return json(response, 200, list(world, query));
    case "/v1/events":
      return events(world, request, response);
    default:
  }
  if (url.pathname.startsWith("/v1/jobs/")) {
    await new Promise((resolve) => setTimeout(resolve, 300));
    return json(response, 200, world.daemon.jobs.get(url.pathname.split("/").at(-1)));
  }
  if (!world.daemon.files.has(path)) return problem(response, 404, "no_file", `${path}: there is no such file`);
  return json(response, 200, url.pathname === "/v1/explain" ? world.explain(path) : world.tensors(path));
}

function list(world, query) {
  const all = [...world.daemon.files.values()]
    .filter((one) => !query.get("path") || one.path === query.get("path"))
    .filter((one) => query.get("resident") !== "true" || one.resident_bytes > 0)
    .sort((a, b) => (query.get("sort") === "size" ? b.size_bytes - a.size_bytes : a.path < b.path ? -1 : 1));
  const start = Number(query.get("cursor") ?? 0);
  const end = start + Number(query.get("limit") ?? 1000);
  const sum = (name) => all.reduce((total, one) => total + one[name], 0);
  return {
    files: all.slice(start, end),
    next: end < all.length ? String(end) : null,
    totals: { files: all.length, size_bytes: sum("size_bytes"), resident_bytes: sum("resident_bytes") },
  };
}

function events(world, request, response) {
  response.writeHead(200, { "Content-Type": "text/event-stream", "Cache-Control": "no-store" });
  response.write(": keep-alive\n\n");
  const listen = (event) => response.write(`event: ${event.kind}\ndata: ${JSON.stringify(event)}\n\n`);
  world.daemon.listeners.add(listen);
  request.on("close", () => world.daemon.listeners.delete(listen));
}

async function steer(world, request, response, path) {
  if (request.headers.authorization !== `Bearer ${TOKEN}`)
    return problem(response, 403, "not_permitted", "open the page with 'weightfs dashboard'");
  if (request.method === "DELETE") {
    world.cancel(path.split("/").at(-1));
    return response.writeHead(204).end();
  }
  const given = await body(request);
  switch (path) {
    case "/v1/pin":
      if (given.path.includes("qwen_image"))
        return problem(
          response,
          409,
          "no_room",
          "19 GiB do not fit: 5.3 GiB are pinned already, and the budget is 24 GiB",
        );
      return json(response, 200, world.pin(given.path, given.tensors));
    case "/v1/unpin":
      return json(response, 200, world.unpin(given.path));
    case "/v1/evict":
      return json(response, 200, world.evict(given.path));
    case "/v1/prefetch":
      return json(response, 202, world.prefetch(given.paths[0]));
    case "/v1/budget":
      return json(response, 200, world.budget(given.limit_bytes));
    case "/v1/hints/priority":
      world.daemon.files.get(given.path).priority = given.priority;
      return json(response, 200, {});
    default:
      return problem(response, 404, "not_found", path);
  }
}

async function file(path, response) {
  const name = path === "/" ? "index.html" : path.slice(1);
  if (!/^[a-z_]+\.(html|css|js|svg)$/.test(name)) return problem(response, 404, "not_found", path);
  const text = await readFile(new URL(name, PAGE)).catch(() => null);
  if (!text) return problem(response, 404, "not_found", path);
  response.writeHead(200, { "Content-Type": TYPES[name.split(".").at(-1)], "Content-Security-Policy": POLICY });
  return response.end(text);
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  const server = await serve({ port: Number(process.argv[2] ?? 8123), loras: Number(process.argv[3] ?? 48) });
  console.log(`${server.url}#token=${TOKEN}`);
}
