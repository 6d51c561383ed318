"""Residency as a table for people and as JSON for programs."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from weightfs import wire


def as_json(files: Iterable[wire.FileStatus], **more: Any) -> str:
    """The files with what is known of each, as the daemon says it."""
    return json.dumps({"files": list(files), **more}, indent=1)


def as_text(files: Iterable[wire.FileStatus]) -> str:
    """A line for each file."""
    rows = [
        (
            file["path"],
            size(file["size_bytes"]),
            f"{percent(file)} %",
            "pinned" if file["pinned_bytes"] else "",
            "" if file["priority"] == "normal" else file["priority"],
            ",".join(file["in_vram"]),
            file["last_load"] or "",
        )
        for file in files
    ]
    if not rows:
        return "no model files in a mount of weightfs"
    table = [("file", "size", "in RAM", "pin", "priority", "in VRAM", "last loaded by"), *rows]
    widths = [max(len(row[column]) for row in table) for column in range(len(table[0]))]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in table)
    return "\n".join(line.rstrip() for line in lines)


def percent(file: wire.FileStatus) -> int:
    """How much of a file is in RAM; 100 only if all of it is."""
    return file["resident_bytes"] * 100 // file["size_bytes"] if file["size_bytes"] else 100


def size(count: int) -> str:
    """Bytes in the unit that suits them."""
    return f"{count / (1 << 30):.2f} GiB" if count >= 1 << 30 else f"{count / (1 << 20):.1f} MiB"
