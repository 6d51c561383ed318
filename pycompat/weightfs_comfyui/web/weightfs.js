// The sidebar tab: what of the models is in RAM, refreshed while it is shown.
import { app } from "../../scripts/app.js";
import { api } from "../../scripts/api.js";

const EVERY_MS = 2000;

function element(tag, style, text) {
  const made = document.createElement(tag);
  Object.assign(made.style, style ?? {});
  if (text !== undefined) made.textContent = text;
  return made;
}

function size(bytes) {
  const gib = bytes / 2 ** 30;
  return gib >= 1 ? `${gib.toFixed(2)} GiB` : `${(bytes / 2 ** 20).toFixed(1)} MiB`;
}

function bar(part, whole) {
  const outer = element("div", { height: "6px", borderRadius: "3px", background: "var(--border-color, #444)", margin: "4px 0" });
  const share = whole > 0 ? Math.min(100, (100 * part) / whole) : 0;
  outer.append(element("div", { height: "6px", borderRadius: "3px", width: `${share}%`, background: "#4a9" }));
  return outer;
}

class Tab {
  constructor(root) {
    this.root = root;
    this.message = "";
    this.filter = "";
    root.replaceChildren();
    Object.assign(root.style, { padding: "8px", overflowY: "auto", height: "100%", fontSize: "12px" });
    const search = element("input", { width: "100%", marginBottom: "8px" });
    search.placeholder = "Search models";
    search.addEventListener("input", () => {
      this.filter = search.value.toLowerCase();
      this.draw();
    });
    this.content = element("div");
    root.append(search, this.content);
    this.refresh();
  }

  async refresh() {
    if (!this.root.isConnected && this.data) return;
    if (!document.hidden) {
      try {
        const answer = await api.fetchApi("/weightfs/residency");
        this.data = await answer.json();
      } catch (error) {
        this.data = { daemons: [{ error: String(error) }] };
      }
      this.draw();
    }
    setTimeout(() => this.refresh(), EVERY_MS);
  }

  async act(action, path) {
    const answer = await api.fetchApi("/weightfs/action", {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify({ action, path }),
    });
    this.message = (await answer.json()).error ?? "";
    this.draw();
  }

  draw() {
    const rows = [];
    if (this.message) rows.push(element("div", { color: "#e77", marginBottom: "8px" }, this.message));
    if (!this.data?.daemons?.length) rows.push(element("div", {}, "No model folder of ComfyUI is in a mount of weightfs."));
    for (const daemon of this.data?.daemons ?? []) {
      if (daemon.error) {
        rows.push(element("div", { color: "#e77" }, daemon.error));
        continue;
      }
      const ram = daemon.status.ram;
      rows.push(
        element("div", { fontWeight: "bold" }, daemon.status.mounts.map((mount) => mount.mountpoint).join(", ")),
        element("div", {}, `${size(ram.resident_bytes)} of ${size(ram.budget_bytes)} in use, ${size(ram.pinned_bytes)} pinned`),
        bar(ram.resident_bytes, ram.budget_bytes),
      );
      for (const file of daemon.files) {
        if (file.path.toLowerCase().includes(this.filter)) rows.push(this.row(file, daemon.status.mounts));
      }
    }
    this.content.replaceChildren(...rows);
  }

  row(file, mounts) {
    const mount = mounts.map((each) => `${each.mountpoint}/`).find((prefix) => file.path.startsWith(prefix)) ?? "";
    const row = element("div", { margin: "8px 0" });
    const name = element("div", { overflowWrap: "anywhere" }, file.path.slice(mount.length));
    name.title = file.path;
    const marks = [`${size(file.resident_bytes)} of ${size(file.size_bytes)}`];
    if (file.pinned_bytes) marks.push("pinned");
    if (file.in_use) marks.push("in use");
    marks.push(...file.in_vram);
    const buttons = element("div", { display: "flex", gap: "4px" });
    const actions = [file.pinned_bytes ? "unpin" : "pin"];
    if (file.state !== "resident") actions.push("prefetch");
    if (file.resident_bytes && !file.pinned_bytes) actions.push("evict");
    for (const action of actions) {
      const button = element("button", { fontSize: "11px" }, action);
      button.addEventListener("click", () => this.act(action, file.path));
      buttons.append(button);
    }
    row.append(name, bar(file.resident_bytes, file.size_bytes), element("div", { opacity: "0.7" }, marks.join(", ")), buttons);
    return row;
  }
}

app.registerExtension({
  name: "weightfs.residency",
  setup() {
    app.extensionManager?.registerSidebarTab?.({
      id: "weightfs",
      icon: "pi pi-database",
      title: "weightfs",
      tooltip: "Models in the RAM of weightfs",
      type: "custom",
      render: (root) => new Tab(root),
    });
  },
});
