// The page in a browser, against a made-up daemon that does what a test needs: goes away, has hostile names, thousands
// of files.

import assert from "node:assert/strict";
import { after, before, test } from "node:test";

import { launch, open } from "./browser.mjs";
import { serve, TOKEN } from "./fake.mjs";

const SDXL = "/srv/models/checkpoints/sd_xl_base_1.0.safetensors";
const SD15 = "/srv/models/checkpoints/v1-5-pruned-emaonly.safetensors";
const PHONE = { viewport: { width: 390, height: 844 }, isMobile: true, hasTouch: true };

let browser;

before(async () => {
  browser = await launch();
});

after(async () => {
  await browser?.close();
});

/// Runs `act` with a page of its own daemon, and checks that nothing went wrong in the page.
async function withPage({ token = TOKEN, options = {}, daemon = {} }, act) {
  const server = await serve({ beat: 0, ...daemon });
  try {
    daemon.prepare?.(server.world);
    const { page, complaints } = await open(browser, token ? `${server.url}#token=${token}` : server.url, options);
    await page.locator("[data-state=live]").waitFor();
    await page.locator(".wf-tile").first().waitFor();
    await act(page, server);
    assert.deepEqual(complaints, []);
    await page.close();
  } finally {
    await server.close();
  }
}

const tile = (page, name) => page.locator(".wf-tile", { hasText: name });
const panel = (page) => page.locator("#model");

async function choose(page, name) {
  await tile(page, name).click();
  await panel(page).getByRole("heading", { name }).waitFor();
}

test("shows at a glance how full the arena is, and what bounds it", () =>
  withPage({}, async (page, { world }) => {
    const bar = page.getByRole("meter", { name: "RAM used for models" });
    assert.match(await bar.getAttribute("aria-valuetext"), /^4\d\.\d GiB of 48 GiB, 6\.9 GiB of it pinned$/);
    await page.getByText("The budget is as much as --ram allows.").waitFor();
    world.press(8 * 2 ** 30);
    await page
      .getByText("The budget is 8 GiB less than the 48 GiB of --ram: the reserve for other programs bounds it")
      .waitFor();
    for (const title of ["Throughput", "Served from RAM", "In RAM", "Memory pressure"]) {
      await page.getByRole("img", { name: new RegExp(`^${title}: [\\d.]`) }).waitFor();
    }
    assert.equal(
      await page
        .locator(".wf-tile")
        .first()
        .evaluate((node) => getComputedStyle(node).backgroundImage.length > 0),
      true,
    );
  }));

test("is read-only without a token, and says so", () =>
  withPage({ token: null }, async (page) => {
    await page.getByText("You can look, and change nothing.").waitFor();
    await choose(page, "sd_xl_base");
    await panel(page).getByText("It is pinned, and so stays").waitFor();
    assert.equal(
      await page.getByRole("button", { name: /^(Pin|Unpin|Prefetch|Evict|Change budget)/ }).count(),
      1,
      "there is the filter for pinned files, and nothing to change",
    );
    assert.equal(await page.getByRole("button", { name: "Pinned", exact: true }).count(), 1);
  }));

test("takes the token out of the address, and keeps it when the page is loaded again", () =>
  withPage({}, async (page) => {
    assert.ok(!page.url().includes(TOKEN));
    await page.reload();
    await page.getByRole("button", { name: "Change budget…" }).waitFor();
  }));

test("a token that the daemon refuses changes nothing, in the daemon's words", () =>
  withPage({ token: "wrong" }, async (page, { world }) => {
    await choose(page, "sd_xl_base");
    await page.getByRole("button", { name: "Evict", exact: true }).click();
    await page.getByRole("alert").getByText("open the page with 'weightfs dashboard'").waitFor();
    assert.ok(world.daemon.files.get(SDXL).resident_bytes > 0);
  }));

