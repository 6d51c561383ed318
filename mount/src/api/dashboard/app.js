"use strict";

const size = (bytes) => `${(bytes / 2 ** 30).toFixed(2)} GiB`;

async function get(path) {
  const response = await fetch(path);
  const body = await response.json();
  if (!response.ok) throw new Error(body.detail);
  return body;
}

async function show() {
  const summary = document.getElementById("summary");
  try {
    const { ram } = await get("v1/status");
    summary.textContent = `${size(ram.resident_bytes)} of ${size(ram.budget_bytes)} are in use: ${ram.budget_reason}`;
    const { files } = await get("v1/files?sort=resident&limit=100");
    const rows = files.map((file) => {
      const row = document.createElement("tr");
      for (const text of [file.path, size(file.resident_bytes), size(file.size_bytes)]) {
        row.append(Object.assign(document.createElement("td"), { textContent: text }));
      }
      return row;
    });
    document.getElementById("files").replaceChildren(...rows);
  } catch (error) {
    summary.textContent = `The daemon does not answer: ${error.message}`;
  }
  setTimeout(show, 2000);
}

show();
