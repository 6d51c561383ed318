"""Writes what run.py found as JSON and as a table."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

ROWS = {
    "peak": "the bus: large copies from pinned memory",
    "direct": "registered pages of the arena, no copy in between",
    "ring": "ring of pinned buffers, filled by pread",
    "pageable": "ordinary memory",
    "gds": "from storage by cuFile",
}


def markdown(report: dict[str, Any]) -> str:
    """The report for people."""
    machine, results = report["machine"], report["results"]
    lines = [f"# Loading into GPU memory, {report['date']}", ""]
    if report["stand_in"]:
        lines += ["**Measured against a stand-in in host memory: the script works, and no figure here is one of a GPU.**",
                  ""]
    gpus = machine["gpus"] or [device["name"] for device in machine["driver"].get("devices", [])]
    lines += [f"- GPU: {', '.join(gpus) or 'none'}",
              f"- CPU: {machine['cpu']}, {machine['cores']} cores, {machine['memory_gib']} GiB",
              f"- Linux {machine['kernel']}, CUDA {machine['driver'].get('cuda_version', '?')}, {machine['weightfs']}",
              f"- Source: {machine['filesystem']} on {machine['storage'] or '?'}",
              f"- cuFile: {machine['cufile'].get('mode') or 'not usable'}"
              + (f" ({machine['cufile']['reason']})" if machine["cufile"].get("reason") else ""), ""]
    registered = results["registration"]
    if registered["works"]:
        how = "read-only" if registered["read_only"] else "writable"
        lines.append(f"Registering a passthrough mapping works, {how}: {registered['seconds_per_gib']} s a GiB, and "
                     f"{registered['seconds_per_gib_to_unregister']} s to give it back.")
    else:
        lines.append(f"Registering a passthrough mapping does not work: {registered['reason']}.")
    lines += ["", "| way | GB/s | of the bus | first load | took | bytes equal the source |", "|---|---|---|---|---|---|"]
    peak = results["peak"]["gb_per_s"]
    for key, name in ROWS.items():
        row = results.get(key, {})
        if "gb_per_s" not in row:
            lines.append(f"| {name} | – | – | – | {row.get('reason', 'not measured')} | – |")
            continue
        share = f"{row['gb_per_s'] / peak:.0%}" if peak else "–"
        equal = {True: "yes", False: "**NO**", None: "–"}[row.get("hash_equals_source")]
        lines.append(f"| {name} | {row['gb_per_s']} ({row['lowest']}–{row['highest']}) | {share} | "
                     f"{row.get('first_gb_per_s', '–')} | {', '.join(row.get('path', ['–']))} | {equal} |")
    lines += ["", f"Model: {results['model']['bytes'] / 1e9:.2f} GB, {results['model']['runs']} runs each, median "
              "(lowest–highest).", ""]
    return "\n".join(lines)


def write(report: dict[str, Any], folder: Path) -> Path:
    """Writes both beside each other; the path of the table."""
    folder.mkdir(parents=True, exist_ok=True)
    stem = f"{report['date']}-gpu{'-stand-in' if report['stand_in'] else ''}"
    (folder / f"{stem}.json").write_text(json.dumps(report, indent=2) + "\n")
    table = folder / f"{stem}.md"
    table.write_text(markdown(report))
    return table
