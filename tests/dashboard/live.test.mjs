// The page against a live mount: what is clicked is so, in the interface, for the command line, and for who reads.
// The environment says where it is; see tests/tests/dashboard.rs.

import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { readFileSync } from "node:fs";
import { after, before, test } from "node:test";

import { launch, open } from "./browser.mjs";

const {
  WEIGHTFS_BIN: PROGRAM,
  DASHBOARD_URL: URL_WITH_TOKEN,
  DASHBOARD_TOKEN: TOKEN,
  DASHBOARD_MOUNT: MOUNT,
} = process.env;
const BARE = URL_WITH_TOKEN?.split("#")[0];
const BASE = `${MOUNT}/checkpoints/base.safetensors`;
const ENCODER = `${MOUNT}/text_encoders/encoder.safetensors`;

let browser;

before(async () => {
  assert.ok(PROGRAM && URL_WITH_TOKEN && TOKEN && MOUNT, "there is no live mount: tests/tests/dashboard.rs makes one");
  browser = await launch();
});

after(async () => {
  await browser?.close();
});

/// What the command line says of a file.
function listed(path) {
  const { files } = JSON.parse(execFileSync(PROGRAM, ["ls", path, "--json"], { encoding: "utf8" }));
  return files.find((file) => file.path === path);
}

async function asked(path) {
  const response = await fetch(new URL(`/v1/files?${new URLSearchParams({ path })}`, BARE));
  assert.equal(response.status, 200);
  return (await response.json()).files[0];
}

async function shown(url) {
  const { page, complaints } = await open(browser, url);
  await page.locator("[data-state=live]").waitFor();
  await page.locator(".wf-tile").first().waitFor();
  return { page, complaints, panel: page.locator("#model") };
}

async function choose(page, name) {
  await page.locator(".wf-tile", { hasText: name }).click();
  await page.locator("#model").getByRole("heading", { name }).waitFor();
}

test("what is pinned by click is pinned for everybody, and what is evicted is gone", async () => {
  const { page, complaints, panel } = await shown(URL_WITH_TOKEN);
  assert.ok((await page.locator("#mounts").textContent()).includes(MOUNT));
  await choose(page, "base.safetensors");
  assert.equal(listed(BASE).pinned_bytes, 0);
  await panel.getByRole("button", { name: "Pin", exact: true }).click();
  await panel.getByRole("button", { name: "Unpin" }).waitFor();
  await panel.getByText(/^(\d+\S* MiB) of \1 in RAM/).waitFor();
  const { pinned_bytes: pinned, resident_bytes: resident, size_bytes: size } = await asked(BASE);
  assert.ok(pinned > 0 && resident === size, `${pinned} pinned, ${resident} of ${size} resident`);
  assert.ok(listed(BASE).pinned_bytes > 0);
  await panel.getByRole("button", { name: "Unpin" }).click();
  await panel.getByRole("button", { name: "Pin", exact: true }).waitFor();
  assert.equal(listed(BASE).pinned_bytes, 0);
  await panel.getByRole("button", { name: "Evict" }).click();
  await panel.getByText(/^0 B of .* in RAM$/).waitFor();
  assert.equal((await asked(BASE)).resident_bytes, 0);
  assert.deepEqual(complaints, []);
  await page.close();
});

test("what programs read appears by itself, with a reason", async () => {
  const { page, complaints, panel } = await shown(URL_WITH_TOKEN);
  assert.ok(readFileSync(ENCODER).length > 0);
  await page.locator("#events").getByRole("button", { name: "encoder.safetensors" }).first().waitFor();
  await page
    .locator(".wf-tile[aria-label*='encoder.safetensors'][aria-label*='in RAM']:not([aria-label*='not in RAM'])")
    .waitFor();
  await choose(page, "encoder.safetensors");
  await page.waitForFunction(() => document.querySelector("#model .wf-why").textContent.length > 10);
  await panel.getByText(/\d+ tensors? in \d+ groups?/).waitFor();
  await panel.locator(".wf-groups li").first().waitFor();
  assert.deepEqual(complaints, []);
  await page.close();
});

test("the budget is set, and is as mounted again", async () => {
  const { page, complaints } = await shown(URL_WITH_TOKEN);
  const budget = async () => (await (await fetch(new URL("/v1/status", BARE))).json()).ram.budget_bytes;
  const full = await budget();
  await page.getByRole("button", { name: "Change budget…" }).click();
  await page.getByLabel("At most, in GiB").fill("0.125");
  await page.getByRole("button", { name: "Set" }).click();
  await page.getByText("of 128 MiB").waitFor();
  assert.ok((await budget()) < full);
  await page.getByRole("button", { name: "Change budget…" }).click();
  await page.getByRole("button", { name: "As mounted" }).click();
  await page.getByText("of 256 MiB").waitFor();
  assert.deepEqual(complaints, []);
  await page.close();
});

test("without the token there is nothing to click, and the daemon refuses", async () => {
  const { page, complaints } = await shown(BARE);
  await page.getByText("You can look, and change nothing.").waitFor();
  await choose(page, "base.safetensors");
  assert.equal(await page.locator("#model").getByRole("button", { name: "Pin", exact: true }).count(), 0);
  const post = (headers) =>
    fetch(new URL("/v1/evict", BARE), {
      method: "POST",
      headers: { "Content-Type": "application/json", ...headers },
      body: JSON.stringify({ path: BASE }),
    });
  assert.equal((await post({})).status, 403);
  assert.equal((await post({ Authorization: `Bearer ${TOKEN.replace(/./, "x")}` })).status, 403);
  assert.equal((await post({ Authorization: `Bearer ${TOKEN}` })).status, 200);
  assert.deepEqual(complaints, []);
  await page.close();
});

test("what is served says that nothing from elsewhere may run", async () => {
  for (const name of ["", "main.js", "view.css", "icon.svg"]) {
    const response = await fetch(new URL(name, BARE));
    assert.equal(response.status, 200, name);
    const policy = response.headers.get("content-security-policy");
    for (const rule of [
      "default-src 'none'",
      "script-src 'self'",
      "frame-ancestors 'none'",
      "require-trusted-types-for 'script'",
    ]) {
      assert.ok(policy.includes(rule), `${name}: ${policy}`);
    }
    assert.equal(response.headers.get("x-content-type-options"), "nosniff");
  }
});