test("pins, prefetches, evicts and unpins a model by click", () =>
  withPage({}, async (page, { world }) => {
    const file = world.daemon.files.get(SD15);
    await choose(page, "v1-5");
    await panel(page).getByText("There was no room").waitFor();
    await panel(page).getByRole("button", { name: "Prefetch", exact: true }).click();
    await panel(page).getByRole("button", { name: "Stop" }).waitFor();
    await panel(page).getByText("1.8 GB/s").waitFor();
    for (let second = 0; second < 4; second += 1) world.step();
    await page.getByText("v1-5-pruned-emaonly.safetensors: 4 GiB of 4 GiB are in RAM.").waitFor();
    await panel(page).getByText("4 GiB of 4 GiB in RAM").waitFor();
    await panel(page).getByRole("button", { name: "Pin", exact: true }).click();
    await panel(page).getByRole("button", { name: "Unpin" }).waitFor();
    assert.equal(file.pinned_bytes, file.size_bytes);
    await panel(page).getByRole("button", { name: "Unpin" }).click();
    await panel(page).getByRole("button", { name: "Pin", exact: true }).waitFor();
    assert.equal(file.pinned_bytes, 0);
    await panel(page).getByRole("button", { name: "Evict" }).click();
    await panel(page).getByText("0 B of 4 GiB in RAM").waitFor();
    await page.keyboard.press("Escape");
    await page.locator("#events").getByText("asked for").waitFor();
  }));

test("pins a part of a checkpoint", () =>
  withPage({}, async (page, { world }) => {
    await choose(page, "v1-5");
    await panel(page).getByRole("button", { name: "Pin: Text encoder" }).click();
    await page.getByText("v1-5-pruned-emaonly.safetensors is pinned").waitFor();
    const file = world.daemon.files.get(SD15);
    assert.ok(file.pinned_bytes > 0 && file.pinned_bytes < file.size_bytes);
  }));

test("says why something cannot be done, in the daemon's words", () =>
  withPage({}, async (page) => {
    await choose(page, "qwen_image");
    await panel(page).getByRole("button", { name: "Pin", exact: true }).click();
    await page.getByRole("alert").getByText("19 GiB do not fit: 5.3 GiB are pinned already").waitFor();
  }));

test("sets the budget, and takes it back", () =>
  withPage({}, async (page, { world }) => {
    await page.getByRole("button", { name: "Change budget…" }).click();
    await page.getByLabel("At most, in GiB").fill("40");
    await page.getByRole("button", { name: "Set" }).click();
    await page.getByText("The budget is 8 GiB less than the 48 GiB of --ram").waitFor();
    assert.equal(world.daemon.asked, 40 * 2 ** 30);
    await page.getByRole("button", { name: "Change budget…" }).click();
    await page.getByRole("button", { name: "As mounted" }).click();
    await page.getByText("The budget is as much as --ram allows.").waitFor();
  }));

test("names from the daemon are text, whatever they say", () => {
  const hostile = "<img src=x onerror=alert(1)><script>alert(2)</script>";
  const prepare = ({ daemon }) => {
    const path = `/srv/models/${hostile}/"><svg onload=alert(3)>.safetensors`;
    daemon.files.set(path, { ...daemon.files.get(SDXL), path, size_bytes: 40 * 2 ** 30 });
  };
  return withPage({ daemon: { prepare } }, async (page, { world }) => {
    let opened = 0;
    page.on("dialog", (dialog) => {
      opened += 1;
      dialog.dismiss();
    });
    world.emit("evicted", { path: hostile, bytes: 1, reason: hostile });
    world.emit("<b>other</b>", { reason: hostile });
    await page.locator("#events").getByText(hostile).first().waitFor();
    await tile(page, "svg onload").click();
    await panel(page).getByText("sd_xl").waitFor({ state: "detached" });
    assert.equal(await page.locator("#events img, #models img, #model img, #model svg, script:not([src])").count(), 0);
    assert.equal(opened, 0);
  });
});

test("goes on after the daemon was away, and says so", () =>
  withPage({}, async (page, server) => {
    server.setAway(true);
    await page.getByText("The daemon does not answer. Trying again…").waitFor();
    server.world.daemon.files.get(SD15).pinned_bytes = 1;
    server.setAway(false);
    await page.locator("[data-state=live]").waitFor();
    await page.getByText("The daemon is back.").waitFor();
    await choose(page, "v1-5");
    await panel(page).getByRole("button", { name: "Unpin" }).waitFor();
    server.world.daemon.pid += 1;
    server.world.daemon.restarts += 1;
    await page.getByText("The daemon's worker was replaced (1 time so far).").waitFor();
  }));

