"""The sidebar tab, in a browser that is just enough of one."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

import weightfs_comfyui

BROWSER = """
class Element {
  constructor(tag) { Object.assign(this, { tag, style: {}, children: [], listeners: {}, isConnected: true }); }
  append(...more) { this.children.push(...more); }
  replaceChildren(...more) { this.children = more; }
  addEventListener(name, call) { this.listeners[name] = call; }
  all() { return [this, ...this.children.flatMap((child) => child.all())]; }
  find(text) { return this.all().find((each) => each.textContent === text); }
}
globalThis.document = { hidden: false, createElement: (tag) => new Element(tag) };
globalThis.setTimeout = () => 0;
export { Element };
"""
SCRIPTS = {
    "app.js": "export const app = { registerExtension(e) { app.extension = e; },"
    " extensionManager: { registerSidebarTab(t) { app.tab = t; } } };",
    "api.js": "export const api = { asked: [], answer: {}, async fetchApi(path, options) {"
    " api.asked.push([path, options?.body]); return { json: async () => api.answer }; } };",
}
USE = """
import { Element } from "./browser.js";
import { app } from "./scripts/app.js";
import { api } from "./scripts/api.js";
api.answer = DATA;
await import("./extensions/weightfs/weightfs.js");
app.extension.setup();
const root = new Element("div");
app.tab.render(root);
await new Promise((done) => setImmediate(done));
const texts = root.all().map((each) => each.textContent).filter(Boolean);
api.answer = { error: "Ask root." };
await root.find("pin")?.listeners.click();
const search = root.children[0];
search.value = "nothing like it";
search.listeners.input();
const after = root.all().map((each) => each.textContent).filter(Boolean);
console.log(JSON.stringify({ texts, asked: api.asked, after }));
"""


@pytest.mark.skipif(shutil.which("node") is None, reason="TEST OF THE SIDEBAR SKIPPED: there is no node to run it")
def test_the_tab_shows_models_and_its_buttons_act(tmp_path: Path) -> None:
    path = "/m/checkpoints/a.safetensors"
    file = {
        "path": path, "size_bytes": 8 << 20, "resident_bytes": 4 << 20, "pinned_bytes": 0, "in_use": True,
        "in_vram": ["cuda:0"], "state": "partial",
    }  # fmt: skip
    ram = {"resident_bytes": 1 << 30, "budget_bytes": 2 << 30, "pinned_bytes": 0}
    data = {"daemons": [{"status": {"mounts": [{"mountpoint": "/m"}], "ram": ram}, "files": [file]}]}
    for folder in ("scripts", "extensions/weightfs"):
        (tmp_path / folder).mkdir(parents=True)
    for name, text in SCRIPTS.items():
        (tmp_path / "scripts" / name).write_text(text)
    script = (Path(weightfs_comfyui.WEB_DIRECTORY) / "weightfs.js").read_text()
    (tmp_path / "extensions/weightfs/weightfs.js").write_text(script)
    (tmp_path / "browser.js").write_text(BROWSER)
    (tmp_path / "package.json").write_text('{"type": "module"}')
    (tmp_path / "use.js").write_text(USE.replace("DATA", json.dumps(data)))
    seen = json.loads(subprocess.check_output(["node", tmp_path / "use.js"]))
    assert {"/m", "checkpoints/a.safetensors", "pin", "prefetch", "evict"} <= set(seen["texts"])
    assert "1.00 GiB of 2.00 GiB in use, 0.0 MiB pinned" in seen["texts"]
    assert "4.0 MiB of 8.0 MiB, in use, cuda:0" in seen["texts"]
    assert seen["asked"][0][0] == "/weightfs/residency"
    assert (seen["asked"][1][0], json.loads(seen["asked"][1][1])) == (
        "/weightfs/action", {"action": "pin", "path": path},
    )  # fmt: skip
    assert "Ask root." in seen["after"] and "checkpoints/a.safetensors" not in seen["after"]