test("thousands of files are a few rows and tiles, and are found", () =>
  withPage({ daemon: { loras: 9000 } }, async (page) => {
    await page.getByText("9,017 models").waitFor();
    assert.ok((await page.locator(".wf-tile").count()) < 200);
    await page.getByRole("button", { name: "List" }).click();
    await page.getByRole("listbox", { name: "Models, 9,017 files" }).waitFor();
    const list = page.getByRole("listbox");
    await list.focus();
    await page.keyboard.press("End");
    const last = list.locator("[aria-posinset='9017']");
    await last.waitFor();
    assert.equal(await last.getAttribute("aria-setsize"), "9017");
    assert.ok((await list.getByRole("option").count()) < 40);
    await page.getByRole("searchbox").fill("lora-08999");
    await page.getByText("1 model,").waitFor();
    await list.focus();
    await page.keyboard.press("ArrowDown");
    await page.keyboard.press("Enter");
    await panel(page).getByRole("heading", { name: "lora-08999.safetensors" }).waitFor();
  }));

test("the keyboard reaches the map, the charts and back out", () =>
  withPage({}, async (page) => {
    await page.locator(".wf-tile[tabindex='0']").focus();
    const name = () => page.evaluate(() => document.activeElement.getAttribute("aria-label"));
    const first = await name();
    await page.keyboard.press("ArrowRight");
    assert.notEqual(await name(), first);
    await page.keyboard.press("ArrowLeft");
    assert.equal(await name(), first);
    await page.keyboard.press("Enter");
    await panel(page).getByRole("button", { name: "Close" }).waitFor();
    await page.keyboard.press("Escape");
    await panel(page).waitFor({ state: "hidden" });
    assert.equal(await name(), first, "the focus is where it was");
    await page.getByRole("img", { name: /^In RAM/ }).focus();
    await page.keyboard.press("ArrowLeft");
    await page.locator("figure [aria-live]", { hasText: "pinned 6.9 GiB, kept" }).waitFor({ state: "attached" });
    await page.keyboard.press("/");
    assert.equal(await page.evaluate(() => document.activeElement.id), "search");
  }));

test("light and dark, as the system has it or as chosen", () =>
  withPage({ options: { colorScheme: "dark" } }, async (page) => {
    const shade = () => page.evaluate(() => getComputedStyle(document.body).backgroundColor);
    const dark = await shade();
    await page.getByRole("button", { name: "Theme: as the system" }).click();
    const light = await shade();
    assert.notEqual(light, dark);
    await page.getByRole("button", { name: "Theme: light" }).click();
    assert.equal(await shade(), dark);
    await page.reload();
    await page.getByRole("button", { name: "Theme: dark" }).waitFor();
  }));

test("nothing moves while it loads and lives", () =>
  withPage({ daemon: { beat: 1000 } }, async (page, { world }) => {
    world.fill(SD15, "demand");
    world.emit("opened", { path: SD15, reason: "streamed" });
    await page.locator("#events").getByText("Read in").first().waitFor();
    await page.locator("#events").getByText("a program reads it").waitFor();
    const moved = await page.evaluate(() => globalThis.moved);
    assert.ok(moved < 0.05, `the layout shifted by ${moved}`);
  }));

test("fits a phone: no sideways scrolling, and a model covers the page", () =>
  withPage({ options: PHONE }, async (page) => {
    const wide = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
    assert.ok(wide <= 0, `${wide} pixels too wide`);
    await tile(page, "sd_xl_base").tap();
    await panel(page).getByRole("heading", { name: "sd_xl_base" }).waitFor();
    assert.equal(await page.locator("[data-below]:not([inert])").count(), 0);
    const box = await panel(page).boundingBox();
    assert.deepEqual([box.width, box.height], [390, 844]);
    await panel(page).getByRole("button", { name: "Close" }).tap();
    await panel(page).waitFor({ state: "hidden" });
    assert.equal(await page.locator("[inert]").count(), 0);
  }));
